"""The command line: formats, choice of checks, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from extforge.audit.checks import CHECKS, chosen_codes
from extforge.channels import index_channel
from extforge.cli import run
from extforge.errors import BadInputError
from forging import STABLE, Spec, write_conda

Maker = Callable[..., Any]


@pytest.fixture
def good(cpu_package: Maker, tmp_path: Path) -> str:
    return str(write_conda(cpu_package(), tmp_path))


@pytest.fixture
def bad(cpu_package: Maker, tmp_path: Path) -> str:
    """One error (R01), one warning (H01)."""
    library = replace(STABLE, run_path="/home/x/lib", strings=("/home/x/y.cpp",))
    return str(write_conda(cpu_package(library, name="other"), tmp_path))


@pytest.fixture
def warned(cpu_package: Maker, tmp_path: Path) -> str:
    """One warning (H01)."""
    return str(write_conda(cpu_package(replace(STABLE, strings=("/home/x/y.cpp",)), name="third"), tmp_path))


def test_good_package_is_ok(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--strict", good]) == 0
    assert capsys.readouterr().out == "thing-1.0-cpu_0.conda: OK\n"


def test_bad_package_fails_in_text(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", bad]) == 1
    out = capsys.readouterr().out
    assert f"R01 error: {CHECKS['R01'].wording.sentence}\n    file     lib/libthing.so\n" in out
    assert "    claimed  RUNPATH /home/x/lib\n" in out
    assert f"    change   INSTALL_RPATH of libthing.so: {CHECKS['R01'].wording.cure}\n" in out
    assert out.endswith("other-1.0-cpu_0.conda: FAILED, 1 error, 1 warning\n")


def test_warning_passes_unless_strict(warned: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", warned]) == 0
    assert capsys.readouterr().out.endswith("third-1.0-cpu_0.conda: passed, 1 warning\n")
    assert run(["audit", "--strict", warned]) == 1
    assert capsys.readouterr().out.endswith("third-1.0-cpu_0.conda: FAILED, 1 warning\n")


def test_selected_checks_alone_run(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--select", "H,M", bad]) == 0
    assert "R01" not in capsys.readouterr().out


def test_ignored_findings_are_mentioned(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--strict", "--ignore", "R01,H", bad]) == 0
    assert capsys.readouterr().out == "other-1.0-cpu_0.conda: OK\nignored: H01, R01\n"


def test_json_states_every_field(bad: str, good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--format", "json", bad, good]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["failed"] is True
    assert report["packages"] == ["other-1.0-cpu_0.conda", "thing-1.0-cpu_0.conda"]
    first = report["findings"][0]
    assert first == {
        "package": "other-1.0-cpu_0.conda",
        "code": "M09",
        "family": "metadata",
        "level": "error",
        "sentence": CHECKS["M09"].wording.sentence,
        "file": "lib/libthing.so",
        "claimed": "installed by other-1.0-cpu_0.conda alone",
        "seen": "lib/libthing.so also in thing-1.0-cpu_0.conda",
        "change": "lib/libthing.so",
        "cure": CHECKS["M09"].wording.cure,
    }


def test_sarif_has_rules_and_results(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--format", "sarif", bad]) == 1
    log = json.loads(capsys.readouterr().out)
    (sarif_run,) = log["runs"]
    assert log["version"] == "2.1.0"
    assert [r["id"] for r in sarif_run["tool"]["driver"]["rules"]] == list(CHECKS)
    assert [(r["ruleId"], r["level"]) for r in sarif_run["results"]] == [("R01", "error"), ("H01", "warning")]
    location = sarif_run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert location == {"uri": "other-1.0-cpu_0.conda/lib/libthing.so"}


def test_explain_prints_sentence_and_cure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--explain", "T01"]) == 0
    wording = CHECKS["T01"].wording
    assert capsys.readouterr().out == f"T01 (torch ABI, error)\n{wording.sentence}\nCure: {wording.cure}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "no package given"),
        (["--explain", "X99"], 2, "no check is called 'X99'; valid are M01, M02"),
        (["--select", "Z", "x.conda"], 2, "no check is called 'Z'"),
        (["--archs", "sm_9000x", "x.conda"], 2, "architecture 'sm_9000x'"),
        (["none.conda"], 1, "none.conda does not exist"),
        (["--compare", "x.conda"], 2, "--compare takes two packages; 1 given"),
    ],
)
def test_misuse_is_told_in_one_line(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", *arguments]) == code
    err = capsys.readouterr().err
    assert err.startswith("extforge audit: ")
    assert words in err
    assert err.count("\n") == 1


def test_findings_that_differ_in_the_file_alone_are_one_block(
    cpu_package: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = cpu_package(replace(STABLE, run_path="/home/x"))
    files = {f"lib/lib{n}.so": content for n in range(3) for content in spec.files.values()}
    assert run(["audit", str(write_conda(replace(spec, files=files), tmp_path))]) == 1
    out = capsys.readouterr().out
    assert out.count("R01 error") == 1
    assert "    file     lib/lib0.so (and 2 more files)\n" in out
    assert "FAILED, 3 errors" in out


def test_a_channel_may_be_a_directory(
    good: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "channel" / "linux-64").mkdir(parents=True)
    for name, files in (("libtorch", {"lib/libtorch_cpu.so": b"x"}), ("pytorch", {})):
        spec = Spec(name=name, version="2.13.0", depends=(), files=files)
        write_conda(spec, tmp_path / "channel" / "linux-64")
    index_channel(tmp_path / "channel")
    monkeypatch.chdir(tmp_path)
    assert run(["audit", "--strict", "--channel", "./channel", good]) == 0
    assert capsys.readouterr().out == "thing-1.0-cpu_0.conda: OK\n"
    assert run(["audit", "--channel", "./nowhere", good]) == 2
    assert "no directory nowhere (given as a channel); valid: URL, dir" in capsys.readouterr().err


def test_compare_says_byte_equal(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--compare", good, good]) == 0
    assert capsys.readouterr().out == "byte-equal\n"


def test_compare_lists_differences(good: str, warned: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--compare", good, warned]) == 1
    out = capsys.readouterr().out
    assert "lib/libthing.so: file 644, " in out
    assert out.endswith("differences\n")


def test_names_with_escapes_are_printed_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a\x1b[2J").mkdir()
    assert run(["audit", str(tmp_path / "a\x1b[2J")]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_codes_are_chosen_by_their_beginnings() -> None:
    selected, ignored = chosen_codes("r, H01", "M0")
    assert selected == {"R01", "R02", "R03", "R04", "R05", "H01"}
    assert ignored == {f"M0{n}" for n in range(1, 10)}


def test_unknown_code_lists_the_valid_ones() -> None:
    with pytest.raises(BadInputError, match=r"no check is called 'Q'; valid are M01, .* H08"):
        chosen_codes("", "Q")
