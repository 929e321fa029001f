"""The fat binary reader against made-up containers, and against what NVIDIA's compiler writes."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from extforge.audit.binaries import DeviceImage
from extforge.audit.reading.cuobjdump import ask_cuobjdump
from extforge.audit.reading.elf import read_elf
from extforge.audit.reading.fatbin import architecture_name, read_device_images
from extforge.audit.reading.limits import Allowance
from extforge.audit.reading.window import Malformed, Window
from forging import fat_binary

KERNEL = '__global__ void k(float* x) { x[0] += 1; }\nextern "C" void launch(float* x) { k<<<1, 1>>>(x); }\n'


def images(content: bytes) -> list[DeviceImage]:
    return list(read_device_images(Window(io.BytesIO(content)), 0))


def test_entries_are_listed_in_order() -> None:
    assert images(fat_binary(((2, 75), (2, 100), (1, 120)))) == [
        DeviceImage("sass", "7.5"),
        DeviceImage("sass", "10.0"),
        DeviceImage("ptx", "12.0"),
    ]


@pytest.mark.parametrize(
    ("number", "flags", "name"),
    [(80, 0x11, "8.0"), (90, 0x100011, "9.0a"), (100, 0x1200011, "10.0f"), (121, 0, "12.1")],
)
def test_architecture_is_named(number: int, flags: int, name: str) -> None:
    assert architecture_name(number, flags) == name


@pytest.mark.parametrize(
    ("offset", "layout", "value"),
    [(8, "<Q", 1 << 62), (16 + 2, "<H", 7), (16 + 4, "<I", 8), (16 + 8, "<Q", 1 << 63)],
    ids=["container size", "entry version", "header size", "payload size"],
)
def test_lying_sizes_are_malformed(offset: int, layout: str, value: int) -> None:
    content = bytearray(fat_binary(((2, 80),)))
    struct.pack_into(layout, content, offset, value)
    with pytest.raises(Malformed):
        images(bytes(content))


def test_empty_container_holds_nothing() -> None:
    assert images(fat_binary(())) == []


# nvcc arguments -> what the library must then hold; relocatable code is found in its own section.
COMPILED = {
    "plain": (("arch=compute_80,code=sm_80", "arch=compute_90,code=compute_90"), (), {"sass 8.0", "ptx 9.0"}),
    "specific": (
        ("arch=compute_90a,code=sm_90a", "arch=compute_100f,code=sm_100f"),
        (),
        {"sass 9.0a", "sass 10.0f"},
    ),
    "relocatable": (("arch=compute_80,code=sm_80",), ("-rdc=true",), {"sass 8.0"}),
}


@pytest.mark.nvcc
@pytest.mark.parametrize("name", COMPILED)
def test_reader_agrees_with_nvcc_and_cuobjdump(name: str, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on PATH")
    codes, flags, wanted = COMPILED[name]
    (tmp_path / "k.cu").write_text(KERNEL)
    library = tmp_path / "libk.so"
    options = [option for code in codes for option in ("-gencode", code)]
    command = [nvcc, "-shared", "-Xcompiler", "-fPIC", *options, *flags, "-cudart", "shared"]
    subprocess.run([*command, "-o", str(library), str(tmp_path / "k.cu")], check=True, capture_output=True)
    with library.open("rb") as stream:
        elf = read_elf(Window(stream), Allowance(60))
    # nvcc puts code of its own runtime, for its default architectures, into some libraries.
    assert {f"{i.kind} {i.architecture}" for i in elf.device_images} >= wanted
    program = shutil.which("cuobjdump")
    if program is not None:
        opinion = ask_cuobjdump(Path(program), library)
        assert {(i.kind, i.architecture) for i in opinion.images} == {
            (i.kind, i.architecture.rstrip("f")) for i in elf.device_images
        }


@pytest.mark.nvcc
@pytest.mark.parametrize(("runtime", "held"), [("static", True), ("shared", False)])
def test_a_static_runtime_is_recognised_in_what_nvcc_links(runtime: str, held: bool, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on PATH")
    (tmp_path / "k.cu").write_text(KERNEL)
    command = [nvcc, "-shared", "-Xcompiler", "-fPIC", "-cudart", runtime, "-o", "libk.so", "k.cu"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    for command in (["true"], ["strip", "--strip-all", "libk.so"]):
        subprocess.run(command, cwd=tmp_path, check=True)
        with (tmp_path / "libk.so").open("rb") as stream:
            assert read_elf(Window(stream), Allowance(60)).holds_cuda_runtime is held


def test_cuobjdump_that_fails_is_a_problem(tmp_path: Path) -> None:
    program = tmp_path / "cuobjdump"
    program.write_text("#!/bin/sh\necho 'no such thing' >&2\nexit 3\n")
    program.chmod(0o755)
    assert ask_cuobjdump(program, tmp_path / "x.so").problem == "cuobjdump failed: no such thing"


def test_absent_cuobjdump_is_a_problem(tmp_path: Path) -> None:
    assert "could not be asked" in ask_cuobjdump(tmp_path / "none", tmp_path / "x.so").problem
