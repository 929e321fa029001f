"""How much of this machine a package may use while it is read."""

from __future__ import annotations

import time
from dataclasses import dataclass

from extforge.errors import BadInputError

MEBI = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what an archive may unpack to, in entries, bytes and seconds.

    A package of up to 1 GiB may be packed as tightly as it likes; beyond that, its ratio must be one that
    compilers' and compressors' real output has.
    """

    entries: int = 150_000
    name_length: int = 4096
    metadata_bytes: int = 64 * MEBI
    unpacked_bytes: int = 1024 * MEBI
    unpacked_ratio: int = 40
    seconds: float = 60.0
    seconds_per_mebibyte: float = 0.6

    def largest_unpacked(self, packed: int) -> int:
        """Bytes that an archive of ``packed`` bytes may unpack to."""
        return max(self.unpacked_bytes, packed * self.unpacked_ratio)

    def deadline(self, packed: int) -> Deadline:
        """The moment by which an input of ``packed`` bytes must have been read."""
        extra = max(0, packed // MEBI - 100) * self.seconds_per_mebibyte
        return Deadline(self.seconds + extra)


class Deadline:
    """A moment after which reading is refused."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Raise :class:`BadInputError` when the moment has passed."""
        if time.monotonic() > self._end:
            raise BadInputError(f"reading took longer than {self._seconds:.0f} s, which no real package does")
