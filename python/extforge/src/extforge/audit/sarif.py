"""Reports in SARIF 2.1.0, which code hosts show beside the files."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from extforge.audit.checks import CHECKS
from extforge.audit.escaping import printable
from extforge.audit.model import Finding, Level, Report

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {Level.ERROR: "error", Level.WARNING: "warning", Level.UNVERIFIED: "note"}


def as_sarif(report: Report) -> str:
    """The report as a SARIF log with one run."""
    driver = {
        "name": "extforge audit",
        "version": version("extforge"),
        "rules": [_rule(code) for code in CHECKS],
    }
    run = {"tool": {"driver": driver}, "results": [_result(f) for f in report.findings]}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(code: str) -> dict[str, Any]:
    wording = CHECKS[code].wording
    return {
        "id": code,
        "shortDescription": {"text": wording.sentence},
        "help": {"text": wording.cure},
        "defaultConfiguration": {"level": LEVELS[wording.level]},
    }


def _result(finding: Finding) -> dict[str, Any]:
    seen = finding.observation
    verdict = "" if seen.verified else "Not verified. "
    text = f"{verdict}Claimed: {seen.claimed}. Seen: {seen.seen}. Change: {seen.change}."
    uri = quote(f"{finding.package}/{seen.file}")
    return {
        "ruleId": finding.code,
        "level": LEVELS[finding.level],
        "message": {"text": printable(text)},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": uri}}}],
    }
