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
    metadata_bytes: int = 32 * MEBI
    symbol_bytes: int = 256 * MEBI
    unpacked_bytes: int = 1024 * MEBI
    unpacked_ratio: int = 40
    seconds: float = 60.0
    seconds_per_mebibyte: float = 0.6

    def largest_unpacked(self, packed: int) -> int:
        """Bytes that an archive of ``packed`` bytes may unpack to."""
        return max(self.unpacked_bytes, packed * self.unpacked_ratio)

    def allowance(self, packed: int) -> Allowance:
        """What may be spent on reading an input of ``packed`` bytes."""
        extra = max(0, packed // MEBI - 100) * self.seconds_per_mebibyte
        return Allowance(self.seconds + extra, self.symbol_bytes)


class Allowance:
    """Time until which, and memory for symbol names with which, one package must have been read."""

    # What a name costs beside its characters: two objects and an entry in a table.
    OVERHEAD = 200

    def __init__(self, seconds: float, symbol_bytes: int = 256 * MEBI) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._symbol_bytes = symbol_bytes

    def check_time(self) -> None:
        """Raise :class:`BadInputError` when the time is over."""
        if time.monotonic() > self._end:
            raise BadInputError(f"reading took longer than {self._seconds:.0f} s, which no real package does")

    def take_name(self, length: int) -> bool:
        """Whether one more symbol name may be kept."""
        self._symbol_bytes -= length + self.OVERHEAD
        return self._symbol_bytes >= 0
