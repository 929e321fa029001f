"""The page on the audit lists exactly the checks that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from extforge.audit.checks import CHECKS, FAMILY_RULES
from extforge.audit.wording import FAMILIES, WORDINGS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "audit.md"


def documented_rows() -> list[str]:
    """The table as it has to be; paste it into the page when a check has changed."""
    return [f"| {w.code} | {w.family} | {w.level.value} | {w.sentence} | {w.cure} |" for w in WORDINGS]


def test_page_lists_the_codes() -> None:
    if not PAGE.exists():
        pytest.skip("the sources are not at hand")
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| [A-Z]\d\d \|", line)]
    assert rows == documented_rows()


def test_codes_are_sorted_by_family_and_number() -> None:
    order = [(list(FAMILIES).index(code[0]), code) for code in CHECKS]
    assert order == sorted(order)


def test_every_wording_has_one_rule() -> None:
    codes = [code for rules in FAMILY_RULES for code in rules]
    assert sorted(codes) == sorted(w.code for w in WORDINGS)


@pytest.mark.parametrize("wording", WORDINGS, ids=lambda w: w.code)
def test_wording_is_a_sentence(wording: object) -> None:
    for text in (getattr(wording, "sentence", ""), getattr(wording, "cure", "")):
        assert text.endswith(".")
        assert text[0].isupper()
        assert "|" not in text
