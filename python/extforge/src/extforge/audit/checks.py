"""The checks, joined: a code, its wording and its rule. Choosing and running them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from extforge.audit.model import Context, Finding, Level, Observation, Package
from extforge.audit.rules import (
    cuda,
    floors,
    hygiene,
    linkage,
    metadata,
    python_abi,
    run_paths,
    torch_abi,
)
from extforge.audit.wording import WORDINGS, Wording
from extforge.errors import BadInputError


class Rule(Protocol):
    """Compares claim with content."""

    def __call__(self, package: Package, context: Context) -> Iterator[Observation]:
        """Yield what contradicts a claim, or could not be verified."""


class Check(NamedTuple):
    """One check."""

    wording: Wording
    rule: Rule


FAMILY_RULES: tuple[Mapping[str, Rule], ...] = (
    metadata.RULES,
    linkage.RULES,
    run_paths.RULES,
    floors.RULES,
    cuda.RULES,
    torch_abi.RULES,
    python_abi.RULES,
    hygiene.RULES,
)
_RULES = {code: rule for rules in FAMILY_RULES for code, rule in rules.items()}
CHECKS: Mapping[str, Check] = {w.code: Check(w, _RULES[w.code]) for w in WORDINGS}


def chosen_codes(selected: str, ignored: str) -> tuple[frozenset[str], frozenset[str]]:
    """Codes to run and codes to set aside, from comma-separated codes or beginnings of codes."""
    select = _expand(selected) if selected else frozenset(CHECKS)
    return select, _expand(ignored)


def _expand(text: str) -> frozenset[str]:
    codes: set[str] = set()
    for prefix in filter(None, (part.strip().upper() for part in text.split(","))):
        found = {code for code in CHECKS if code.startswith(prefix)}
        if not found:
            raise BadInputError(
                f"no check is called {prefix!r}; valid are {', '.join(CHECKS)} and their beginnings"
            )
        codes |= found
    return frozenset(codes)


def run_checks(package: Package, context: Context, codes: frozenset[str]) -> Iterator[Finding]:
    """Findings of one package, in the order of the table."""
    for code, check in CHECKS.items():
        if code in codes:
            for observation in check.rule(package, context):
                level = check.wording.level if observation.verified else Level.UNVERIFIED
                yield Finding(package.source, code, level, observation)
