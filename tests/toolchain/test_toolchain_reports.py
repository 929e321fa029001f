"""Failures that people reported in public, staged and named after what they saw."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from extforge.errors import NotFoundError
from extforge.toolchain.archs import require_archs
from extforge.toolchain.model import Missing, ToolchainConflict
from extforge.toolchain.outputs import environment
from extforge.toolchain.view import build_view, plan_view


def built_view(toolchain):
    return build_view(toolchain, plan_view(toolchain))


# --- the driver library ------------------------------------------------------------------------------------
def test_cannot_find_lcuda_although_conda_has_a_stub(world):
    """triton#6558: the stub exists, but under one name and where no linker looks."""
    world.inside(world.conda(world.top / "env"))
    toolchain = world.resolve()
    assert toolchain["libcuda"].path == world.top / "env/targets/x86_64-linux/lib/stubs/libcuda.so"
    view = built_view(toolchain)
    assert sorted(path.name for path in view.stubs.iterdir()) == ["libcuda.so", "libcuda.so.1"]
    assert environment(toolchain, view)["TRITON_LIBCUDA_PATH"] == str(view.stubs)


def test_link_fails_on_an_image_that_has_only_the_soname(world):
    """triton#8667: a driver-only container holds libcuda.so.1 and no libcuda.so."""
    world.wheel(world.site)
    world.driver("/usr/lib/x86_64-linux-gnu")
    view = built_view(world.resolve())
    assert (view.stubs / "libcuda.so").resolve().name == "libcuda.so.580.1"


