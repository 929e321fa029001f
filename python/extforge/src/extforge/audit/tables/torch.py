"""Since which torch release a C shim or an operator exists; the table is ``torch.json`` beside this file."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

TABLE = Path(__file__).with_name("torch.json")
SHIM = re.compile(r"(?:aoti_torch|torch)_(?!c_dynamo)\w+")
LIBRARIES = ("libtorch_cpu.so", "libtorch_cuda.so")


class Shim(NamedTuple):
    """A C function of torch's stable ABI: the library that exports it and the first release that does."""

    library: str
    first: str


@cache
def shims() -> dict[str, Shim]:
    """Every known shim by name."""
    return {
        name: Shim(library, minor)
        for library, by_minor in _table()["shims"].items()
        for minor, names in by_minor.items()
        for name in names
    }


@cache
def operators() -> dict[str, str]:
    """Every known ``aten`` operator, overloads apart, and the first known release that has it."""
    return {name: minor for minor, names in _table()["operators"].items() for name in names}


def releases() -> tuple[str, ...]:
    """The torch releases from which the table was made, oldest first."""
    return tuple(_table()["releases"])


def order(minor: str) -> tuple[int, ...]:
    """A sort key for ``2.9`` and ``2.10``."""
    return tuple(map(int, minor.split(".")))


@cache
def _table() -> Any:
    return json.loads(TABLE.read_text())
