"""The screen, its exit codes, and the probes that compile, link and load for real."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest
from extforge.toolchain import interpreter
from extforge.toolchain.commands import doctor
from extforge.toolchain.model import Finding, Missing
from extforge.toolchain.probe import Outcome, probe_findings, run_probes
from extforge.toolchain.screen import show
from rich.console import Console


@pytest.fixture
def real(world):
    """This interpreter and this machine's compilers, in an otherwise empty world."""
    world.python = interpreter.current()
    world.environ |= {"PATH": "/usr/bin:/bin"}
    return world


def printed(toolchain, findings, outcomes=()):
    console = Console(width=240, record=True, file=open("/dev/null", "w"), highlight=False)  # noqa: PTH123, SIM115
    show(console, toolchain, findings, outcomes)
    return console.export_text()


def test_the_screen_of_a_sound_environment(world):
    world.inside(world.conda(world.top / "env"))
    world.environ["CONDA_PREFIX"] = str(world.top / "env")
    world.torch("2.13.0", cuda="13.0")
    world.program(world.top / "bin/ninja", "#!/bin/sh\necho 1.13.0\n")
    toolchain = world.survey()
    text = printed(toolchain, toolchain.findings)
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.replace(str(world.top), "TOP").splitlines()]
    expected = [
        "python 3.11.7, x86_64",
        "$PREFIX TOP/env conda environment, via interpreter",
        "$ROOT TOP/env conda, CUDA 13.0.88, via conda",
        "✓ C compiler 12.2.0 TOP/bin/cc via path",
        "✓ torch 2.13.0 (CUDA 13.0) $PREFIX/lib/python3.11/site-packages/torch via default",
        "✓ nvcc 13.0.88 $PREFIX/bin/nvcc",
        "✓ headers 13.0 $PREFIX/targets/x86_64-linux/include",
        "✓ to link $PREFIX/targets/x86_64-linux/lib/stubs/libcuda.so",
        "- to run missing install NVIDIA's driver; without a GPU none is needed",
        "ready",
    ]
    assert [line for line in expected if line not in lines] == []
    assert "findings" not in text


def test_the_screen_names_what_was_overruled_what_is_wrong_and_what_mends_it(world):
    world.inside(world.conda(world.top / "env", nvcc=False))
    world.environ |= {"CUDA_HOME": str(world.toolkit(world.top / "old", "11.8.89")), "PATH": "/nonexistent"}
    toolchain = world.survey()
    text = re.sub(r"\s+", " ", printed(toolchain, toolchain.findings).replace(str(world.top), "TOP"))
    assert "not taken as the CUDA root" in text
    assert "TOP/old: is overruled by an earlier answer (via env:CUDA_HOME: ctk 11.8.89)" in text
    assert "! nvcc is missing in TOP/env [missing-nvcc] TOP/env/bin/nvcc: there is no such file" in text
    assert "→ conda install -p TOP/env -c conda-forge cuda-nvcc=13.0" in text
    assert "not ready 2 errors, 3 warnings, 1 note" in text
    assert text.index("[missing-cc]") < text.index("[missing-nvcc]") < text.index("[not-activated]")


def test_the_screen_lists_probes(world):
    outcomes = [Outcome("c++", "passed", "works"), Outcome("cuda", "failed", "nvcc x.cu\nerror")]
    toolchain = world.survey()
    text = printed(toolchain, probe_findings(outcomes), outcomes)
    assert "✓  c++   works" in text
    assert "probe cuda failed  [probe-cuda]" in text
    assert "nvcc x.cu" in text


@pytest.mark.parametrize(
    ("findings", "strict", "code"),
    [
        ([], False, 0),
        ([("x", "note")], True, 0),
        ([("x", "warning")], False, 0),
        ([("x", "warning")], True, 1),
        ([("x", "error")], False, 1),
        ([("probe-cuda", "error")], False, 4),
        ([("x", "refused"), ("probe-cuda", "error")], False, 3),
    ],
)
def test_exit_codes(findings, strict, code):
    assert doctor.exit_code([Finding(name, level, "text") for name, level in findings], strict) == code


def test_json_holds_the_document_the_probes_and_the_findings(capsys):
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    doctor.run(parser.parse_args(["--json"]))
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert document["probes"] == []
    assert all(
        set(finding) == {"code", "level", "text", "fix", "evidence"} for finding in document["findings"]
    )


# --- probes ----------------------------------------------------------------------------------------------
def test_host_probes_compile_link_and_load(real):
    outcomes = {outcome.name: outcome for outcome in run_probes(real.survey())}
    assert [outcomes[name].state for name in ("c++", "python", "cache")] == ["passed"] * 3, outcomes
    assert outcomes["cuda"].state == "skipped"
    assert outcomes["cuda"].text.startswith("missing: nvcc"), "the environment may hold the rest"


def test_a_compiler_that_does_not_compile_fails_its_probes(real):
    broken = real.program(real.top / "broken", "#!/bin/sh\necho 'fatal: no licence' >&2; exit 9\n")
    real.environ |= {"CC": str(broken), "CXX": str(broken)}
    outcomes = {outcome.name: outcome for outcome in run_probes(real.survey())}
    assert (outcomes["c++"].state, outcomes["python"].state) == ("failed", "failed")
    assert "fatal: no licence" in outcomes["c++"].text
    assert probe_findings(list(outcomes.values()))[0].code == "probe-c++"


def test_the_loader_is_asked_for_the_driver_and_must_agree(real):
    """A library that the file system suggests and the loader does not take is a failure."""
    real.driver("/usr/local/nvidia/lib64")
    toolchain = real.survey()
    assert not isinstance(toolchain.get("libcuda_runtime"), Missing)
    outcome = next(outcome for outcome in run_probes(toolchain) if outcome.name == "driver-load")
    assert outcome.state == "failed"
    assert "libcuda.so.1" in outcome.text


def test_the_loader_maps_the_driver_of_ld_library_path(real):
    directory = real.library(real.top / "driver/libcuda.so.1").parent
    real.environ["LD_LIBRARY_PATH"] = str(directory)
    outcome = next(outcome for outcome in run_probes(real.survey()) if outcome.name == "driver-load")
    assert outcome == Outcome("driver-load", "passed", f"the loader maps {directory}/libcuda.so.1")


def test_a_loader_that_takes_another_driver_is_reported(real):
    directory = real.library(real.top / "driver/libcuda.so.1").parent
    real.environ["LD_LIBRARY_PATH"] = str(directory)
    other = real.library(real.top / "other/libcuda.so.1")
    toolchain = real.survey(overrides={"libcuda_runtime": str(other)})
    outcome = next(outcome for outcome in run_probes(toolchain) if outcome.name == "driver-load")
    assert outcome.state == "failed"
    assert outcome.text == f"the loader takes {directory}/libcuda.so.1, the file system suggests {other}"


def test_probes_leave_nothing_behind(real, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    before = sorted(Path(real.environ["HOME"]).iterdir())
    list(run_probes(real.survey()))
    assert sorted(Path(real.environ["HOME"]).iterdir()) == before
