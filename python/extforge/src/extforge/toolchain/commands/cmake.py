"""``extforge cmake``: an initial cache for ``cmake -C``."""

from __future__ import annotations

import argparse
import sys

from extforge.toolchain.archs import parse_archs, require_archs
from extforge.toolchain.options import (
    add_query_arguments,
    build_planned_view,
    resolve_from,
)
from extforge.toolchain.outputs import cmake_script, cmake_variables


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("--arch", metavar="LIST", help="GPU architectures, e.g. '8.0;9.0+PTX'; never guessed")
    add_query_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the cache, building the view that it names."""
    toolchain = resolve_from(arguments)
    archs = parse_archs(arguments.arch) if arguments.arch is not None else ()
    if archs:
        require_archs(toolchain, archs)
    view = build_planned_view(toolchain)
    sys.stdout.write(cmake_script(cmake_variables(toolchain, view, archs)))
    return 0
