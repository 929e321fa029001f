"""The command-line arguments that every toolchain command shares, and the toolchain they describe."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from extforge.errors import BadInputError
from extforge.toolchain import interpreter
from extforge.toolchain.catalogue import PART_NAMES
from extforge.toolchain.model import Toolchain
from extforge.toolchain.query import Query, machine_of
from extforge.toolchain.resolve import survey
from extforge.toolchain.system import System
from extforge.toolchain.view import View, build_view, plan_view


def add_query_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that say what to resolve."""
    group = parser.add_argument_group("what to resolve")
    group.add_argument("--prefix", help="environment (default: the running interpreter's)")
    group.add_argument("--cuda", metavar="DIRECTORY", help="CUDA toolkit root")
    group.add_argument("--target", help="CUDA target, e.g. sbsa-linux (default: by content)")
    group.add_argument(
        "--prefer", choices=("prefix", "env"), default="prefix", help="env: CUDA_HOME and PATH go first"
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PART=PATH",
        help="name one part; parts: " + " ".join(PART_NAMES),
    )
    group.add_argument(
        "--generate-stub",
        action="store_true",
        help="compile a driver stub from cuda.h where the toolkit ships none",
    )
    group.add_argument(
        "--allow-unsupported-compiler", action="store_true", help="accept a gcc that nvcc does not know"
    )


def query_from(arguments: argparse.Namespace, environ: Mapping[str, str] | None = None) -> Query:
    """Return the query that the arguments describe, in the environment of this process."""
    overrides = dict(_parse_override(text) for text in arguments.set)
    return Query(
        System(os.environ if environ is None else environ),
        interpreter.current(),
        machine_of(sys.executable, os.uname().machine),
        arguments.prefix,
        arguments.cuda,
        arguments.target,
        arguments.prefer,
        overrides,
        arguments.allow_unsupported_compiler,
        arguments.generate_stub,
    )


def _parse_override(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not separator or not path:
        raise BadInputError(f"--set {text}: write it as PART=PATH")
    return name, path


def survey_from(arguments: argparse.Namespace) -> Toolchain:
    """Return the toolchain with contradictions as findings."""
    return survey(query_from(arguments))


def resolve_from(arguments: argparse.Namespace) -> Toolchain:
    """Return the toolchain; raises :class:`ToolchainConflict` and tells warnings on stderr."""
    toolchain = survey_from(arguments).refuse()
    for finding in toolchain.findings:
        if finding.level in ("error", "warning"):
            print(f"extforge: {finding.level} [{finding.code}]: {finding.text}", file=sys.stderr)
    return toolchain


def build_planned_view(toolchain: Toolchain) -> View | None:
    """Build the view if there is a toolkit to show; a new one is told on stderr."""
    view = plan_view(toolchain)
    if view is None:
        return None
    new = not Path(view.path).exists()
    view = build_view(toolchain, view)
    if new:
        print(f"extforge: made the view {view.path}", file=sys.stderr)
    return view