@pytest.mark.parametrize("place", ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"])
def test_skipping_incompatible_libcuda_of_32_bits(world, place):
    """FastChat#2207, triton#733, Seg-Zero#63: on a multilib host the last or first of several is taken."""
    world.driver("/usr/lib", "i386", bits=32)
    world.driver(place)
    runtime = world.survey()["libcuda_runtime"]
    assert runtime.path == world.sysroot / place.lstrip("/") / "libcuda.so.1"


def test_only_a_32_bit_driver_is_no_driver(world):
    world.driver("/usr/lib", "i386", bits=32)
    runtime = world.survey().get("libcuda_runtime")
    assert isinstance(runtime, Missing)
    assert [tried.reason for tried in runtime.tried] == ["wrong-elf-class"]


def test_sbin_ldconfig_no_such_file_on_nixos(world):
    """nixpkgs#426296: there is no loader cache; the driver lies in /run/opengl-driver/lib."""
    world.driver("/run/opengl-driver/lib")
    assert world.survey()["libcuda_runtime"].path == world.sysroot / "run/opengl-driver/lib/libcuda.so.1"


def test_libcuda_cannot_found_in_a_pod_with_a_stale_loader_cache(world):
    """text-generation-inference#1711: the library is mounted, the cache does not know it."""
    world.driver("/usr/local/nvidia/lib64")
    assert world.survey()["libcuda_runtime"].version == "580.1"


def test_driver_files_that_are_copies_instead_of_links(world):
    """microsoft/WSL#8587: three equal files, none a link."""
    path = world.library(world.sysroot / "usr/lib/wsl/lib/libcuda.so.1")
    assert world.survey()["libcuda_runtime"].path == path


def test_no_device_in_wsl_because_a_linux_driver_shadows_it(world, finding_of):
    """numba#9032: the distribution's driver package does not work inside WSL."""
    world.driver("/usr/lib/x86_64-linux-gnu")
    wsl = world.library(world.sysroot / "usr/lib/wsl/lib/libcuda.so.1")
    toolchain = world.survey()
    assert toolchain["libcuda_runtime"].path == wsl
    finding = finding_of(toolchain, "driver-inside-wsl")
    assert "remove the distribution's driver package" in finding.fix
    assert finding.evidence == (str(world.sysroot / "usr/lib/x86_64-linux-gnu/libcuda.so.1"),)


def test_cuda_error_34_stub_library(world, finding_of):
    """numba#9732: a stub directory on LD_LIBRARY_PATH is loaded at run time."""
    stubs = world.library(world.top / "toolkit/lib64/stubs/libcuda.so.1").parent
    world.environ["LD_LIBRARY_PATH"] = str(stubs)
    toolchain = world.survey()
    assert [tried.reason for tried in toolchain.get("libcuda_runtime").tried] == ["stub"]
    assert finding_of(toolchain, "stub-on-loader-path").fix == f"remove {stubs} from LD_LIBRARY_PATH"


def test_program_runs_against_the_stub_since_the_build_exported_it(world):
    """xmake#4686: a link path is no run path; nothing we print reaches the loader."""
    world.inside(world.conda(world.top / "env"))
    variables = world.resolve().environ()
    assert not {"LD_LIBRARY_PATH", "CPATH", "LIBRARY_PATH"} & set(variables)
    assert not any("rpath" in flag for flag in world.resolve().flags("cuda", "cudart").ldflags)


def test_undefined_libc_symbols_from_a_system_directory_on_the_linker_path(world):
    """cudarc#475: -L/usr/lib/... drags the host's libc under a conda compiler."""
    world.wheel(world.site)
    world.driver("/usr/lib/x86_64-linux-gnu")
    (flag,) = world.resolve().flags("cuda").ldflags
    assert Path(flag.removeprefix("-L")).is_relative_to(world.top / "home/.cache/extforge/views")


# --- choice of the toolkit ---------------------------------------------------------------------------------
def test_the_first_nvcc_on_path_does_not_match_torch(world):
    """pytorch#78708: nvcc 10.1 comes first although a matching toolkit exists."""
    world.torch("2.13.0+cu130", cuda="13.0")
    world.toolkit(world.top / "old", "10.1.243")
    world.environ["PATH"] = f"{world.top}/old/bin:{world.top}/bin"
    with pytest.raises(
        ToolchainConflict, match=r"torch was built with CUDA 13\.0, the toolkit is 10\.1\.243"
    ):
        world.resolve()


def test_detected_cuda_version_mismatches_since_the_environment_has_no_nvcc(world):
    """vllm#1453: the runtime is in the environment, the compiler is the system's."""
    world.inside(world.conda(world.top / "env", "12.9.86", nvcc=False))
    world.toolkit(world.top / "system", "13.0.88")
    world.environ["CUDA_HOME"] = str(world.top / "system")
    nvcc = world.resolve().get("nvcc")
    assert isinstance(nvcc, Missing)
    assert nvcc.hint == f"conda install -p {world.top}/env -c conda-forge cuda-nvcc=12.9"


def test_incomplete_type_since_headers_and_library_come_from_two_toolkits(world):
    """cupy#9962, cuda-python#1977: wheels of 12.9 under headers of the system's 13.0."""
    world.wheels(world.site, "12.9.86")
    system = world.toolkit(world.sysroot / "usr/local/cuda", "13.0.88")
    toolchain = world.resolve()
    assert toolchain["cuda_include"].version == "12.9"
    assert isinstance(toolchain.get("nvcc"), Missing)
    assert [tried.path for tried in toolchain.root_tried] == [str(system)]


def test_cuda_home_holds_a_list(world):
    """warp-ctc#153: two directories joined by a colon are used as one path."""
    world.environ["CUDA_HOME"] = "/usr/local/cuda-12.9:/usr/local/cuda-13.0"
    with pytest.raises(ToolchainConflict, match=r"CUDA_HOME cannot be used: .* holds a list.*\(2 entries\)"):
        world.resolve()


def test_ccache_standing_in_for_nvcc_names_the_wrong_toolkit(world):
    """pytorch#8092: /usr/lib/ccache/nvcc leads two levels up to /usr/lib."""
    toolkit = world.toolkit(world.top / "real/cuda")
    world.program(world.top / "ccache/nvcc", f'#!/bin/sh\nexec {toolkit}/bin/nvcc "$@"\n')
    world.environ["PATH"] = f"{world.top}/ccache:{world.top}/bin"
    toolchain = world.resolve()
    assert toolchain.root.path == toolkit
    assert toolchain["nvcc"].path == toolkit / "bin/nvcc"


# --- conda's layout ----------------------------------------------------------------------------------------
def test_cuda_runtime_h_no_such_file_in_a_conda_environment(world):
    """pytorch#144690, pytorch-cpu-feedstock#487: the headers lie below targets/."""
    world.inside(world.conda(world.top / "env"))
    assert f"-I{world.top}/env/targets/x86_64-linux/include" in world.resolve().flags("cudart").cflags


def test_findcuda_misses_the_headers(world):
    """pytorch#134331: CMake is told the compiler and the root instead of searching."""
    world.inside(world.conda(world.top / "env"))
    toolchain = world.resolve()
    variables, view = toolchain.cmake(), plan_view(toolchain).path
    assert variables["CUDAToolkit_ROOT"] == variables["CUDA_TOOLKIT_ROOT_DIR"] == str(view)
    assert variables["CMAKE_CUDA_COMPILER"] == str(view / "bin/nvcc")


def test_headers_are_not_found_in_a_notebook_that_was_not_activated(world, finding_of):
    """cupy#9777: a kernel started by absolute path has no CONDA_PREFIX."""
    world.inside(world.conda(world.top / "env"))
    toolchain = world.resolve()
    assert toolchain.root.path == world.top / "env"
    assert finding_of(toolchain, "not-activated").level == "note"


def test_redefinitions_when_build_and_host_prefix_are_mixed(world):
    """pytorch-cpu-feedstock#447: tools from BUILD_PREFIX, headers and libraries from PREFIX."""
    build, host = world.conda(world.top / "build"), world.conda(world.top / "host", nvcc=False)
    world.interpreter(host)
    world.environ |= {"CONDA_BUILD": "1", "PREFIX": str(host), "BUILD_PREFIX": str(build)}
    world.environ |= {"target_platform": "linux-64", "CONDA_PREFIX": str(build)}
    toolchain = world.resolve()
    assert toolchain["nvcc"].path == build / "bin/nvcc"
    assert toolchain["cuda_include"].path == host / "targets/x86_64-linux/include"
    assert toolchain["cudart"].path.is_relative_to(host)
    assert toolchain.flags("cudart").cflags[0] == f"-I{host}/targets/x86_64-linux/include"


def test_a_package_build_takes_the_systems_nvcc_since_the_recipe_forgot_the_compiler(world):
    """The caller's PATH stands behind the prefixes in every package build."""
    host, build = world.conda_meta(world.top / "host"), world.conda_meta(world.top / "build")
    world.environ["CUDA_HOME"] = str(world.toolkit(world.sysroot / "usr/local/cuda"))
    world.environ |= {"CONDA_BUILD": "1", "PREFIX": str(host), "BUILD_PREFIX": str(build)}
    toolchain = world.resolve()
    assert toolchain.root is None
    assert toolchain.get("nvcc").hint == "add cuda-nvcc to the requirements of the recipe"


@pytest.mark.parametrize("layout", ["conda", "wheel"])
def test_there_is_no_lib64(world, layout):
    """exllama#20, flashinfer#1143: builds look for lib64 and for names without a version."""
    if layout == "conda":
        world.inside(world.conda(world.top / "env"))
    else:
        world.wheel(world.site)
    libraries = built_view(world.resolve()).libraries
    assert (libraries / "libcudart.so").resolve().name == "libcudart.so.13"
    assert (libraries / "libcudart_static.a").is_file()


def test_nvcc_refuses_a_second_ccbin(world):
    """nvcc-feedstock#34: the compiler is named once, by NVCC_CCBIN."""
    world.inside(world.conda(world.top / "env"))
    variables = world.resolve().environ()
    assert variables["NVCC_CCBIN"] == variables["CXX"]
    assert not any("ccbin" in value for value in variables.values())


def test_activation_writes_to_the_root_of_the_file_system(world):
    """nvcc-feedstock#97: an empty prefix variable turns $PREFIX/lib into /lib."""
    world.environ |= {"CONDA_BUILD": "1", "PREFIX": "", "BUILD_PREFIX": str(world.top)}
    with pytest.raises(
        ToolchainConflict, match="PREFIX is empty or no absolute path in a package build: None"
    ):
        world.resolve()


def test_permission_denied_in_a_cache_of_another_user(world):
    """triton#518, sonar#458: a home that cannot be written to; say which variable names another place."""
    world.inside(world.conda(world.top / "env"))
    world.environ["EXTFORGE_CACHE_DIR"] = str(world.file(world.top / "occupied"))
    with pytest.raises(NotFoundError, match=r"no view can be made at .* EXTFORGE_CACHE_DIR="):
        built_view(world.resolve())


# --- containers and other interpreters -------------------------------------------------------------------
def test_failed_to_find_c_compiler_in_a_runtime_image(world, finding_of):
    """sglang#1067, vllm#2997: say which package gives one."""
    world.environ["PATH"] = str(world.top / "empty")
    finding = finding_of(world.survey(), "missing-cc")
    assert (finding.level, finding.fix) == ("error", "apt-get install gcc")


def test_python_h_no_such_file(world, finding_of):
    """sglang#1117: the distribution's Python without its dev package."""
    (world.top / "python/include/python3.11/Python.h").unlink()
    finding = finding_of(world.survey(), "missing-python-include")
    assert finding.fix == "apt-get install python3.11-dev"
    assert "there is no such file" in finding.evidence[0]


def test_a_stand_alone_python_names_directories_of_its_build_machine(world):
    """python-build-standalone#374: the interpreter's word is checked against the file system."""
    real = world.python.includes[0]
    world.python = world.python._replace(includes=("/build/install/include/python3.11", real))
    found = world.resolve()["python_include"]
    assert str(found.path) == real
    assert [tried.reason for tried in found.tried] == ["absent"]


def test_no_working_cxx_compiler_since_path_is_bare(world):
    """nixpkgs#446105: the prefix's compiler has a long name and is not on PATH."""
    env = world.conda_meta(world.top / "env")
    world.compilers(env / "bin", "x86_64-conda-linux-gnu-", "14.3.0")
    world.inside(env).environ["PATH"] = "/nonexistent"
    assert world.resolve().environ()["CXX"] == str(env / "bin/x86_64-conda-linux-gnu-c++")


# --- tools, architectures, file system ---------------------------------------------------------------------
def test_list_index_out_of_range_without_a_gpu(world):
    """pytorch#28955: architectures are given, never taken from a device that is absent."""
    world.toolkit(world.sysroot / "usr/local/cuda")
    toolchain = world.resolve()
    assert not {"TORCH_CUDA_ARCH_LIST", "CUDAARCHS"} & set(toolchain.environ())
    variables = environment(toolchain, None, ("8.0", "12.0+PTX"))
    assert (variables["TORCH_CUDA_ARCH_LIST"], variables["CUDAARCHS"]) == ("8.0;12.0+PTX", "80-real;120")


def test_value_sm_121a_is_not_defined_for_option_gpu_name(world):
    """triton#9181: both knobs name the chosen ptxas, whichever Triton's version consults."""
    world.inside(world.conda(world.top / "env"))
    variables, ptxas = world.resolve().environ(), str(world.top / "env/bin/ptxas")
    assert (variables["TRITON_PTXAS_PATH"], variables["TRITON_PTXAS_BLACKWELL_PATH"]) == (ptxas, ptxas)


def test_an_architecture_that_nvcc_does_not_know_is_refused(world):
    world.toolkit(world.sysroot / "usr/local/cuda")
    with pytest.raises(ToolchainConflict, match=r"does not compile for 12\.1a; it knows sm_ 80 90 90a 120"):
        require_archs(world.resolve(), ("9.0a", "12.1a"))


def test_headers_are_not_found_on_grace(arm_world):
    """tvm#20222: aarch64 is the machine, sbsa-linux the target."""
    arm_world.inside(arm_world.conda(arm_world.top / "env"))
    toolchain = arm_world.resolve()
    assert toolchain.target == "sbsa-linux"
    assert toolchain["cuda_include"].path == arm_world.top / "env/targets/sbsa-linux/include"


@pytest.mark.parametrize("home", ["cuda", "cuda/12.3"])
def test_cublas_header_not_found_with_nvhpc(world, home):
    """pytorch#132599, flexflow#866: the mathematics lie beside CUDA_HOME."""
    top = world.top / "hpc_sdk/Linux_x86_64/24.1"
    world.toolkit(top / "cuda/12.3", "12.3.52")
    for name in ("bin", "include", "lib64", "nvvm"):
        (top / "cuda" / name).symlink_to(f"12.3/{name}")
    world.file(top / "math_libs/12.3/include/cublas_v2.h")
    (top / "math_libs/include").symlink_to("12.3/include")
    world.environ["CUDA_HOME"] = str(top / home)
    toolchain = world.resolve()
    assert toolchain.root.kind == "nvhpc"
    assert (built_view(toolchain).path / "include/cublas_v2.h").is_file()


def test_paths_with_blanks(world):
    """pytorch#122476: flags are lists, quoted where they become text."""
    world.inside(world.conda(world.top / "my env"))
    flags = world.resolve().flags("cudart")
    assert shlex.split(shlex.join(flags.cflags)) == list(flags.cflags)
    assert f"-I{world.top}/my env/targets/x86_64-linux/include" in flags.cflags


def test_your_compiler_may_be_abi_incompatible_since_it_is_behind_ccache(world, finding_of):
    """pytorch#33701: the launcher is passed over, the compiler is what is meant."""
    world.program(world.top / "bin/ccache", "#!/bin/sh\n")
    world.environ["CXX"] = "ccache g++"
    toolchain = world.resolve()
    assert toolchain["cxx"].path == world.top / "bin/g++"
    assert finding_of(toolchain, "compiler-launcher").level == "note"


def test_nvcc_takes_another_gcc_than_the_host_code(world):
    """pytorch#47377: one compiler for both."""
    world.compilers(world.top / "other", "", "11.4.0")
    world.environ |= {"CC": str(world.top / "other/gcc"), "CXX": str(world.top / "other/g++")}
    variables = world.resolve().environ()
    names = ("CXX", "CUDAHOSTCXX", "NVCC_CCBIN")
    assert {variables[name] for name in names} == {str(world.top / "other/g++")}


def test_failed_to_map_segment_from_shared_object(world, finding_of):
    """pytorch#123054: the cache is mounted noexec."""
    mounts = f"/dev/a / ext4 rw 0 0\ntmpfs {world.top}/home tmpfs rw,noexec 0 0\n"
    mounts += f"/dev/b {world.top}/home/elsewhere/and/longer ext4 rw 0 0\n"
    world.file(world.sysroot / "proc/mounts", mounts)
    assert "is mounted noexec" in finding_of(world.survey(), "cache-unsuitable").text


def test_ptxas_from_path_is_too_old(world):
    """jax#6799: a cluster module's ptxas on PATH is not preferred to the environment's."""
    world.inside(world.conda(world.top / "env"))
    world.tools(world.top / "module/bin", world.top / "module", "10.1.243")
    world.environ["PATH"] = f"{world.top}/module/bin:{world.top}/bin"
    assert world.resolve()["ptxas"].version == "13.0.88"
