"""Which root is chosen, by what authority, and what is said of the others."""

from __future__ import annotations

import pytest
from extforge.errors import BadInputError
from extforge.toolchain.model import Missing, ToolchainConflict
from extforge.toolchain.outputs import environment
from extforge.toolchain.view import build_view, plan_view

# Highest authority first. Each lays out a root of its own version and returns its via.
VERSIONS = {"argument": "13.9.1", "own": "13.8.1", "conda": "13.7.1", "wheel": "13.6.1", "home": "13.5.1"}
VERSIONS |= {"path": "13.4.1", "system": "13.3.1"}
VIA = {"argument": "argument", "own": "env:EXTFORGE_CUDA_ROOT", "conda": "conda", "wheel": "wheel"}
VIA |= {"home": "env:CUDA_HOME", "path": "nvcc", "system": "default"}


def lay_out(world, names):
    """Make a root for each name and return the arguments that go with them."""
    arguments = {}
    if "conda" in names:
        world.inside(world.conda(world.top / "env", VERSIONS["conda"]))
    for name in names:
        version = VERSIONS[name]
        if name == "argument":
            arguments["cuda"] = str(world.toolkit(world.top / "argument", version))
        elif name == "own":
            world.environ["EXTFORGE_CUDA_ROOT"] = str(world.toolkit(world.top / "own", version))
        elif name == "wheel":
            world.wheel(world.site, version)
        elif name == "home":
            world.environ["CUDA_HOME"] = str(world.toolkit(world.top / "home-cuda", version))
        elif name == "path":
            world.toolkit(world.top / "on-path", version)
            world.environ["PATH"] += f":{world.top}/on-path/bin"
        elif name == "system":
            world.toolkit(world.sysroot / "usr/local/cuda", version)
    return arguments


@pytest.mark.parametrize("first", range(len(VERSIONS)))
def test_the_order_of_authority(world, first):
    names = list(VERSIONS)[first:]
    toolchain = world.survey(**lay_out(world, names))
    assert (toolchain.root.via, toolchain.root.version) == (VIA[names[0]], VERSIONS[names[0]])
    overruled = [tried.detail for tried in toolchain.root_tried if tried.reason == "shadowed"]
    assert [detail.split()[-1] for detail in overruled] == [VERSIONS[name] for name in names[1:]]


def test_prefer_env_moves_the_variables_to_the_front(world):
    arguments = lay_out(world, ["conda", "wheel", "home", "system"])
    assert world.survey(prefer="env", **arguments).root.via == "env:CUDA_HOME"


def test_an_overruled_variable_is_a_warning_that_says_how_to_use_it(world, finding_of):
    lay_out(world, ["conda", "home"])
    finding = finding_of(world.survey(), "cuda-root-overruled")
    assert finding.level == "warning"
    assert finding.fix == f"to use it instead: export EXTFORGE_CUDA_ROOT={world.top}/home-cuda"


def test_an_overruled_variable_that_is_broken_is_only_a_warning(world, finding_of):
    lay_out(world, ["conda"])
    world.environ["CUDA_HOME"] = "/nonexistent"
    assert finding_of(world.resolve(), "cuda-root-unusable").level == "warning"


@pytest.mark.parametrize("variable", ["EXTFORGE_CUDA_ROOT", "CUDA_HOME", "CUDA_PATH"])
def test_a_variable_that_does_not_work_is_refused(world, variable):
    world.environ[variable] = "/nonexistent"
    world.toolkit(world.sysroot / "usr/local/cuda")
    with pytest.raises(ToolchainConflict, match=f"{variable} cannot be used: /nonexistent: there is no such"):
        world.resolve()


def test_an_argument_that_does_not_work_is_refused(world):
    with pytest.raises(ToolchainConflict, match=r"--cuda cannot be used: .* holds no part of a CUDA toolkit"):
        world.resolve(cuda=str(world.top))


