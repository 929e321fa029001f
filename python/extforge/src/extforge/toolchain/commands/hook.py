"""``extforge hook install|remove``: activation scripts for a conda environment."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from extforge.toolchain.hook import hook_system, install_hook, remove_hook
from extforge.toolchain.options import add_query_arguments, query_from
from extforge.toolchain.prefixes import choose_prefixes
from extforge.toolchain.resolve import survey


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("action", choices=("install", "remove"), help="write the scripts, or take them away")
    add_query_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write or remove the scripts, naming each file on stderr."""
    query = query_from(arguments)
    prefix = choose_prefixes(query).prefix
    if arguments.action == "remove":
        written, word = remove_hook(prefix), "removed"
    else:
        query = replace(query, prefix=str(prefix), system=hook_system(query.system, str(prefix)))
        written, word = install_hook(survey(query).refuse()), "wrote"
    for path in written:
        print(f"{word} {Path(path)}", file=sys.stderr)
    return 0
