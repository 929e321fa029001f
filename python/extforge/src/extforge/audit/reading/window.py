"""Random access to a file's bytes in bounded pieces; every piece that is asked for exists, or is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, NamedTuple

PIECE = 4 << 20


class Malformed(ValueError):
    """The file contradicts itself: an offset, a size or a count leads outside."""


class Piece(NamedTuple):
    """Bytes from ``offset``, of which the first ``repeated`` were part of the piece before."""

    offset: int
    content: bytes
    repeated: int


class Window:
    """A file opened for reading, as offsets and lengths."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.size = stream.seek(0, os.SEEK_END)

    def at(self, offset: int, length: int, largest: int = 64 << 20) -> bytes:
        """Return exactly ``length`` bytes from ``offset``."""
        if offset < 0 or length < 0 or length > largest or offset + length > self.size:
            raise Malformed(f"{length} bytes at offset {offset} of a file of {self.size}")
        self.stream.seek(offset)
        return self.stream.read(length)

    def pieces(self, overlap: int) -> Iterator[Piece]:
        """Yield the whole file; each piece repeats up to ``overlap`` bytes of the one before it."""
        self.stream.seek(0)
        offset, tail = 0, b""
        while piece := self.stream.read(PIECE):
            yield Piece(offset - len(tail), tail + piece, len(tail))
            offset += len(piece)
            tail = piece[-overlap:]
