"""The real things: NVIDIA's wheels, a conda-forge replica made of them, this machine's toolkit."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from extforge.toolchain import interpreter
from extforge.toolchain.catalogue import WHEEL_COMPONENTS
from extforge.toolchain.checks import COMPILER_BOUNDS
from extforge.toolchain.kinds import recognise
from extforge.toolchain.outputs import cmake_script, cmake_variables, environment
from extforge.toolchain.probe import read_dynamic, run_probes
from extforge.toolchain.stub import function_names
from extforge.toolchain.view import require_view

KERNEL = """\
#include <cuda_runtime.h>
#include <cuda/std/array>
__global__ void twice(float* x) { x[threadIdx.x] *= 2; }
extern "C" int probe() { twice<<<1, 1>>>(nullptr); return cudaGetLastError() == cudaSuccess; }
"""
CMAKE_LISTS = """\
cmake_minimum_required(VERSION 3.20)
project(probe LANGUAGES CXX CUDA)
find_package(CUDAToolkit REQUIRED)
add_library(probe SHARED probe.cu)
target_link_libraries(probe PRIVATE CUDA::cudart CUDA::cuda_driver)
message(STATUS "ROOT ${CUDAToolkit_ROOT} INCLUDE ${CUDAToolkit_INCLUDE_DIRS} VERSION ${CUDAToolkit_VERSION}")
"""
# The profile that conda-forge patches: everything below targets/<target>.
CONDA_PROFILE = """\
TOP = $(_HERE_)/../targets/x86_64-linux
CICC_PATH = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
LD_LIBRARY_PATH += $(TOP)/lib:
PATH += $(CICC_PATH):$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
SYSTEM_INCLUDES += "-isystem" "$(TOP)/include/cccl" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib/stubs" "-L$(TOP)/lib"
"""


@pytest.fixture
def real(world):
    """This interpreter and this machine's compilers, in an otherwise empty world with a blank in its path."""
    world.python = interpreter.current()
    home = world.top / "my home"
    home.mkdir()
    world.environ |= {"PATH": "/usr/bin:/bin", "HOME": str(home)}
    return world


@pytest.fixture
def on_wheels(real, real_wheels):
    real.environ["EXTFORGE_CUDA_ROOT"] = str(real_wheels / "nvidia/cu13")
    return real


@pytest.fixture(scope="session")
def replica(real_wheels, tmp_path_factory) -> Path:
    """A conda-forge prefix with a real nvcc, in a path with a blank."""
    prefix, wheel = tmp_path_factory.mktemp("replica") / "my env", real_wheels / "nvidia/cu13"
    target = prefix / "targets/x86_64-linux"
    for source, place in (
        ("bin", prefix / "bin"),
        ("nvvm", prefix / "nvvm"),
        ("include", target / "include"),
    ):
        shutil.copytree(wheel / source, place, copy_function=os.link)
    shutil.copytree(wheel / "lib", target / "lib", copy_function=os.link)
    (target / "lib/libcudart.so").symlink_to("libcudart.so.13")
    (prefix / "bin/nvcc.profile").unlink()
    (prefix / "bin/nvcc.profile").write_text(CONDA_PROFILE)
    (target / "bin").mkdir()
    (target / "bin/nvcc").symlink_to("../../../bin/nvcc")
    (target / "nvvm").symlink_to("../../nvvm")
    (prefix / "conda-meta").mkdir()
    return prefix


def compile_kernel(world, nvcc, *flags):
    source = world.file(world.top / "probe.cu", KERNEL)
    command = [
        nvcc,
        "-arch=sm_90",
        "-shared",
        "-Xcompiler",
        "-fPIC",
        *flags,
        source,
        "-o",
        world.top / "probe.so",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=world.environ)


