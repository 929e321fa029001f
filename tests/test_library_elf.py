"""What the operator library promises as a file: one build for every torch since 2.10 and for every Python."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

SYSTEM_LIBRARIES = {"libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
MANGLED_TORCH = re.compile(r"^_Z\w*?(2at|3c10|5torch|6caffe2)(?=[0-9A-Z])")
FOREIGN_RUNTIMES = re.compile(r"^(_?Py[A-Z_]|GOMP_|omp_|__kmpc|cu[A-Z]|cuda[A-Z])")
ABSOLUTE_PATH = re.compile(rb"(?<![\w.$:/+-])/[\w.+-]{2,}/[\w./+-]{2,}")


@pytest.fixture
def elf(library_path: Path) -> Iterator[ELFFile]:
    with library_path.open("rb") as stream:
        yield ELFFile(stream)


def read_dynamic(elf: ELFFile, tag: str) -> list[str]:
    section = elf.get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    attribute = {"DT_NEEDED": "needed", "DT_RUNPATH": "runpath", "DT_RPATH": "rpath"}[tag]
    return [getattr(entry, attribute) for entry in section.iter_tags(tag)]


def read_symbols(elf: ELFFile, undefined: bool) -> set[str]:
    table = elf.get_section_by_name(".dynsym")
    assert isinstance(table, SymbolTableSection)
    symbols = (s for s in table.iter_symbols() if (s["st_shndx"] == "SHN_UNDEF") is undefined)
    return {symbol.name for symbol in symbols if symbol.name}


def test_it_needs_libtorch_cpu_and_the_system(elf: ELFFile) -> None:
    needed = set(read_dynamic(elf, "DT_NEEDED"))
    assert "libtorch_cpu.so" in needed
    assert (
        needed - {"libtorch_cpu.so"} <= SYSTEM_LIBRARIES
    )  # so no libc10, libtorch_python, libgomp, libpython


def test_of_torch_it_uses_c_functions_only(elf: ELFFile) -> None:
    undefined = read_symbols(elf, undefined=True)
    assert {name for name in undefined if MANGLED_TORCH.search(name)} == set()
    assert {"torch_library_impl", "torch_parallel_for", "torch_call_dispatcher"} <= undefined


@pytest.mark.parametrize(
    ("name", "is_torch"),
    [
        ("_ZN2at6Tensor3addERKS0_", True),
        ("_ZNK3c1010TensorImpl5sizesEv", True),
        ("_ZTIN3c105ErrorE", True),
        ("_ZN5torch7LibraryD1Ev", True),
        ("_ZNSt13runtime_errorC1ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", False),
        ("aoti_torch_get_dim", False),
    ],
)
def test_mangled_torch_names_are_recognised(name: str, is_torch: bool) -> None:
    assert bool(MANGLED_TORCH.search(name)) is is_torch


def test_it_uses_no_python_openmp_or_cuda(elf: ELFFile) -> None:
    assert {name for name in read_symbols(elf, undefined=True) if FOREIGN_RUNTIMES.search(name)} == set()


def test_it_exports_nothing_of_its_own(elf: ELFFile) -> None:
    defined = read_symbols(elf, undefined=False)
    assert {name for name in defined if "torch" in name or "fixed_fan_in" in name or "ffi_" in name} == set()


def test_it_finds_torch_relative_to_itself(elf: ELFFile) -> None:
    paths = [
        entry
        for tag in ("DT_RUNPATH", "DT_RPATH")
        for text in read_dynamic(elf, tag)
        for entry in text.split(":")
    ]
    assert paths
    assert all(path == "$ORIGIN" or path.startswith("$ORIGIN/") for path in paths)


def test_its_stack_is_not_executable(elf: ELFFile) -> None:
    (stack,) = (segment for segment in elf.iter_segments() if segment["p_type"] == "PT_GNU_STACK")
    assert stack["p_flags"] & 1 == 0


def test_it_is_bound_at_load_and_read_only_after(elf: ELFFile) -> None:
    section = elf.get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    flags = {tag.entry.d_tag: tag.entry.d_val for tag in section.iter_tags()}
    assert flags.get("DT_FLAGS", 0) & 0x8 or flags.get("DT_FLAGS_1", 0) & 0x1  # DF_BIND_NOW, DF_1_NOW
    assert any(segment["p_type"] == "PT_GNU_RELRO" for segment in elf.iter_segments())


def test_it_holds_no_path_of_the_build_machine(library_path: Path, source_root: Path) -> None:
    content = library_path.read_bytes()
    assert ABSOLUTE_PATH.findall(content) == []
    for directory in (source_root, Path(sys.prefix), Path(torch.__file__).parent):
        assert str(directory).encode() not in content


@pytest.mark.parametrize("text", [b"/home/me/torch/x.h", b"\0/usr/include/c++/12", b" /opt/conda/lib"])
def test_absolute_paths_are_recognised(text: bytes) -> None:
    assert ABSOLUTE_PATH.search(text)


@pytest.mark.parametrize(
    "text", [b"csrc/cpu/fixed_fan_in.cpp", b"$ORIGIN/../torch/lib:$ORIGIN/../../..", b"torch/csrc/x.h"]
)
def test_relative_paths_are_not_taken_for_absolute(text: bytes) -> None:
    assert not ABSOLUTE_PATH.search(text)


def test_it_is_stripped(elf: ELFFile) -> None:
    assert elf.get_section_by_name(".symtab") is None
    assert elf.get_section_by_name(".debug_info") is None
