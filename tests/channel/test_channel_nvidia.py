"""NVIDIA's libraries that a wheel requires become packages of conda, and torch's metadata forgets them."""

from __future__ import annotations

from pathlib import Path

import pytest
from extforge.channel import catalogue_cuda
from extforge.channel.catalogue import Row
from extforge.channel.nvidia import LINKING, linked_libraries
from extforge.channel.repack import plan
from extforge.channel.wheels import Wheel

from .conftest import write_wheel

ANY = "py3-none-any"
#: As the wheels write them: other platforms, extras that repeat each other, requirements of Python besides.
TORCH = """\
Requires-Dist: filelock
Requires-Dist: cuda-toolkit[cublas,cudart]==13.0.3; platform_system == "Linux"
Requires-Dist: nvidia-cudnn-cu13==9.24.0.43; platform_system == "Linux"
Requires-Dist: nvidia-nccl-cu13==2.30.7; platform_system == "Windows"
Requires-Dist: triton~=3.8.0; platform_system == "Linux"
Requires-Dist: optree>=0.13; extra == "optree"
"""
TOOLKIT = """\
Provides-Extra: cublas
Requires-Dist: nvidia-cublas==13.1.1.3.*; sys_platform == "linux" and extra == "cublas"
Requires-Dist: nvidia-cuda-nvrtc==13.0.88.*; sys_platform == "linux" and extra == "cublas"
Requires-Dist: nvidia-cuda-runtime==13.0.96.*; sys_platform == "linux" and extra == "cudart"
Requires-Dist: nvidia-cuda-nvrtc==13.0.88.*; sys_platform == "linux" and extra == "cudart"
Requires-Dist: nvidia-cufft==12.0.0.61.*; sys_platform == "linux" and extra == "cufft"
"""


@pytest.fixture
def toolkit(tmp_path: Path) -> Wheel:
    return Wheel(write_wheel(tmp_path, f"cuda_toolkit-13.0.3.0-{ANY}", {}, TOOLKIT))


@pytest.fixture
def torch(tmp_path: Path) -> Wheel:
    stem = "torch-2.14.1-cp311-cp311-manylinux_2_28_x86_64"
    files = {"torch/__init__.py": "", "torch/lib/libtorch.so": ""}
    return Wheel(write_wheel(tmp_path, stem, files, f"{TORCH}\nThe words\nRequires-Dist: nvidia-nccl-cu13\n"))


def test_libraries_are_those_of_the_wheel_and_of_its_extras(torch: Wheel, toolkit: Wheel) -> None:
    assert linked_libraries(torch, toolkit) == (
        "libcublas 13.1.1.3.*",
        "cuda-nvrtc 13.0.88.*",
        "cuda-cudart 13.0.96.*",
        "libcudnn ==9.24.0.43",
    )


def test_a_library_names_its_own(tmp_path: Path, toolkit: Wheel) -> None:
    needs = "Requires-Dist: nvidia-cublas\nRequires-Dist: nvidia-nvjitlink<14,>=13.0.88\n"
    wheel = Wheel(write_wheel(tmp_path, f"nvidia_cusolver-12-{ANY}", {}, needs))
    assert linked_libraries(wheel, toolkit) == ("libcublas", "libnvjitlink <14,>=13.0.88")


def test_a_wheel_without_requirements_links_nothing(tmp_path: Path, toolkit: Wheel) -> None:
    assert linked_libraries(Wheel(write_wheel(tmp_path, f"t-1-{ANY}", {})), toolkit) == ()


def test_pytorch_requires_python_packages_alone(torch: Wheel) -> None:
    package = plan(catalogue_cuda.TORCH_ROWS[1], torch, {})
    names = {spec.split()[0] for spec in package.depends}
    assert {"filelock", "triton", "__cuda", "libtorch", "numpy"} <= names
    assert not {name for name in names if name.startswith(("nvidia", "cuda-toolkit"))}


def test_metadata_forgets_what_is_no_python_package(torch: Wheel) -> None:
    package = plan(catalogue_cuda.TORCH_ROWS[1], torch, {})
    (text,) = (e.text for e in package.entries() if e.path.endswith("torch-2.14.1.dist-info/METADATA"))
    assert text is not None
    head, _, body = text.partition("\n\n")
    kept = [line.partition(": ")[2] for line in head.splitlines() if line.startswith("Requires-Dist")]
    assert kept == [
        "filelock",
        'triton~=3.8.0; platform_system == "Linux"',
        'optree>=0.13; extra == "optree"',
    ]
    assert body == "The words\nRequires-Dist: nvidia-nccl-cu13\n"


def test_metadata_stays_as_it_is_where_nothing_goes(torch: Wheel) -> None:
    package = plan(Row("pytorch", "2.14.1", "torch"), torch, {})
    (entry,) = (e for e in package.entries() if e.path.endswith("/METADATA"))
    assert entry.open is not None
    assert entry.open().read() == torch.archive.read(f"{torch.dist_info}/METADATA")


def test_a_build_for_cuda_is_preferred(torch: Wheel) -> None:
    libtorch, pytorch, *_ = (plan(row, torch, {}) for row in catalogue_cuda.TORCH_ROWS[:2])
    for package in (libtorch, pytorch):
        assert package.build.startswith("cuda130_generic_")
        assert package.build.endswith("_200")
        assert package.number == 200


def test_every_library_is_planned_with_what_it_links() -> None:
    assert {row.name for row in catalogue_cuda.ROWS} >= LINKING
