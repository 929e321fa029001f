"""``extforge env``: the variables that point every tool at the toolchain, for a shell to evaluate."""

from __future__ import annotations

import argparse
import os
import sys

from extforge.toolchain.archs import parse_archs, require_archs
from extforge.toolchain.options import (
    add_query_arguments,
    build_planned_view,
    resolve_from,
)
from extforge.toolchain.outputs import environment
from extforge.toolchain.shells import SHELL_NAMES, apply_changes, undo_changes, write_changes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("--shell", choices=SHELL_NAMES, default="bash", help="whose words to print")
    parser.add_argument("--undo", action="store_true", help="restore what was there before")
    parser.add_argument("--arch", metavar="LIST", help="GPU architectures, e.g. '8.0;9.0+PTX'; never guessed")
    add_query_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the statements that set or restore the variables."""
    if arguments.undo:
        changes = undo_changes(os.environ)
    else:
        toolchain = resolve_from(arguments)
        archs = parse_archs(arguments.arch) if arguments.arch is not None else ()
        if archs:
            require_archs(toolchain, archs)
        view = build_planned_view(toolchain)
        changes = apply_changes(environment(toolchain, view, archs), os.environ)
    sys.stdout.write(write_changes(changes, arguments.shell))
    return 0