def assert_view_works(world):
    """nvcc from the view compiles with CCCL and links the shared runtime and the driver."""
    view = require_view(world.resolve(generate_stub=True))
    done = compile_kernel(
        world, view.path / "bin/nvcc", "-cudart", "shared", "-lcuda", "-Xlinker", "--no-as-needed"
    )
    assert done.returncode == 0, done.stderr
    needed, rpaths = read_dynamic(world.top / "probe.so")
    assert {"libcudart.so.13", "libcuda.so.1"} <= set(needed)
    assert rpaths == []


# --- wheels ------------------------------------------------------------------------------------------------
@pytest.mark.wheels
def test_the_wheels_alone_compile_and_do_not_link(on_wheels):
    """Why the view is needed; when this fails, NVIDIA has mended the wheels."""
    done = compile_kernel(on_wheels, on_wheels.resolve()["nvcc"].path, "-cudart", "shared")
    assert done.returncode != 0
    assert "cannot find -lcudart" in done.stderr


@pytest.mark.wheels
def test_the_view_of_the_wheels_compiles_and_links(on_wheels):
    assert_view_works(on_wheels)


@pytest.mark.wheels
def test_cmake_builds_with_the_view_of_the_wheels(on_wheels):
    """FindCUDAToolkit finds nothing in the wheels themselves: no lib64, no plain names."""
    if shutil.which("cmake", path="/usr/bin:/bin") is None:
        pytest.skip("cmake is not installed")
    toolchain = on_wheels.resolve(generate_stub=True)
    view = require_view(toolchain)
    project = on_wheels.file(on_wheels.top / "a project/CMakeLists.txt", CMAKE_LISTS).parent
    on_wheels.file(project / "probe.cu", KERNEL.replace("cuda/std/array", "cuda.h"))
    on_wheels.file(project / "init.cmake", cmake_script(cmake_variables(toolchain, view, ("9.0",))))
    environ = on_wheels.environ
    commands = (["cmake", "-C", "init.cmake", "-S", ".", "-B", "build"], ["cmake", "--build", "build"])
    for command in commands:
        done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    cache = (project / "build/CMakeCache.txt").read_text()
    assert f"CUDA_CUDART:FILEPATH={view.path}/lib64/libcudart.so" in cache
    assert "/usr/local/cuda" not in cache
    assert f"CUDA_cuda_driver_LIBRARY:FILEPATH={view.path}/lib64/stubs/libcuda.so" in cache


