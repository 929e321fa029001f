"""Two builds of one package: byte-equal, or exactly what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from extforge.audit.escaping import printable
from extforge.audit.model import Entry, Location
from extforge.audit.reading.package import opened_package
from extforge.audit.reading.window import Window

PIECE = 1 << 20
#: How many bytes are shown before the first one that differs, and in all.
BEFORE, SHOWN = 20, 60


class Difference(NamedTuple):
    """One thing that differs: the path (empty for the packages as such), and how."""

    path: str
    first: str
    second: str

    @property
    def line(self) -> str:
        """The difference in words, safe to print."""
        return printable(f"{self.path or 'packing'}: {self.first} | {self.second}")


class Unequal(NamedTuple):
    """The first byte that differs, and the bytes around it in either file."""

    at: int
    first: bytes
    second: bytes


def compare_packages(first: Path, second: Path) -> tuple[Difference, ...]:
    """What differs between two packages; nothing when their files are equal byte for byte.

    Entries are compared by kind, mode, link target and content, of which the first difference is shown; when
    all of them agree and the files still differ, the packing does: order, times, compression.

    Raises :class:`NotFoundError` and :class:`BadInputError` as reading either package does.
    """
    files = first.is_file() and second.is_file()
    unequal = compare_bytes(Location(first), Location(second)) if files else None
    if files and unequal is None:
        return ()
    with opened_package(first) as entries, opened_package(second) as others:
        found = tuple(_differences(entries, others))
    if not found and unequal is not None:
        reason = "same entries: order, times or compression differ"
        return (Difference("", f"packed alike up to byte {unequal.at}", reason),)
    return found


def _differences(first: Mapping[str, Entry], second: Mapping[str, Entry]) -> Iterator[Difference]:
    for path in sorted(first.keys() | second.keys()):
        one, other = first.get(path), second.get(path)
        said = [_described(one), _described(other)]
        if one and other and one.location and other.location:
            unequal = compare_bytes(one.location, other.location, one.size, other.size)
            if unequal is not None:
                begin = max(0, unequal.at - BEFORE)
                said = [f"{s}, from byte {begin}: {b!r}" for s, b in zip(said, unequal[1:], strict=True)]
        if said[0] != said[1]:
            yield Difference(path, *said)


def _described(entry: Entry | None) -> str:
    if entry is None:
        return "absent"
    content = f", {entry.size} bytes" if entry.location else ""
    target = f" to {entry.link_target}" if entry.link_target else ""
    return f"{entry.kind.value} {entry.mode:o}{content}{target}"


def compare_bytes(
    first: Location, second: Location, first_size: int | None = None, second_size: int | None = None
) -> Unequal | None:
    """The first difference between two files, or between parts of files; ``None`` when they are equal."""
    with ExitStack() as stack:
        one, other = (
            Window(stack.enter_context(place.file.open("rb")), place.offset, size)
            for place, size in ((first, first_size), (second, second_size))
        )
        at = _first_difference(one, other)
        return None if at is None else Unequal(at, _excerpt(one, at), _excerpt(other, at))


def _first_difference(one: Window, other: Window) -> int | None:
    for at in range(0, max(one.size, other.size), PIECE):
        pieces = [_part(window, at, PIECE) for window in (one, other)]
        if pieces[0] != pieces[1]:
            equal = (i for i, (a, b) in enumerate(zip(*pieces, strict=False)) if a != b)
            return at + next(equal, min(map(len, pieces)))
    return None


def _excerpt(window: Window, at: int) -> bytes:
    return _part(window, max(0, at - BEFORE), SHOWN)


def _part(window: Window, at: int, length: int) -> bytes:
    """Up to ``length`` bytes from ``at``; fewer, or none, at the end."""
    begin = min(at, window.size)
    return window.at(begin, min(length, window.size - begin))