KINDS = {
    "conda": lambda world: world.conda(world.conda_meta(world.top / "env")),
    "wheel": lambda world: world.wheel(world.top / "site-packages"),
    "wheels": lambda world: world.wheels(world.top / "site-packages"),
    "ctk": lambda world: world.toolkit(world.top / "cuda"),
    "split": lambda world: world.split(world.top / "usr"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_recognised_and_its_parts_are_found(world, kind):
    toolchain = world.resolve(cuda=str(KINDS[kind](world)))
    assert toolchain.root.kind == kind
    absent = {name for name, part in toolchain.parts.items() if isinstance(part, Missing)}
    allowed = {"torch", "ninja", "cmake", "libcuda_runtime"}
    allowed |= {"wheel": {"libcuda"}, "wheels": {"libcuda", "nvcc"}}.get(kind, set())
    assert absent == allowed


@pytest.mark.parametrize("named", ["targets/x86_64-linux", "."])
def test_a_conda_root_is_recognised_from_its_target_directory(world, named):
    env = world.conda(world.top / "env")
    world.environ["CUDA_HOME"] = str(env / named)
    assert (world.resolve().root.kind, world.resolve().root.path.resolve()) == ("conda", env)


def test_a_view_stands_for_the_root_it_shows(world):
    env = world.conda(world.top / "env")
    view = build_view(world.resolve(cuda=str(env)), plan_view(world.resolve(cuda=str(env))))
    world.environ["CUDA_HOME"] = str(view.path)
    toolchain = world.resolve()
    assert (toolchain.root.path, toolchain.root.via) == (env, "env:CUDA_HOME")
    assert environment(toolchain, plan_view(toolchain))["CUDA_HOME"] == str(view.path)


def test_debians_nvcc_on_path_leads_to_the_split_root(world):
    usr = world.split(world.top / "usr")
    world.environ["PATH"] += f":{usr}/bin"
    toolchain = world.resolve()
    assert (toolchain.root.kind, toolchain.root.path) == ("split", usr)
    assert toolchain["nvcc"].path == usr / "lib/nvidia-cuda-toolkit/bin/nvcc"


def test_a_prefix_that_only_holds_a_wrapper_is_not_the_root(world):
    """What path arithmetic would make of /usr/local/bin/nvcc."""
    toolkit = world.toolkit(world.top / "cuda-13.0")
    world.program(world.top / "local/bin/nvcc", f'#!/bin/sh\nexec {toolkit}/bin/nvcc "$@"\n')
    world.environ["CUDA_HOME"] = str(world.top / "local")
    assert world.resolve().root.path == toolkit


def test_an_nvcc_that_does_not_answer_is_named(world):
    nvcc = world.program(world.top / "bin/nvcc", "#!/bin/sh\nexit 1\n")
    assert [(t.path, t.reason) for t in world.resolve().root_tried] == [(str(nvcc), "mute")]


@pytest.mark.parametrize(("names", "chosen"), [(["13.0"], "13.0"), (["12.9", "13.0"], None)])
def test_a_versioned_system_toolkit_counts_only_when_it_is_alone(world, names, chosen):
    for name in names:
        world.toolkit(world.sysroot / f"usr/local/cuda-{name}", f"{name}.1")
    root = world.resolve().root
    assert (root and root.path.name) == (chosen and f"cuda-{chosen}")


def test_wheels_of_torchs_own_major_come_first(world):
    world.torch("2.13.0+cu129", cuda="12.9")
    world.wheel(world.site, "13.0.88")
    world.wheels(world.site, "12.9.86")
    assert world.resolve().root.kind == "wheels"


def test_triton_serves_its_tools_when_nothing_else_does(world):
    bundle = world.site / "triton/backends/nvidia"
    world.tools(bundle / "bin", bundle, "12.9.86", nvcc=False)
    world.file(bundle / "lib/libdevice.10.bc")
    world.headers(bundle / "include", "13.1.0")
    toolchain = world.resolve()
    assert (toolchain["ptxas"].via, toolchain["ptxas"].version) == ("bundled", "12.9.86")
    assert isinstance(toolchain.get("cuda_include"), Missing)
    assert plan_view(toolchain) is None
    assert not [name for name in toolchain.environ() if name.startswith("TRITON_") and name.endswith("_PATH")]


# --- target --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("variant", "target"), [("sbsa", "sbsa-linux"), ("tegra", "aarch64-linux")])
def test_sbsa_and_tegra_are_told_apart_by_the_record(arm_world, arm_variant, variant, target):
    env = arm_world.conda(arm_world.top / "env", target="sbsa-linux")
    arm_world.conda(env, target="aarch64-linux")
    arm_variant(env, variant)
    toolchain = arm_world.inside(env).survey()
    assert toolchain.target == target
    assert toolchain["cuda_include"].path == env / "targets" / target / "include"


def test_tegra_is_recognised_by_content_alone(arm_world):
    arm_world.inside(arm_world.conda(arm_world.top / "env", target="aarch64-linux"))
    assert arm_world.resolve().target == "aarch64-linux"


def test_tegra_is_recognised_by_its_own_file(arm_world):
    env = arm_world.toolkit(arm_world.top / "cuda")
    for target in ("sbsa-linux", "aarch64-linux"):
        arm_world.headers(env / "targets" / target / "include", "13.0.88")
    arm_world.file(arm_world.sysroot / "etc/nv_tegra_release")
    assert arm_world.resolve(cuda=str(env)).target == "aarch64-linux"


def test_a_second_target_for_cross_building_is_reported(world, finding_of):
    env = world.conda(world.top / "env")
    world.conda(env, target="sbsa-linux")
    toolchain = world.inside(env).survey()
    assert toolchain.target == "x86_64-linux"
    assert "holds several targets (x86_64-linux, sbsa-linux)" in finding_of(toolchain, "several-targets").text


def test_a_target_that_is_asked_for_wins(arm_world):
    env = arm_world.conda(arm_world.top / "env", target="sbsa-linux")
    arm_world.conda(env, target="aarch64-linux")
    assert arm_world.inside(env).resolve(target="aarch64-linux").target == "aarch64-linux"


def test_a_target_that_is_absent_is_refused(world):
    world.inside(world.conda(world.top / "env"))
    with pytest.raises(ToolchainConflict, match="no toolkit root holds the target ppc64le-linux"):
        world.resolve(target="ppc64le-linux")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "vax"}, "unknown target 'vax'; known: x86_64-linux, sbsa-linux"),
        ({"prefer": "luck"}, "prefer is 'luck'"),
        ({"overrides": {"nvc": "/x"}}, "unknown part nvc; known: cc, cxx, nvcc"),
    ],
)
def test_unknown_words_are_bad_input(world, arguments, message):
    with pytest.raises(BadInputError, match=message):
        world.resolve(**arguments)
