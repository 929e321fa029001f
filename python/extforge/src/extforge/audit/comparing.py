"""Two builds of one package: byte-equal, or exactly what differs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from extforge.audit.model import Entry, Package
from extforge.audit.reading.package import read_package
from extforge.audit.reading.window import Window

PIECE = 1 << 20


class Difference(NamedTuple):
    """One thing that differs: the path (empty for the packages as such), and how."""

    path: str
    first: str
    second: str


def compare_packages(first: Path, second: Path) -> tuple[Difference, ...]:
    """What differs between two package files; nothing when they are equal byte for byte.

    Entries are compared by kind, mode, link target, size and SHA-256; when all of them agree and the files
    still differ, the packing does (order, times, compression), and the first differing byte is named.
    """
    if first.is_file() and second.is_file() and _first_difference(first, second) is None:
        return ()
    found = tuple(_differences(read_package(first), read_package(second)))
    if not found and first.is_file() and second.is_file():
        at = _first_difference(first, second)
        return (
            Difference(
                "", f"packed alike up to byte {at}", "same entries: order, times or compression differ"
            ),
        )
    return found


def _differences(first: Package, second: Package) -> Iterator[Difference]:
    for path in sorted(first.entries.keys() | second.entries.keys()):
        one, other = (_described(package, package.entries.get(path)) for package in (first, second))
        if one != other:
            yield Difference(path, one, other)


def _described(package: Package, entry: Entry | None) -> str:
    if entry is None:
        return "absent"
    digest = package.digests.get(entry.path, "")
    content = f" {entry.size} bytes {digest[:16]}" if digest else ""
    return (
        f"{entry.kind.value} {entry.mode:o}{content}{' to ' + entry.link_target if entry.link_target else ''}"
    )


def _first_difference(first: Path, second: Path) -> int | None:
    with first.open("rb") as one, second.open("rb") as other:
        windows = Window(one), Window(other)
        for at in range(0, max(w.size for w in windows), PIECE):
            pieces = [w.at(at, max(0, min(PIECE, w.size - at))) if at < w.size else b"" for w in windows]
            if pieces[0] != pieces[1]:
                equal = (i for i, (a, b) in enumerate(zip(*pieces, strict=False)) if a != b)
                return at + next(equal, min(map(len, pieces)))
    return None
