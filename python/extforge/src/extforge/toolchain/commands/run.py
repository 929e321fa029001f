"""``extforge run -- CMD``: one command in the toolchain's environment."""

from __future__ import annotations

import argparse
import os

from extforge.errors import BadInputError, NotFoundError
from extforge.toolchain.options import (
    add_query_arguments,
    build_planned_view,
    resolve_from,
)
from extforge.toolchain.outputs import environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add_query_arguments(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments, after --")


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by the command; its exit code becomes ours."""
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise BadInputError("no command was given; write: extforge run -- COMMAND [ARGUMENT...]")
    toolchain = resolve_from(arguments)
    view = build_planned_view(toolchain)
    try:
        os.execvpe(command[0], command, {**os.environ, **environment(toolchain, view)})
    except OSError as error:
        raise NotFoundError(f"{command[0]} cannot be run: {error.strerror}") from error
