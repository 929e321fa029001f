"""``extforge doctor``: what was found where, what is wrong, and the one command that mends it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from extforge.toolchain.crosscheck import cross_check
from extforge.toolchain.model import Finding
from extforge.toolchain.options import add_query_arguments, survey_from
from extforge.toolchain.outputs import document
from extforge.toolchain.probe import probe_findings, run_probes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("--probe", action="store_true", help="compile, link and load for real")
    parser.add_argument("--json", action="store_true", help="print a document instead of the screen")
    parser.add_argument("--strict", action="store_true", help="count warnings as errors")
    add_query_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit with 3 for a contradiction, 4 for a failed probe, 1 for an error, else 0."""
    toolchain = survey_from(arguments)
    outcomes = list(run_probes(toolchain)) if arguments.probe else []
    findings = [*toolchain.findings, *cross_check(toolchain), *probe_findings(outcomes)]
    if arguments.json:
        report = {
            "probes": [outcome._asdict() for outcome in outcomes],
            "findings": list(map(asdict, findings)),
        }
        print(json.dumps({**document(toolchain), **report}, indent=2))
    else:
        from rich.console import Console

        from extforge.toolchain.screen import show

        show(Console(highlight=False), toolchain, findings, outcomes)
    return exit_code(findings, arguments.strict)


def exit_code(findings: list[Finding], strict: bool) -> int:
    """Return the exit code that the worst finding deserves."""
    levels = {finding.level for finding in findings}
    if "refused" in levels:
        return 3
    if any(finding.code.startswith("probe-") for finding in findings):
        return 4
    return 1 if "error" in levels or (strict and "warning" in levels) else 0
