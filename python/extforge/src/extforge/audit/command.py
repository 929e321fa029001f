"""``extforge audit``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from extforge.audit import printing, sarif
from extforge.audit.auditing import Options, audit_packages
from extforge.audit.checks import CHECKS
from extforge.audit.comparing import compare_packages
from extforge.channels import resolve_channel
from extforge.errors import BadInputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "packages",
        nargs="*",
        metavar="PACKAGE",
        help=".conda, .tar.bz2, .whl, directory, or NAME with --prefix",
    )
    parser.add_argument("--select", default="", metavar="CODES", help="run these checks only (M01,R,...)")
    parser.add_argument(
        "--ignore", default="", metavar="CODES", help="set the findings of these checks aside"
    )
    parser.add_argument("--format", choices=("text", "json", "sarif"), default="text")
    parser.add_argument(
        "--channel",
        action="append",
        default=[],
        metavar="URL",
        help="solve requirements there (URL, directory or name; repeatable)",
    )
    parser.add_argument("--prefix", type=Path, metavar="ENV", help="environment that holds the requirements")
    parser.add_argument(
        "--archs",
        default=os.environ.get("CF_TORCH_CUDA_ARCH_LIST", ""),
        metavar="LIST",
        help="declared GPU architectures (default: CF_TORCH_CUDA_ARCH_LIST, else the package's variant)",
    )
    parser.add_argument("--cuobjdump", type=Path, metavar="FILE", help="default: the one on PATH")
    parser.add_argument("--strict", action="store_true", help="warnings and what is not verified fail too")
    parser.add_argument("--explain", metavar="CODE", help="say what a code means, and stop")
    parser.add_argument(
        "--compare", action="store_true", help="say what differs between two builds of a package, and stop"
    )


def run(arguments: argparse.Namespace) -> int:
    """Audit, print, and return 0 when the packages pass, else 1."""
    if arguments.explain:
        if arguments.explain not in CHECKS:
            raise BadInputError(f"no check is called {arguments.explain!r}; valid are {', '.join(CHECKS)}")
        sys.stdout.write(printing.explain(arguments.explain))
        return 0
    if not arguments.packages:
        raise BadInputError("no package given; valid are .conda, .tar.bz2 and .whl files and directories")
    return _compare(arguments.packages) if arguments.compare else _audit(arguments)


def _audit(arguments: argparse.Namespace) -> int:
    options = Options(
        select=arguments.select,
        ignore=arguments.ignore,
        channels=tuple(map(resolve_channel, arguments.channel)),
        prefix=arguments.prefix,
        architectures=arguments.archs,
        cuobjdump=arguments.cuobjdump,
    )
    report = audit_packages(arguments.packages, options)
    if arguments.format == "sarif":
        sys.stdout.write(sarif.as_sarif(report))
    elif arguments.format == "json":
        sys.stdout.write(printing.as_json(report, arguments.strict))
    else:
        sys.stdout.write(printing.as_text(report, arguments.strict))
    return 1 if report.failed(arguments.strict) else 0


def _compare(packages: list[str]) -> int:
    if len(packages) != 2:
        raise BadInputError(f"--compare takes two packages; {len(packages)} given")
    differences = compare_packages(Path(packages[0]), Path(packages[1]))
    for difference in differences:
        print(difference.line)
    print("byte-equal" if not differences else f"{len(differences)} differences")
    return 1 if differences else 0
