"""The tables of the CUDA packages and the activation of nvcc; test_cuda.py tries the packages themselves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest
from extforge.channel import catalogue, catalogue_cuda, compilers
from extforge.channel.assembled import AssembledRow, plan_assembled
from extforge.channel.catalogue import Row

from .conftest import run

EVERY_ROW: tuple[Row | AssembledRow, ...] = (*catalogue_cuda.ROWS, *catalogue_cuda.ASSEMBLED)
NAMES = {row.name for row in (*EVERY_ROW, *catalogue.ROWS, *compilers.ROWS)}
NAMES |= {"cuda-driver-dev_linux-64", "sysroot_linux-64", "libgcc", "libstdcxx", "__cuda"}

USER = {"PATH": "/usr/bin:/bin", "CXX": "my-c++", "CONDA_PREFIX": "/opt/env"}
BUILD = USER | {
    "CONDA_PREFIX": "/b",
    "CONDA_BUILD": "1",
    "PREFIX": "/p",
    "BUILD_PREFIX": "/b",
    "HOST": "triplet",
}
TORCH_ARCHITECTURES = "7.5;8.0;8.6;9.0;10.0;12.0+PTX"
ARCHITECTURES = "75-real;80-real;86-real;89-real;90a-real;100f-real;103f-real;120a-real;121f-real;121-virtual"


def shell(*scripts: str, **environment: str) -> dict[str, str]:
    """Return the environment after sourcing scripts of the channel in a strict shell."""
    place = files("extforge.channel") / "cuda"
    lines = [f". '{place / script}'" for script in scripts]
    command = ["bash", "-euc", "\n".join([*lines, "env -0"])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pairs = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    return {name: value for name, value in pairs.items() if name not in ("_", "PWD", "SHLVL")}


def test_only_torch_is_there_twice() -> None:
    counts = Counter(row.name for row in (*EVERY_ROW, *catalogue.ROWS))
    assert {name: count for name, count in counts.items() if count > 1} == {"libtorch": 2, "pytorch": 2}


@pytest.mark.parametrize("row", EVERY_ROW, ids=lambda row: row.name)
def test_every_dependency_is_in_the_channel(row: Row | AssembledRow) -> None:
    assert {spec.split()[0] for spec in row.depends} <= NAMES


def test_another_cuda_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "extforge", "channel", tmp_path / "channel", "--cuda", "12.9")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no channel for CUDA 12.9 can be made: NVIDIA's wheels hold a whole compiler" in done.stderr
    assert not (tmp_path / "channel").exists()


def test_exports_are_grouped_by_strength() -> None:
    row = AssembledRow("x", "1", "x", exports=(("strong", "a"), ("weak", "b"), ("strong", "c")))
    assert plan_assembled(row).run_exports == {"strong": ["a", "c"], "weak": ["b"]}


def test_build_string_changes_with_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    row = AssembledRow("x", "1", "x", texts=(("bin/x", "x.sh"),))
    builds = []
    for text in ("one", "two"):
        monkeypatch.setattr("extforge.channel.assembled.read_text", lambda name, text=text: text)
        builds.append(plan_assembled(row).build)
    assert builds[0] != builds[1]


def test_activation_by_a_user() -> None:
    after = shell("activate-nvcc.sh", **USER, CFLAGS="-O2", LDFLAGS="-s", NVCC_PREPEND_FLAGS="-w")
    target = "/opt/env/targets/x86_64-linux"
    assert after["NVCC_PREPEND_FLAGS"] == "-w -ccbin=my-c++"
    assert after["CFLAGS"] == f"-O2 -I{target}/include -I{target}/include/cccl"
    assert after["LDFLAGS"] == f"-s -L{target}/lib -L{target}/lib/stubs"
    assert after["NVCC_APPEND_FLAGS"] == ""
    never = {"CUDA_HOME", "CUDA_PATH", "CUDACXX", "CUDAARCHS", "NVCC_GENCODE", "TORCH_CUDA_ARCH_LIST"}
    assert not never & set(after)


def test_activation_in_a_package_build() -> None:
    after = shell("activate-nvcc.sh", **BUILD, CMAKE_ARGS="-DA=B")
    p, b = "/p/targets/x86_64-linux", "/b/targets/x86_64-linux"
    assert after["CXXFLAGS"].split() == [
        f"-I{p}/include",
        f"-I{p}/include/cccl",
        f"-I{b}/include",
        f"-I{b}/include/cccl",
    ]
    assert after["LDFLAGS"].split() == [f"-L{p}/lib", f"-L{p}/lib/stubs", f"-L{b}/lib", f"-L{b}/lib/stubs"]
    assert after["NVCC_APPEND_FLAGS"].split() == [f"-I{p}/include", f"-L{p}/lib", f"-L{p}/lib/stubs"]
    assert after["CMAKE_ARGS"] == f"-DA=B -DCMAKE_FIND_ROOT_PATH=/p;/b/triplet/sysroot;{p};{b}"
    assert after["CUDAARCHS"] == ARCHITECTURES
    assert re.findall(r"code=sm_(\w+)", after["NVCC_GENCODE"]) == re.findall(r"(\w+)-real", ARCHITECTURES)
    assert after["NVCC_GENCODE"].endswith(" -gencode=arch=compute_121,code=compute_121")


def test_activation_keeps_a_users_architectures() -> None:
    after = shell("activate-nvcc.sh", **BUILD, CUDAARCHS="90", NVCC_GENCODE="-arch=sm_90")
    assert (after["CUDAARCHS"], after["NVCC_GENCODE"]) == ("90", "-arch=sm_90")


def test_a_blank_in_the_prefix_adds_no_flag_that_would_be_split() -> None:
    after = shell("activate-nvcc.sh", **(USER | {"CONDA_PREFIX": "/opt/my env"}), CFLAGS="-O2", LDFLAGS="-s")
    assert (after["CFLAGS"], after["LDFLAGS"]) == ("-O2", "-s")


@pytest.mark.parametrize("own", [{}, {"NVCC_PREPEND_FLAGS": "-w", "CUDAARCHS": "90"}], ids=["unset", "set"])
def test_deactivation_restores_what_conda_forge_restores(own: dict[str, str]) -> None:
    before = BUILD | own
    after = shell("activate-nvcc.sh", "deactivate-nvcc.sh", **before)
    for name in ("NVCC_PREPEND_FLAGS", "CUDAARCHS", "NVCC_GENCODE"):
        assert after.get(name) == before.get(name)
    assert not [name for name in after if name.lower().startswith(("_extforge", "extforge"))]


def test_without_a_compiler_activation_says_what_to_install() -> None:
    script = files("extforge.channel") / "cuda" / "activate-nvcc.sh"
    environment = {name: value for name, value in USER.items() if name != "CXX"}
    command = ["bash", "-c", f". '{script}'; echo $?"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert "install a C++ compiler (cxx-compiler)" in done.stderr


def test_libtorch_tells_its_architectures() -> None:
    assert shell("activate-libtorch.sh", **USER)["CF_TORCH_CUDA_ARCH_LIST"] == TORCH_ARCHITECTURES
    assert shell("activate-libtorch.sh", "deactivate-libtorch.sh", **USER) == USER


def test_libtorch_keeps_a_users_architectures() -> None:
    own = USER | {"CF_TORCH_CUDA_ARCH_LIST": "9.0"}
    assert shell("activate-libtorch.sh", "deactivate-libtorch.sh", **own) == own


def test_zsh_reads_the_activation_as_bash_does() -> None:
    zsh = next((f"{d}/zsh" for d in ("/usr/bin", "/bin") if os.access(f"{d}/zsh", os.X_OK)), None)
    if zsh is None:
        pytest.skip("no zsh in /usr/bin or /bin")
    script = files("extforge.channel") / "cuda" / "activate-nvcc.sh"
    done = subprocess.run(
        [zsh, "-fc", f". '{script}'; env -0"], env=BUILD, capture_output=True, text=True, check=True
    )
    pairs = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    expected = shell("activate-nvcc.sh", **BUILD)
    assert {name: pairs[name] for name in expected} == expected
