"""The ``extforge`` command: a table of subcommands, each behind its own module.

A subcommand's module offers ``add_arguments(parser)`` and ``run(arguments) -> exit code``. It is
imported only when its name was typed, so that asking for help stays cheap.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from extforge.errors import ExtforgeError


class Subcommand(NamedTuple):
    """A name, what it does, and the module that does it."""

    name: str
    sentence: str
    module: str


TOOLCHAIN = "extforge.toolchain.commands"
SUBCOMMANDS: tuple[Subcommand, ...] = (
    Subcommand("build", "build, test and audit the packages of a recipe", "extforge.build.command"),
    Subcommand("audit", "compare what packages claim with what they hold", "extforge.audit.command"),
    Subcommand("install", "solve and install an environment", "extforge.install"),
    Subcommand("channel", "make a channel where no conda channel is reachable", "extforge.channel.command"),
    Subcommand("doctor", "show what was found, what is wrong and what mends it", f"{TOOLCHAIN}.doctor"),
    Subcommand("env", "print variables that point every tool at the toolchain", f"{TOOLCHAIN}.env"),
    Subcommand("run", "run one command in that environment", f"{TOOLCHAIN}.run"),
    Subcommand("flags", "print compiler and linker flags (also: extforge-config)", f"{TOOLCHAIN}.config"),
    Subcommand("cmake", "print an initial cache for cmake -C", f"{TOOLCHAIN}.cmake"),
    Subcommand("view", "make the directory that CUDA_HOME should name", f"{TOOLCHAIN}.view"),
    Subcommand("hook", "set the variables whenever a conda environment is activated", f"{TOOLCHAIN}.hook"),
    Subcommand("json", "print the whole resolution as one document", f"{TOOLCHAIN}.json"),
)

EXIT_CODES = """\
exit codes:
  0  done
  1  something asked for is missing or found wanting
  2  usage or unusable input
  3  refused: it would contradict what is already there
  4  a real probe (compile, link, load) failed
"""


def run(argv: Sequence[str]) -> int:
    """Carry out one command line and return its exit code."""
    parser, chosen = build_parser(argv)
    arguments = parser.parse_args(argv)
    if chosen is None:
        parser.print_help()
        return 2
    try:
        code: int = importlib.import_module(chosen.module).run(arguments)
        sys.stdout.flush()
        return code
    except ExtforgeError as error:
        print(f"extforge {chosen.name}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader (head, less) has gone; a second failure at interpreter exit would be noise.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # A full disk, a missing permission: the message names the file, and a traceback would not help.
        print(f"extforge {chosen.name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"extforge {chosen.name}: interrupted", file=sys.stderr)
        return 130


def build_parser(argv: Sequence[str]) -> tuple[argparse.ArgumentParser, Subcommand | None]:
    """Return the parser and the subcommand that ``argv`` names; only that one is imported."""
    parser = argparse.ArgumentParser(
        prog="extforge",
        description="Build, install and prove PyTorch extensions the conda way.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    chosen = next((s for s in SUBCOMMANDS if argv and s.name == argv[0]), None)
    for subcommand in SUBCOMMANDS:
        child = parsers.add_parser(
            subcommand.name,
            help=subcommand.sentence,
            description=subcommand.sentence,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if subcommand is chosen:
            importlib.import_module(subcommand.module).add_arguments(child)
    return parser, chosen
