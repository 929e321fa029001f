"""What the CUDA library promises as a file; only in a CUDA build of the package."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch_sparse_ops
from elftools.elf.elffile import ELFFile
from test_library_elf import MANGLED_TORCH, SYSTEM_LIBRARIES, read_dynamic, read_symbols


@pytest.fixture
def elf(library_path: Path) -> Iterator[ELFFile]:
    if torch_sparse_ops.CUDA_VERSION is None:
        pytest.skip("a build for the CPU")
    with library_path.with_name(torch_sparse_ops.CUDA_LIBRARY_NAME).open("rb") as stream:
        yield ELFFile(stream)


def test_it_needs_torch_the_cuda_runtime_and_the_system(elf: ELFFile) -> None:
    major = str(torch_sparse_ops.CUDA_VERSION).partition(".")[0]
    needed = set(read_dynamic(elf, "DT_NEEDED")) - SYSTEM_LIBRARIES
    assert needed == {"libtorch_cpu.so", "libtorch_cuda.so", f"libcudart.so.{major}"}


def test_of_torch_it_uses_c_functions_only(elf: ELFFile) -> None:
    undefined = read_symbols(elf, undefined=True)
    assert {name for name in undefined if MANGLED_TORCH.search(name)} == set()
    assert {"aoti_torch_get_current_cuda_stream", "torch_call_dispatcher", "torch_library_impl"} <= undefined


def test_it_exports_nothing_of_its_own(elf: ELFFile) -> None:
    defined = read_symbols(elf, undefined=False)
    assert {
        name for name in defined if "torch" in name or "fixed_fan_in" in name or "compute_" in name
    } == set()


def test_it_finds_torch_and_the_cuda_runtime_relative_to_itself(elf: ELFFile) -> None:
    (paths,) = read_dynamic(elf, "DT_RUNPATH") + read_dynamic(elf, "DT_RPATH")
    assert all(path.startswith("$ORIGIN/") for path in paths.split(":"))


def test_it_is_small(elf: ELFFile, library_path: Path) -> None:
    assert library_path.with_name(torch_sparse_ops.CUDA_LIBRARY_NAME).stat().st_size < 4_000_000