@pytest.mark.wheels
def test_pathfinder_answers_from_the_view_too(on_wheels):
    if any((Path(site) / "nvidia/cu13/bin").is_dir() for site in on_wheels.python.site_packages):
        pytest.skip("this interpreter has CUDA wheels of its own, which cuda-pathfinder puts first")
    view = require_view(on_wheels.resolve())
    script = (
        "import json; from cuda import pathfinder as p;"
        "print(json.dumps([p.find_nvidia_header_directory('cudart'), p.find_nvidia_binary_utility('nvcc'),"
        "p.find_bitcode_lib('device')]))"
    )
    environ = {**on_wheels.environ, "CUDA_HOME": str(view.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    headers, nvcc, libdevice = json.loads(done.stdout)
    root = on_wheels.resolve().root.path
    assert Path(headers, "cuda_runtime.h").resolve() == root / "include/cuda_runtime.h"
    assert nvcc == str(view.path / "bin/nvcc")
    assert Path(libdevice).resolve() == root / "nvvm/libdevice/libdevice.10.bc"


@pytest.mark.wheels
def test_the_driver_functions_of_the_real_header(on_wheels):
    toolchain = on_wheels.resolve()
    names = function_names(toolchain.system, toolchain["cc"].path, toolchain["cuda_include"].path)
    assert len(names) > 400
    assert {"cuInit", "cuLaunchKernelEx", "cuTensorMapEncodeTiled", "cuMemAlloc_v2"} <= set(names)


@pytest.mark.wheels
def test_the_bound_on_gcc_is_read_from_the_real_header(on_wheels):
    header = on_wheels.resolve()["cuda_include"].path / "crt/host_config.h"
    found = {family: re.search(pattern, header.read_text())[1] for family, pattern in COMPILER_BOUNDS.items()}
    assert found == {"gcc": "15", "clang": "21"}


def test_our_wheel_layouts_agree_with_the_catalogue_of_pathfinder():
    """Every toolkit directory that cuda-pathfinder knows in wheels lies in a root that we recognise."""
    from cuda.pathfinder._headers.header_descriptor_catalog import HEADER_DESCRIPTOR_CATALOG

    if tuple(map(int, version("cuda-pathfinder").split(".")[:2])) < (1, 5):
        pytest.skip("this cuda-pathfinder is older than the one extforge asks for")
    toolkit = [spec for spec in HEADER_DESCRIPTOR_CATALOG if spec.packaged_with == "ctk"]
    for directory in {place.split("/")[1] for spec in toolkit for place in spec.site_packages_dirs}:
        kind, _ = recognise(Path("/site-packages/nvidia") / directory)
        assert kind == "wheel" or not directory[-1].isdigit(), directory
    assert {"cuda_nvcc", "cuda_runtime", "cuda_cccl"} <= set(WHEEL_COMPONENTS)


# --- a conda-forge prefix ----------------------------------------------------------------------------------
@pytest.mark.wheels
def test_the_view_of_a_conda_prefix_compiles_and_links(real, replica):
    real.environ["EXTFORGE_CUDA_ROOT"] = str(replica)
    assert real.resolve().root.kind == "conda"
    assert_view_works(real)


@pytest.mark.wheels
@pytest.mark.parametrize("home", [".", "targets/x86_64-linux"])
def test_no_value_of_cuda_home_works_in_a_conda_prefix_by_itself(real, replica, home):
    """pytorch#144690, cupy#9920: one lacks the headers, the other an nvcc that finds its profile."""
    root = replica / home
    works = compile_kernel(real, root / "bin/nvcc", "-cudart", "shared").returncode == 0
    assert not (works and (root / "include/cuda_runtime.h").is_file())


@pytest.mark.wheels
def test_torch_finds_headers_and_libraries_in_the_view(real, replica):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    real.environ["EXTFORGE_CUDA_ROOT"] = str(replica)
    toolchain = real.resolve()
    environ = {**real.environ, **environment(toolchain, require_view(toolchain))}
    script = (
        "import json; from torch.utils import cpp_extension as c;"
        "c.CUDA_HOME = c._find_cuda_home();"  # a CPU build of torch does not look for it by itself
        "print(json.dumps([c.include_paths('cuda'), c.library_paths('cuda'), c.CUDA_HOME]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    includes, libraries, home = json.loads(done.stdout)
    assert home == environ["CUDA_HOME"]
    assert any((Path(place) / "cuda_runtime.h").is_file() for place in includes)
    assert any((Path(place) / "libcudart.so").is_file() for place in libraries)


# --- this machine's toolkit --------------------------------------------------------------------------------
@pytest.mark.system_cuda
def test_a_wrapper_script_on_path_leads_to_the_real_toolkit(real, system_toolkit):
    own = real.resolve().root
    if own is not None and own.via == "conda":
        pytest.skip("this environment has a CUDA of its own, which comes first")
    wrapper = real.program(real.top / "wrapper/nvcc", f'#!/bin/sh\nexec {system_toolkit}/bin/nvcc "$@"\n')
    real.environ["PATH"] = f"{wrapper.parent}:/usr/bin:/bin"
    toolchain = real.resolve()
    assert (toolchain.root.path, toolchain.root.via) == (system_toolkit, "nvcc")
    assert toolchain["nvcc"].version == toolchain.root.version


@pytest.mark.system_cuda
def test_the_probes_pass_with_the_machines_toolkit(real, system_toolkit):
    real.environ["EXTFORGE_CUDA_ROOT"] = str(system_toolkit)
    outcomes = {outcome.name: outcome for outcome in run_probes(real.resolve())}
    assert outcomes["cuda"].state == "passed", outcomes["cuda"].text
    assert outcomes["driver-link"].state in ("passed", "skipped"), outcomes["driver-link"].text
