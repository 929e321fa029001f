"""What is refused and what is warned of, each with the words a user gets."""

from __future__ import annotations

import pytest
from extforge.toolchain.model import ToolchainConflict


def half_updated(world):
    env = world.conda(world.top / "env", "13.0.88")
    world.headers(env / "targets/x86_64-linux/include", "12.9.86")
    world.inside(env)


def other_major(world):
    world.torch("2.13.0", cuda="12.9")
    world.toolkit(world.sysroot / "usr/local/cuda", "13.0.88")


def missing_override(world):
    world.environ["TRITON_PTXAS_PATH"] = world.environ["TRITON_PTXAS_BLACKWELL_PATH"] = "/nonexistent/ptxas"


REFUSED = {
    "cuda-versions-mixed": (
        half_updated,
        r"holds parts of several CUDA releases: nvcc 13\.0\.88 .* cuda_include 12\.9",
    ),
    "torch-cuda-differs": (other_major, r"torch was built with CUDA 12\.9, the toolkit is 13\.0\.88"),
    "triton-override-missing": (missing_override, "TRITON_PTXAS_PATH=/nonexistent/ptxas does not exist"),
}


@pytest.mark.parametrize("code", REFUSED)
def test_a_contradiction_is_refused(world, code):
    stage, message = REFUSED[code]
    stage(world)
    with pytest.raises(ToolchainConflict, match=message) as caught:
        world.resolve()
    assert f"refused [{code}]" in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("name", "reason"), [("absent", "there is no such file"), ("plain", "lacks the permission")]
)
def test_an_override_that_does_not_work_is_refused(world, name, reason):
    world.file(world.top / "plain")
    with pytest.raises(ToolchainConflict, match=f"the ptxas named explicitly cannot be used: .*{reason}"):
        world.resolve(overrides={"ptxas": str(world.top / name)})


def other_minor(world):
    world.torch("2.13.0", cuda="13.1")
    world.toolkit(world.sysroot / "usr/local/cuda", "13.0.88")


def two_homes(world):
    first, second = world.toolkit(world.top / "a"), world.toolkit(world.top / "b")
    world.environ |= {"CUDA_HOME": str(first), "CUDA_PATH": str(second)}


def foreign_cpath(world):
    world.inside(world.conda(world.top / "env"))
    world.environ["CPATH"] = str(world.toolkit(world.top / "module") / "include")


def other_ccbin(world):
    world.environ["NVCC_PREPEND_FLAGS"] = "-O3 -ccbin=x86_64-conda-linux-gnu-c++"


def half_override(world):
    world.environ["TRITON_PTXAS_PATH"] = str(world.program(world.top / "ptxas", "#!/bin/sh\n"))


def network_home(world):
    world.file(world.sysroot / "proc/mounts", f"server:/home {world.top}/home nfs4 rw 0 0\n")


def newer_bundle(world):
    world.toolkit(world.sysroot / "usr/local/cuda", "13.0.88")
    bundle = world.site / "triton/backends/nvidia/bin"
    world.tools(bundle, bundle, "13.4.59", nvcc=False)
    (bundle / "ptxas").rename(bundle / "ptxas-blackwell")


WARNED = {
    "torch-cuda-differs": (other_minor, "warning", "torch was built with CUDA 13.1, the toolkit is 13.0.88"),
    "cuda-variables-differ": (two_homes, "warning", "differ; torch takes the first, others the second"),
    "foreign-search-path": (foreign_cpath, "warning", "CPATH holds another CUDA toolkit"),
    "other-ccbin": (other_ccbin, "warning", "sets the host compiler x86_64-conda-linux-gnu-c++"),
    "triton-override-half": (half_override, "warning", "only one of TRITON_PTXAS_PATH and"),
    "cache-unsuitable": (network_home, "warning", "lies on nfs4"),
    "triton-bundle-newer": (newer_bundle, "note", "bundles ptxas 13.4.59, but is told to use 13.0.88"),
    "no-cuda": (lambda world: None, "note", "no CUDA toolkit was found"),
}


@pytest.mark.parametrize("code", WARNED)
def test_a_doubtful_circumstance_is_reported(world, finding_of, code):
    stage, level, text = WARNED[code]
    stage(world)
    finding = finding_of(world.resolve(), code)
    assert finding.level == level
    assert text in finding.text


@pytest.mark.parametrize("code", WARNED)
def test_a_sound_environment_gives_none_of_these(world, code):
    world.inside(world.conda(world.top / "env"))
    world.torch("2.13.0", cuda="13.0")
    assert code not in [finding.code for finding in world.resolve().findings]


def test_a_search_variable_that_names_the_root_itself_is_fine(world):
    env = world.conda(world.top / "env")
    world.inside(env).environ["CPATH"] = str(env / "targets/x86_64-linux/include")
    assert "foreign-search-path" not in [finding.code for finding in world.resolve().findings]


def test_a_cpu_torch_beside_any_toolkit_is_no_conflict(world):
    world.torch("2.13.0+cpu")
    world.toolkit(world.sysroot / "usr/local/cuda", "12.1.66")
    assert world.resolve().root.version == "12.1.66"


HINTS = {
    "conda": (
        lambda w: w.inside(w.conda(w.top / "env", nvcc=False)),
        "conda install -p {top}/env -c conda-forge cuda-nvcc=13.0",
    ),
    "wheel": (
        lambda w: w.wheel(w.site, nvcc=False),
        "{top}/python/bin/python -m pip install 'nvidia-cuda-nvcc==13.0.*'",
    ),
    "wheels": (
        lambda w: w.wheels(w.site),
        "export EXTFORGE_CUDA_ROOT=DIRECTORY, a toolkit 12.9 that holds it",
    ),
}


@pytest.mark.parametrize("kind", HINTS)
def test_a_missing_nvcc_comes_with_the_command_that_provides_it(world, kind):
    stage, hint = HINTS[kind]
    stage(world)
    assert world.survey().get("nvcc").hint == hint.format(top=world.top)
