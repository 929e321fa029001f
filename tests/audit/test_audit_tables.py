"""The tables of facts, against themselves and against the torch at hand."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from extforge.audit.binaries import DeviceImage
from extforge.audit.model import Format
from extforge.audit.requirements import read_conda_requirement, read_wheel_requirement
from extforge.audit.rules.architectures import parse_architectures
from extforge.audit.tables import regenerate, torch
from extforge.audit.tables.floors import GCC, MANYLINUX, numbers
from extforge.audit.tables.libraries import is_system, known_library, plain_name
from extforge.errors import BadInputError


@pytest.fixture(scope="session")
def torch_directory() -> Path:
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        pytest.skip("no torch is installed in this environment")
    return Path(found.submodule_search_locations[0])


def test_table_agrees_with_the_torch_at_hand(torch_directory: Path) -> None:
    version = re.search(r"__version__ = '(\d+\.\d+)", (torch_directory / "version.py").read_text())
    assert version is not None
    minor = version[1]
    if minor not in torch.releases():
        pytest.skip(f"torch {minor} is not among the table's releases {torch.releases()}")
    for library in torch.LIBRARIES:
        exported = regenerate.exported_shims(torch_directory / "lib" / library)
        if exported:
            expected = {
                name
                for name, shim in torch.shims().items()
                if shim.library == library and torch.order(shim.first) <= torch.order(minor)
            }
            assert exported == expected


@pytest.mark.parametrize(
    ("name", "library", "first"),
    [
        ("torch_get_mutable_data_ptr", "libtorch_cpu.so", "2.10"),
        ("torch_from_blob", "libtorch_cpu.so", "2.11"),
        ("torch_library_def_with_tags", "libtorch_cpu.so", "2.12"),
        ("torch_stream_native_handle", "libtorch_cpu.so", "2.13"),
        ("torch_exception_get_what", "libtorch_cpu.so", "2.13"),
        ("torch_tensor_from_pyobject", "libtorch_cpu.so", "2.14"),
        ("aoti_torch_get_current_cuda_stream", "libtorch_cuda.so", "2.10"),
    ],
)
def test_shim_is_dated(name: str, library: str, first: str) -> None:
    assert torch.shims()[name] == (library, first)


@pytest.mark.parametrize("name", ["empty", "new_zeros", "sort", "permute", "transpose_", "conj", "to"])
def test_old_operator_is_dated_to_the_first_release(name: str) -> None:
    assert torch.operators()[name] == torch.releases()[0]


def test_merge_dates_each_name_by_the_first_release_that_has_it() -> None:
    releases = [
        ("2.8", {"libtorch_cpu.so": {"torch_a"}, "libtorch_cuda.so": set()}, {"_conj"}),
        (
            "2.9",
            {"libtorch_cpu.so": {"torch_a", "torch_b"}, "libtorch_cuda.so": {"torch_c"}},
            {"_conj", "conj", "x"},
        ),
    ]
    assert regenerate.merge(releases) == {
        "releases": ["2.8", "2.9"],
        "shims": {
            "libtorch_cpu.so": {"2.8": ["torch_a"], "2.9": ["torch_b"]},
            "libtorch_cuda.so": {"2.8": [], "2.9": ["torch_c"]},
        },
        "operators": {"2.8": ["_conj", "conj"], "2.9": ["x"]},
    }


@pytest.mark.parametrize("table", [GCC, MANYLINUX])
def test_floors_rise(table: dict[object, tuple[str, str]]) -> None:
    rows = [tuple(map(numbers, row)) for row in table.values()]
    assert rows == sorted(rows)


@pytest.mark.parametrize(
    ("soname", "plain"),
    [
        ("libcudart.3eda8113.so.13", "libcudart.so.13"),
        ("libcudart-0a1b2c3d.so.12.4.127", "libcudart.so.12.4.127"),
        ("libgomp-a34b3233.so.1.0.0", "libgomp.so.1.0.0"),
        ("libtorch_cpu.so", "libtorch_cpu.so"),
        ("libavcodec.so.60", "libavcodec.so.60"),
    ],
)
def test_grafted_name_is_made_plain(soname: str, plain: str) -> None:
    assert plain_name(soname) == plain


@pytest.mark.parametrize(
    ("soname", "noun"),
    [
        ("libc10_cuda.so", "torch"),
        ("libtorch_python.so", "torch's Python part"),
        ("libcudart.so.13", "the CUDA runtime"),
        ("libcublasLt.so.12", "cuBLAS"),
        ("libgomp.so.1", "an OpenMP runtime"),
        ("libz.so.1", None),
    ],
)
def test_library_is_known(soname: str, noun: str | None) -> None:
    known = known_library(soname)
    assert (known.noun if known else None) == noun


@pytest.mark.parametrize(
    ("soname", "package_format", "system"),
    [
        ("libc.so.6", Format.CONDA, True),
        ("ld-linux-x86-64.so.2", Format.CONDA, True),
        ("ld-linux-aarch64.so.1", Format.WHEEL, True),
        ("libstdc++.so.6", Format.CONDA, False),
        ("libstdc++.so.6", Format.WHEEL, True),
        ("libcrypto.so.3", Format.WHEEL, False),
        ("libcuda.so.1", Format.CONDA, False),
    ],
)
def test_system_libraries(soname: str, package_format: Format, system: bool) -> None:
    assert is_system(soname, package_format) is system


@pytest.mark.parametrize(
    ("text", "images"),
    [
        ("8.0", {"sass 8.0"}),
        ("8.0;9.0+PTX", {"sass 8.0", "sass 9.0", "ptx 9.0"}),
        ("80-real 90", {"sass 8.0", "sass 9.0", "ptx 9.0"}),
        ("90-virtual", {"ptx 9.0"}),
        ("sm_90a,compute_120", {"sass 9.0a", "ptx 12.0"}),
        ("10.0f", {"sass 10.0f"}),
    ],
)
def test_architectures_are_parsed(text: str, images: set[str]) -> None:
    assert parse_architectures(text) == {DeviceImage(*image.split()) for image in images}


@pytest.mark.parametrize("text", ["", "all-major", "9", "sm_", "9.0+SASS", "8.0;;x"])
def test_unknown_architecture_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match=r"is not valid; valid are 9\.0, "):
        parse_architectures(text)


@pytest.mark.parametrize(
    ("text", "version", "allowed"),
    [
        ("pytorch >=2.10,<3", "2.10.0", True),
        ("pytorch >=2.10,<3", "2.9.1", False),
        ("pytorch 2.13.*", "2.13.4", True),
        ("pytorch", "1.0", True),
        ("pytorch * cuda*", "2.13.0", True),
    ],
)
def test_conda_requirement_allows(text: str, version: str, allowed: bool) -> None:
    assert read_conda_requirement(text).allows(version) is allowed


def test_build_pattern_is_kept() -> None:
    assert read_conda_requirement("pytorch * cuda*").build == "cuda*"


@pytest.mark.parametrize(
    ("text", "version", "allowed"),
    [("torch>=2.11", "2.11.0", True), ("torch (>=2.14.0)", "2.13", False), ("torch==2.13.*", "2.13.1", True)],
)
def test_wheel_requirement_allows(text: str, version: str, allowed: bool) -> None:
    requirement = read_wheel_requirement(text)
    assert requirement is not None
    assert requirement.allows(version) is allowed


def test_requirement_of_an_extra_is_none() -> None:
    assert read_wheel_requirement("scipy; extra == 'all'") is None
