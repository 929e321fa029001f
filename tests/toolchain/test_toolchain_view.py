"""The CUDA_HOME-shaped directory."""

from __future__ import annotations

import json
import os
import subprocess
import threading

import pytest
from extforge.errors import ConflictError, FailedCommand, NotFoundError
from extforge.toolchain.stub import function_names
from extforge.toolchain.system import System
from extforge.toolchain.view import build_view, plan_view, require_view

KINDS = {
    "conda": lambda world: world.inside(world.conda(world.top / "env")),
    "wheel": lambda world: world.wheel(world.site),
    "split wheels": lambda world: world.wheels(world.site),
    "classic": lambda world: world.toolkit(world.sysroot / "usr/local/cuda"),
    "debian": lambda world: world.environ.update(CUDA_HOME=str(world.split(world.top / "usr"))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_root_gets_the_one_shape(world, kind):
    KINDS[kind](world)
    view = require_view(world.resolve())
    expected = {
        "include/cuda.h",
        "include/cuda_runtime.h",
        "lib64/libcudart.so",
        "lib64/libcudart_static.a",
        "lib/libcudart.so",
        "nvvm/libdevice/libdevice.10.bc",
        "bin/ptxas",
    }
    expected |= {"bin/nvcc", "bin/nvcc.profile"} if kind != "split wheels" else set()
    expected |= {"lib64/stubs/libcuda.so", "lib64/stubs/libcuda.so.1"} if "wheel" not in kind else set()
    assert {name for name in expected if (view.path / name).is_file()} == expected


def test_nvcc_is_no_symbolic_link_and_its_profile_is_plain(world):
    """Through a link nvcc would read the profile beside the link's target."""
    KINDS["conda"](world)
    nvcc = require_view(world.resolve()).path / "bin/nvcc"
    assert not nvcc.is_symlink()
    assert nvcc.samefile(world.top / "env/bin/nvcc")
    assert "TOP = $(_HERE_)/..\n" in nvcc.with_name("nvcc.profile").read_text()


def test_nvcc_is_copied_where_it_cannot_be_linked(world, monkeypatch):
    def refuse(source, target):
        raise OSError(18, "Invalid cross-device link")

    KINDS["conda"](world)
    monkeypatch.setattr(os, "link", refuse)
    nvcc = require_view(world.resolve()).path / "bin/nvcc"
    assert nvcc.read_bytes() == (world.top / "env/bin/nvcc").read_bytes()
    assert os.access(nvcc, os.X_OK)


def test_only_cuda_is_taken_from_a_directory_that_is_shared_with_the_system(world):
    KINDS["debian"](world)
    view = require_view(world.resolve()).path
    assert not (view / "include/stdlib.h").exists()
    assert not (view / "lib64/libc.so").exists()


def test_split_wheels_are_merged(world):
    KINDS["split wheels"](world)
    world.torch("2.13.0", cuda="12.9")
    world.file(world.wheel(world.site, "13.0.88") / "include/only_in_13.h")
    include = require_view(world.resolve()).path / "include"
    assert not (include / "only_in_13.h").exists()
    assert (include / "cublas_v2.h").is_file()
    assert (include / "cuda_runtime.h").is_file()


def test_the_two_prefixes_of_a_package_build_are_merged(world):
    build, host = world.conda(world.top / "build"), world.conda(world.top / "host", nvcc=False)
    (host / "targets/x86_64-linux/include/crt/host_config.h").unlink()
    world.file(host / "targets/x86_64-linux/include/cublas_v2.h")
    world.environ |= {"CONDA_BUILD": "1", "PREFIX": str(host), "BUILD_PREFIX": str(build)}
    include = require_view(world.resolve()).path / "include"
    assert (include / "crt/host_config.h").resolve().is_relative_to(build)
    assert (include / "cuda_runtime.h").resolve().is_relative_to(host)
    assert (include / "cublas_v2.h").is_file()


def test_the_same_content_gives_the_same_view_and_other_content_another(world):
    KINDS["conda"](world)
    first = require_view(world.resolve())
    stamp = first.path.stat().st_mtime_ns
    assert require_view(world.resolve()) == first
    assert first.path.stat().st_mtime_ns == stamp
    world.conda(world.top / "env2", "13.1.1")
    assert require_view(world.resolve(cuda=str(world.top / "env2"))).path != first.path


def test_a_new_package_in_the_root_gives_a_new_view(world):
    KINDS["conda"](world)
    first = plan_view(world.resolve())
    world.library(world.top / "env/targets/x86_64-linux/lib/libcublas.so.13")
    assert plan_view(world.resolve()).path != first.path


def test_many_processes_may_build_one_view(world):
    KINDS["conda"](world)
    toolchain = world.resolve()
    view = plan_view(toolchain)
    failures = []

    def build():
        try:
            build_view(toolchain, view)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(path.name for path in view.path.parent.iterdir()) == [view.path.name]


def test_an_interrupted_build_leaves_nothing(world, monkeypatch):
    KINDS["conda"](world)
    monkeypatch.setattr("extforge.toolchain.view.fill_stubs", lambda *arguments: 1 / 0)
    view = plan_view(world.resolve())
    with pytest.raises(ZeroDivisionError):
        build_view(world.resolve(), view)
    assert list(view.path.parent.iterdir()) == []


def test_a_directory_that_holds_something_else_is_not_touched(world):
    KINDS["conda"](world)
    place = world.file(world.top / "precious/thesis.tex").parent
    with pytest.raises(ConflictError, match="exists and is no view of extforge"):
        require_view(world.resolve(), directory=place)
    assert [path.name for path in place.iterdir()] == ["thesis.tex"]


def test_an_empty_directory_may_become_the_view(world):
    KINDS["conda"](world)
    place = world.top / "here"
    place.mkdir()
    marker = json.loads(
        (require_view(world.resolve(), directory=place).path / "extforge-view.json").read_text()
    )
    assert marker["root"] == str(world.top / "env")


def test_without_a_toolkit_there_is_nothing_to_view(world):
    world.environ["CUDA_HOME"] = "/gone"
    with pytest.raises(
        NotFoundError, match=r"no CUDA toolkit to make a view of .*/gone: there is no such file"
    ):
        require_view(world.survey())


# --- the generated stub ------------------------------------------------------------------------------------
CUDA_H = """\
#define CUDA_VERSION 13000
#define cuMemAlloc cuMemAlloc_v2
typedef enum cudaError_enum { CUDA_SUCCESS = 0 } CUresult;
#define CUDAAPI
CUresult CUDAAPI cuInit(unsigned int flags);
CUresult CUDAAPI cuMemAlloc(void **p, unsigned long n);
typedef CUresult (CUDAAPI *PFN_cuInit)(unsigned int flags);
CUresult cuStreamGetId(int s,
                       unsigned long long *id);
"""


@pytest.fixture
def stubbed(world):
    world.wheel(world.site)
    world.file(world.site / "nvidia/cu13/include/cuda.h", CUDA_H)
    world.environ |= {"CC": "/usr/bin/gcc", "CXX": "/usr/bin/g++", "PATH": "/usr/bin:/bin"}
    return world


def test_the_functions_of_the_header_are_named_as_the_linker_will_ask(stubbed):
    names = function_names(System(stubbed.environ), "/usr/bin/gcc", stubbed.site / "nvidia/cu13/include")
    assert names == ["cuInit", "cuMemAlloc_v2", "cuStreamGetId"]


def test_a_stub_is_generated_only_when_asked(stubbed):
    toolchain = stubbed.resolve()
    assert not plan_view(toolchain).stubbed
    assert not require_view(toolchain).stubs.exists()
    assert "TRITON_LIBCUDA_PATH" not in toolchain.environ()
    assert plan_view(stubbed.resolve(generate_stub=True)).path != plan_view(toolchain).path


def test_a_program_links_against_the_generated_stub_and_asks_for_the_driver(stubbed):
    view = require_view(stubbed.resolve(generate_stub=True))
    source = stubbed.file(
        stubbed.top / "main.c", "int cuInit(unsigned); int main(void) { return cuInit(0); }\n"
    )
    program = stubbed.top / "main"
    for name in ("-lcuda", "-l:libcuda.so.1"):
        subprocess.run(["gcc", source, f"-L{view.stubs}", name, "-o", program], check=True)
        dynamic = subprocess.run(
            ["readelf", "-d", program], capture_output=True, text=True, check=True
        ).stdout
        assert "[libcuda.so.1]" in dynamic
        assert "RPATH" not in dynamic
        assert "RUNPATH" not in dynamic
    environ = {"LD_LIBRARY_PATH": str(view.stubs)}
    assert subprocess.run([program], env=environ, check=False).returncode == 34


def test_a_generated_stub_is_an_answer_like_any_other(stubbed):
    toolchain = stubbed.resolve(generate_stub=True)
    found = toolchain["libcuda"]
    assert (found.via, found.path) == ("generated", plan_view(toolchain).stubs / "libcuda.so")
    assert toolchain.flags("cuda").ldflags == (f"-L{plan_view(toolchain).stubs}",)
    assert toolchain.environ()["TRITON_LIBCUDA_PATH"] == str(plan_view(toolchain).stubs)
    assert not found.path.exists()
    require_view(toolchain)
    assert found.path.is_file()


def test_a_stub_of_the_root_is_preferred_to_a_generated_one(world):
    KINDS["conda"](world)
    assert world.resolve(generate_stub=True)["libcuda"].via == "conda"


def test_a_header_that_declares_nothing_gives_no_stub(stubbed):
    stubbed.file(stubbed.site / "nvidia/cu13/include/cuda.h", "#define CUDA_VERSION 13000\n")
    with pytest.raises(FailedCommand, match=r"-E .*cuda\.h named no driver function"):
        require_view(stubbed.resolve(generate_stub=True))
