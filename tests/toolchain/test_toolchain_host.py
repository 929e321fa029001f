"""Compilers, build tools, Python and torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from extforge.toolchain.host import read_assignment
from extforge.toolchain.model import Missing, ToolchainConflict


def test_a_variable_beats_the_prefix_beats_path(world):
    env = world.conda_meta(world.top / "env")
    world.inside(env)
    assert world.survey()["cc"].via == "path"
    world.compilers(env / "bin", "x86_64-conda-linux-gnu-", "14.3.0")
    found = world.survey()["cc"]
    assert (found.via, found.version) == ("conda", "14.3.0")
    world.compilers(world.top / "mine", "", "13.1.0")
    world.environ["CC"] = str(world.top / "mine/gcc")
    assert (world.survey()["cc"].via, world.survey()["cc"].version) == ("env:CC", "13.1.0")


def test_the_compiler_of_the_other_machine_in_a_cross_environment_is_not_taken(world):
    env = world.conda_meta(world.top / "env")
    world.compilers(env / "bin", "aarch64-conda-linux-gnu-", "14.3.0")
    assert world.inside(env).survey()["cc"].via == "path"


def test_a_bare_name_in_cc_is_found_in_the_prefix_that_is_not_on_path(world):
    env = world.conda_meta(world.top / "env")
    world.compilers(env / "bin", "x86_64-conda-linux-gnu-", "14.3.0")
    world.inside(env).environ["CC"] = "x86_64-conda-linux-gnu-cc"
    assert world.resolve()["cc"].path == env / "bin/x86_64-conda-linux-gnu-cc"


def test_an_empty_variable_counts_as_unset(world):
    world.environ |= {"CC": "", "CUDA_HOME": ""}
    assert world.resolve()["cc"].via == "path"


def test_arguments_in_cxx_are_reported_as_lost(world, finding_of):
    world.environ["CXX"] = "g++ -O0"
    toolchain = world.resolve()
    assert toolchain["cxx"].path == world.top / "bin/g++"
    assert "holds arguments (-O0)" in finding_of(toolchain, "compiler-arguments").text


def test_a_compiler_that_is_named_and_absent_is_refused(world):
    world.environ["CC"] = "icc"
    with pytest.raises(ToolchainConflict, match="CC=icc does not work: icc is not on PATH"):
        world.resolve()


def test_two_compilers_of_different_versions_are_reported(world, finding_of):
    world.compilers(world.top / "other", "", "11.4.0")
    world.environ["CXX"] = str(world.top / "other/g++")
    assert finding_of(world.survey(), "compilers-differ").level == "warning"


def test_a_compiler_beyond_the_bound_of_the_toolkits_own_header_is_refused(world):
    root = world.toolkit(world.top / "cuda")
    world.headers(root / "include", "13.0.88", gcc=11)
    with pytest.raises(ToolchainConflict, match=r"is gcc 12\.2\.0, nvcc takes gcc to 11"):
        world.resolve(cuda=str(root))


def test_an_unsupported_compiler_may_be_allowed(world, finding_of):
    root = world.toolkit(world.top / "cuda")
    world.headers(root / "include", "13.0.88", gcc=11)
    toolchain = world.resolve(cuda=str(root), allow_unsupported_compiler=True)
    assert finding_of(toolchain, "compiler-too-new").level == "warning"


def test_ninja_of_the_environment_is_found_although_it_is_not_on_path(world, finding_of):
    """Torch looks on PATH alone and says that ninja is required."""
    world.program(Path(world.python.executable).parent / "ninja", "#!/bin/sh\necho 1.13.0\n")
    toolchain = world.resolve()
    assert toolchain["ninja"].version == "1.13.0"
    assert finding_of(toolchain, "ninja-off-path").fix == f'export PATH="{world.top}/python/bin:$PATH"'


def test_torch_is_read_and_not_imported(world):
    world.torch("2.13.0+cu130", cuda="13.0")
    toolchain = world.survey()
    assert (toolchain["torch"].version, toolchain.torch_cuda) == ("2.13.0+cu130", "13.0")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ("cuda = '12.9'", "12.9"),
        ("cuda: Optional[str] = None", None),
        ("__cuda = '1.0'", None),
        ("", None),
    ],
)
def test_the_cuda_release_of_torch(line, value):
    assert read_assignment(f"__version__ = '2.13.0'\n{line}\nhip = '6'\n", "cuda") == value


def test_a_venv_on_a_conda_python_belongs_to_the_conda_environment(world):
    env = world.conda_meta(world.top / "env")
    world.compilers(env / "bin", "x86_64-conda-linux-gnu-", "14.3.0")
    world.python = world.interpreter(world.top / "venv", base=env)
    toolchain = world.survey()
    assert (toolchain.prefix, toolchain["cc"].via) == (env, "conda")
    assert toolchain.interpreter.prefix == str(world.top / "venv")


def test_a_venv_is_not_taken_for_the_conda_environment_that_happens_to_be_active(world):
    world.environ["CONDA_PREFIX"] = str(world.conda(world.top / "base"))
    world.python = world.interpreter(world.top / "venv", base=world.top / "python")
    toolchain = world.survey()
    assert (toolchain.prefix, toolchain.root) == (world.top / "venv", None)


def test_the_activated_environment_serves_an_interpreter_from_elsewhere(world):
    env = world.conda(world.top / "env")
    world.environ["CONDA_PREFIX"] = str(env)
    toolchain = world.survey()
    assert (toolchain.prefix_via, toolchain.root.path) == ("env:CONDA_PREFIX", env)


def test_another_environment_than_the_interpreters_is_active(world, finding_of):
    world.inside(world.conda(world.top / "env"))
    world.environ["CONDA_PREFIX"] = str(world.conda_meta(world.top / "other"))
    finding = finding_of(world.survey(), "other-prefix-active")
    assert finding.fix == f"conda activate {world.top}/env"


def test_a_prefix_without_python_has_no_python_parts(world):
    toolchain = world.survey(prefix=str(world.conda(world.top / "env")))
    assert isinstance(toolchain.get("python_include"), Missing)
    assert isinstance(toolchain.get("torch"), Missing)


def test_a_prefix_that_does_not_exist_is_refused(world):
    with pytest.raises(
        ToolchainConflict, match="the prefix '/nonexistent' is no absolute path of a directory"
    ):
        world.resolve(prefix="/nonexistent")


def test_the_test_of_a_built_package_has_one_environment(world):
    """CONDA_BUILD and PREFIX without BUILD_PREFIX: a package is being tested, nothing is being built."""
    env = world.conda(world.top / "env")
    world.inside(env)
    world.environ |= {"CONDA_BUILD": "1", "PREFIX": str(env)}
    assert world.resolve().root.path == env
