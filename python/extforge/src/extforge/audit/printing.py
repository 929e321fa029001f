"""Reports as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from extforge.audit.checks import CHECKS
from extforge.audit.escaping import printable
from extforge.audit.model import Finding, Level, Report


def as_text(report: Report, strict: bool) -> str:
    """One block a finding, and one line a package."""
    lines: list[str] = []
    for package in report.packages:
        found = [f for f in report.findings if f.package == package]
        for alike in grouped(found):
            lines += _block(alike)
        lines.append(f"{printable(package)}: {verdict(found, strict)}")
    if report.ignored:
        lines.append(f"ignored: {', '.join(sorted({f.code for f in report.ignored}))}")
    return "\n".join(lines) + "\n"


def grouped(findings: list[Finding]) -> list[list[Finding]]:
    """Findings that differ in nothing but the file, together, in the order of the first of each group."""
    groups: dict[tuple[str, Level, str, str], list[Finding]] = {}
    for finding in findings:
        seen = finding.observation
        groups.setdefault((finding.code, finding.level, seen.claimed, seen.seen), []).append(finding)
    return list(groups.values())


def _block(alike: list[Finding]) -> Iterator[str]:
    finding = alike[0]
    seen = finding.observation
    more = f" (and {len(alike) - 1} more files)" if len(alike) > 1 else ""
    doubt = "" if seen.verified else "this could not be ruled out: "
    yield f"{finding.code} {finding.level.value}: {doubt}{CHECKS[finding.code].wording.sentence}"
    yield f"    file     {printable(seen.file)}{more}"
    yield f"    claimed  {printable(seen.claimed)}"
    yield f"    seen     {printable(seen.seen)}"
    yield f"    change   {printable(seen.change)}: {CHECKS[finding.code].wording.cure}"


def verdict(findings: list[Finding], strict: bool) -> str:
    """``OK``, or how many findings of each level there are and what that means."""
    if not findings:
        return "OK"
    counts = [(level, sum(f.level is level for f in findings)) for level in Level]
    errors, warnings, unverified = (n for _, n in counts)
    parts = [
        _counted(errors, "error"),
        _counted(warnings, "warning"),
        f"{unverified} not verified" if unverified else "",
    ]
    failed = errors or strict
    return f"{'FAILED' if failed else 'passed'}, {', '.join(filter(None, parts))}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}" if number else ""


def as_json(report: Report, strict: bool) -> str:
    """The report for programs."""
    value = {
        "packages": list(report.packages),
        "failed": report.failed(strict),
        "findings": [finding_fields(f) for f in report.findings],
        "ignored": [finding_fields(f) for f in report.ignored],
    }
    return json.dumps(value, indent=2) + "\n"


def finding_fields(finding: Finding) -> dict[str, Any]:
    """One finding as plain values."""
    seen = finding.observation
    return {
        "package": finding.package,
        "code": finding.code,
        "family": CHECKS[finding.code].wording.family,
        "level": finding.level.value,
        "sentence": CHECKS[finding.code].wording.sentence,
        "file": seen.file,
        "claimed": seen.claimed,
        "seen": seen.seen,
        "change": seen.change,
        "cure": CHECKS[finding.code].wording.cure,
    }


def explain(code: str) -> str:
    """What one code means."""
    wording = CHECKS[code].wording
    return f"{code} ({wording.family}, {wording.level.value})\n{wording.sentence}\nCure: {wording.cure}\n"
