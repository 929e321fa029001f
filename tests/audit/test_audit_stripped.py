"""A stripped copy of a library gets the same verdict, or one that says what could not be verified."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from extforge.audit import audit_packages
from extforge.audit.model import Level
from forging import CUDA, STABLE, Library, Spec, strip, without_sections, write_conda

FAULTY = {
    "later shim": replace(STABLE, uses=("torch_new_stable_ivalue",)),
    "classic ABI": replace(STABLE, uses=("_ZN3c1010TensorImpl5reshEv",)),
    "glibc": replace(STABLE, versions=("GLIBC_2.38",)),
    "run path": replace(STABLE, run_path="/home/builder/lib"),
    "operator by name": replace(STABLE, uses=("torch_call_dispatcher",), strings=("aten::linalg_polar",)),
    "GPU code": replace(CUDA, images=((2, 80),)),
    "two runtimes": replace(CUDA, needed=("libcudart.so.13", "libcudart-0a1b2c3d.so.13")),
}


def without_hash(content: bytes, directory: Path) -> bytes:
    """The dynamic entry that tells the number of symbols is turned into one that nobody reads."""
    return content.replace(struct.pack("<Q", 0x6FFFFEF5), struct.pack("<Q", 0x6FFFF000), 1)


STRIPPERS: dict[str, Callable[[bytes, Path], bytes]] = {
    "strip": strip,
    "without sections": without_sections,
    "without hash": without_hash,
}


def found(content: bytes, directory: Path) -> dict[str, set[Level]]:
    directory.mkdir()
    path = write_conda(Spec(files={"lib/libthing.so": content}), directory)
    levels: dict[str, set[Level]] = {}
    for finding in audit_packages([path]).findings:
        levels.setdefault(finding.code, set()).add(finding.level)
    return levels


@pytest.mark.parametrize("stripper", STRIPPERS)
@pytest.mark.parametrize("fault", FAULTY)
def test_stripped_copy_gets_the_same_verdict(
    fault: str, stripper: str, compiled: Callable[[Library], bytes], tmp_path: Path
) -> None:
    content = compiled(FAULTY[fault])
    stripped = STRIPPERS[stripper](content, tmp_path)
    assert stripped != content or stripper == "strip"
    whole, bare = found(content, tmp_path / "whole"), found(stripped, tmp_path / "bare")
    unverified = any(Level.UNVERIFIED in levels for code, levels in bare.items() if code != "C08")
    assert whole == bare or unverified


def test_library_without_symbol_count_is_not_verified(compiled: Any, tmp_path: Path) -> None:
    content = without_hash(compiled(FAULTY["later shim"]), tmp_path)
    # Without the neighbouring string table, too, nothing bounds the symbols.
    table = bytearray(content)
    at = table.index(struct.pack("<Q", 5), table.index(b"\x05" + bytes(7)))
    dynamic = next(i for i in range(at, len(table) - 16, 8) if table[i : i + 8] == struct.pack("<Q", 5))
    address = struct.unpack_from("<Q", table, dynamic + 8)[0]
    table[dynamic + 8 : dynamic + 16] = struct.pack("<Q", address - 8)
    levels = found(bytes(table), tmp_path / "package")
    assert levels["H08"] == {Level.UNVERIFIED}
