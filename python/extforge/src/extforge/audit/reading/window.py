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
    """The ``size`` bytes from ``start`` of an open file (by default, all of it), as offsets and lengths."""

    def __init__(self, stream: IO[bytes], start: int = 0, size: int | None = None) -> None:
        self._stream = stream
        self._start = start
        self.size = stream.seek(0, os.SEEK_END) - start if size is None else size

    def at(self, offset: int, length: int, largest: int = 64 << 20) -> bytes:
        """Return exactly ``length`` bytes from ``offset``."""
        if offset < 0 or length < 0 or length > largest or offset + length > self.size:
            raise Malformed(f"{length} bytes at offset {offset} of a file of {self.size}")
        self._stream.seek(self._start + offset)
        return self._stream.read(length)

    def pieces(self, overlap: int) -> Iterator[Piece]:
        """Yield the whole file; each piece repeats up to ``overlap`` bytes of the one before it."""
        self._stream.seek(self._start)
        offset, tail = 0, b""
        while piece := self._stream.read(min(PIECE, self.size - offset)):
            yield Piece(offset - len(tail), tail + piece, len(tail))
            offset += len(piece)
            tail = piece[-overlap:] if overlap else b""
