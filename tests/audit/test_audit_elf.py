"""What the reader says of real libraries, against what went into them."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from extforge.audit.binaries import DeviceImage, Elf
from extforge.audit.reading.elf import is_linked_elf, read_elf
from extforge.audit.reading.limits import Allowance
from extforge.audit.reading.window import Malformed, Window
from forging import CLEAN, STABLE, Library

Compiled = Callable[[Library], bytes]


def read(content: bytes) -> Elf:
    return read_elf(Window(io.BytesIO(content)), Allowance(60))


# library -> (attribute of what is read, its value)
CASES: dict[str, tuple[Library, str, Any]] = {
    "needed": (STABLE, "needed", ("libtorch_cpu.so", "libc.so.6")),
    "soname": (replace(STABLE, soname="libthing.so.1"), "soname", "libthing.so.1"),
    "run path": (replace(STABLE, run_path="$ORIGIN:$ORIGIN/x"), "run_paths", ("$ORIGIN", "$ORIGIN/x")),
    "run path tag": (replace(STABLE, run_path="$ORIGIN"), "run_path_tag", "RUNPATH"),
    "exports": (replace(STABLE, exports=("one", "two")), "exports", frozenset({"one", "two"})),
    "C++ exports": (replace(STABLE, exports=("_Z3onev",)), "cxx_exports", ("_Z3onev",)),
    "versions": (replace(STABLE, versions=("GLIBC_2.30",)), "version_needs", frozenset({"GLIBC_2.30"})),
    "machine": (STABLE, "machine", "x86_64"),
    "foreign machine": (replace(STABLE, machine=183), "machine", "aarch64"),
    "stack": (replace(STABLE, flags=("-Wl,-z,execstack",)), "executable_stack", True),
    "no stack": (STABLE, "executable_stack", False),
    "relro": (STABLE, "relro", True),
    "no relro": (replace(STABLE, flags=("-Wl,-z,noexecstack", "-Wl,-z,norelro")), "relro", False),
    "build path": (
        replace(STABLE, strings=("/home/me/a.cpp", "/usr/home/me/b")),
        "build_paths",
        ("/home/me/a.cpp",),
    ),
    "no build path": (
        replace(STABLE, strings=("/tmp/x", "/root/.bashrc", "/tmp/.X11-unix/X")),
        "build_paths",
        (),
    ),
    "operators": (replace(STABLE, strings=("aten::sort", "aten::add.Tensor(")), "operators", ("add", "sort")),
    "images": (
        replace(STABLE, images=((2, 80), (1, 120))),
        "device_images",
        (DeviceImage("ptx", "12.0"), DeviceImage("sass", "8.0")),
    ),
    "nothing unread": (replace(STABLE, flags=(*CLEAN, "-Wl,--hash-style=sysv")), "unread", ()),
}


@pytest.mark.parametrize("name", CASES)
def test_reader_sees_what_was_linked(name: str, compiled: Compiled) -> None:
    library, attribute, value = CASES[name]
    assert getattr(read(compiled(library)), attribute) == value


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_symbols_are_read_by_either_hash(style: str, compiled: Compiled) -> None:
    library = replace(STABLE, flags=(*CLEAN, f"-Wl,--hash-style={style}"), versions=("GLIBC_2.30",))
    elf = read(compiled(library))
    assert {s.name for s in elf.hard_imports} >= {"torch_get_mutable_data_ptr", "versioned_0"}
    assert {s.version for s in elf.imports if s.name == "versioned_0"} == {"GLIBC_2.30"}
    assert {s.library for s in elf.imports if s.name == "versioned_0"} == {"libc.so.6"}


def test_library_without_exports_shows_its_imports(compiled: Compiled) -> None:
    elf = read(
        compiled(replace(STABLE, exports=("hidden_one",), flags=(*CLEAN, "-fvisibility=hidden", "-O0")))
    )
    assert elf.unread == ()
    assert not elf.exports


@pytest.mark.parametrize(
    ("head", "linked"),
    [
        (b"\x7fELF\x02\x01" + bytes(10) + b"\x03\x00", True),
        (b"\x7fELF\x02\x02" + bytes(10) + b"\x00\x02", True),
        (b"\x7fELF\x02\x01" + bytes(10) + b"\x01\x00", False),
        (b"\x7fELF\x02\x09" + bytes(10) + b"\x03\x00", False),
        (b"\x7fELF", False),
        (b"#!/bin/sh", False),
    ],
)
def test_only_linked_files_are_read(head: bytes, linked: bool) -> None:
    assert is_linked_elf(head) is linked


def _with(content: bytes, offset: int, layout: str, value: int) -> bytes:
    changed = bytearray(content)
    struct.pack_into(layout, changed, offset, value)
    return bytes(changed)


# What is overwritten in the ELF header, and what the refusal names.
LIES = {
    "program headers beyond the end": (32, "<Q", 1 << 60, "56 bytes at offset"),
    "too many program headers": (56, "<H", 0xFFFF, "bytes at offset"),
    "program headers all at one place": (54, "<I", 0xFFFF0000, "more than 5000 headers"),
    "class": (4, "<B", 7, "ELF class 7"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lying_header_is_malformed(lie: str, compiled: Compiled) -> None:
    offset, layout, value, words = LIES[lie]
    with pytest.raises(Malformed, match=words):
        read(_with(compiled(STABLE), offset, layout, value))


@pytest.mark.parametrize("length", [0, 3, 16, 63, 64, 200, 1000])
def test_truncated_file_is_malformed(length: int, compiled: Compiled) -> None:
    with pytest.raises(Malformed):
        read(compiled(STABLE)[:length])


def test_versions_that_go_round_are_malformed(compiled: Compiled) -> None:
    """Found by fuzzing: counts that multiply, and links that lead nowhere new."""
    content = bytearray(compiled(replace(STABLE, versions=("GLIBC_2.30",))))
    at = _value_at(content, 0x6FFFFFFE)  # DT_VERNEED; in these libraries addresses are offsets
    struct.pack_into("<H", content, at + 2, 0xFFFF)  # vn_cnt
    struct.pack_into("<I", content, at + 16 + 12, 0)  # vna_next
    with pytest.raises(Malformed, match="more than 5000 headers, dynamic entries and versions"):
        read(bytes(content))


def _value_at(content: bytearray, tag: int) -> int:
    """The value of a dynamic entry."""
    entry = content.index(struct.pack("<Q", tag))
    value: int = struct.unpack_from("<Q", content, entry + 8)[0]
    return value


def test_more_names_than_memory_allows_is_malformed(compiled: Compiled) -> None:
    window = Window(io.BytesIO(compiled(STABLE)))
    with pytest.raises(Malformed, match="more symbol names"):
        read_elf(window, Allowance(60, symbol_bytes=100))
