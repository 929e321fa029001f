"""``extforge view``: the directory that CUDA_HOME should name."""

from __future__ import annotations

import argparse
from pathlib import Path

from extforge.toolchain.options import add_query_arguments, resolve_from
from extforge.toolchain.view import require_view


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "directory", nargs="?", type=Path, help="where to make it (default: in the user's cache)"
    )
    add_query_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Build the view and print its path."""
    directory = arguments.directory.absolute() if arguments.directory else None
    print(require_view(resolve_from(arguments), directory).path)
    return 0
