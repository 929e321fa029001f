"""Never parts from two roots, in any mixture of layouts."""

from __future__ import annotations

import tempfile
from pathlib import Path

from extforge.toolchain.catalogue import CUDA_PARTS
from extforge.toolchain.model import Found, Toolchain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# Each layout has a patch number of its own, so that every version tells where it comes from.
LAYOUTS = {
    "conda": ("13.0.1", lambda world, version: world.conda(Path(world.python.prefix), version)),
    "unified": ("13.1.2", lambda world, version: world.wheel(world.site, version)),
    "split wheels": ("12.9.3", lambda world, version: world.wheels(world.site, version)),
    "classic": ("12.8.4", lambda world, version: world.toolkit(world.sysroot / "usr/local/cuda", version)),
    "home": ("13.2.5", lambda world, version: world.toolkit(world.top / "home-cuda", version)),
    "path": ("12.6.6", lambda world, version: world.toolkit(world.top / "path-cuda", version)),
    "debian": ("11.8.7", lambda world, version: world.split(world.top / "usr", version)),
}
# What may be taken out of a layout or spoiled: exactly then is borrowing tempting.
SPOILED = ("bin/nvcc", "bin/ptxas", "libcudart.so.*", "cuda_runtime.h", "libdevice.10.bc", "libcuda.so")


def spoil(base: Path, name: str, how: str) -> None:
    for path in [path for path in base.rglob(Path(name).name) if path.is_file() or path.is_symlink()]:
        path.unlink()
        if how == "empty":
            path.touch()
        elif how == "dangling":
            path.symlink_to("gone")


@st.composite
def mixtures(draw):
    layouts = draw(st.lists(st.sampled_from(sorted(LAYOUTS)), unique=True, min_size=1, max_size=5))
    damages = st.tuples(
        st.sampled_from(layouts), st.sampled_from(SPOILED), st.sampled_from(("gone", "empty", "dangling"))
    )
    torch_cuda = draw(st.sampled_from((None, "12.9", "13.0")))
    return layouts, draw(st.lists(damages, max_size=4)), torch_cuda, draw(st.sampled_from(("prefix", "env")))


def build(world, layouts, damages, torch_cuda):
    if torch_cuda:
        world.torch("2.13.0", cuda=torch_cuda)
    bases = {}
    for name in layouts:
        version, lay_out = LAYOUTS[name]
        bases[name] = lay_out(world, version)
    if "home" in layouts:
        world.environ["CUDA_HOME"] = str(bases["home"])
    for name, directory in (("path", "bin"), ("debian", "bin")):
        if name in layouts:
            world.environ["PATH"] += f":{bases[name] / directory}"
    for name, part, how in damages:
        spoil(bases[name], part, how)


def assert_one_root(toolchain: Toolchain) -> None:
    found = {part.name: toolchain.get(part.name) for part in CUDA_PARTS}
    for name, part in found.items():
        if isinstance(part, Found):
            assert toolchain.root is not None, name
            assert part.root == toolchain.root.path, (name, part)
            assert part.path.resolve().is_relative_to(part.root.resolve()), (name, part)
    releases = {
        part.version.rsplit(".", 1)[0] if part.version.count(".") > 1 else part.version
        for part in found.values()
        if isinstance(part, Found) and part.version
    }
    assert len(releases) <= 1, releases


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mixture=mixtures())
def test_all_parts_come_from_the_chosen_root(new_world, mixture):
    layouts, damages, torch_cuda, prefer = mixture
    with tempfile.TemporaryDirectory() as directory:
        world = new_world(Path(directory) / "world")
        build(world, layouts, damages, torch_cuda)
        toolchain = world.survey(prefer=prefer)
        assert_one_root(toolchain)
        homes = {
            value
            for name, value in toolchain.environ().items()
            if name in ("CUDA_HOME", "CUDA_PATH", "CUDAToolkit_ROOT")
        }
        assert len(homes) <= 1


def test_a_part_that_the_caller_names_is_the_one_exception(world):
    other = world.toolkit(world.top / "other", "13.4.59")
    world.inside(world.conda(world.top / "env", "13.0.88"))
    ptxas = world.resolve(overrides={"ptxas": str(other / "bin/ptxas")})["ptxas"]
    assert (ptxas.path, ptxas.version, ptxas.via) == (other / "bin/ptxas", "13.4.59", "argument")
