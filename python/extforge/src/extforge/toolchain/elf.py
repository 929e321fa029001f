"""The two facts of an ELF header that decide whether a file can be used here: class and machine.

Twenty bytes are read. Anything deeper (needed libraries, symbols) belongs to pyelftools, which
takes longer to import than a whole resolution takes to run.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

# e_machine numbers of the System V ABI supplements.
MACHINES = {3: "i386", 21: "ppc64le", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
HEADER_SIZE = 20


class ElfKind(NamedTuple):
    """``bits`` is 32 or 64; ``machine`` is spelled as ``uname -m`` spells it."""

    bits: int
    machine: str


def read_kind(path: Path) -> ElfKind | None:
    """Return class and machine of ``path``, or None when it is no ELF file.

    Raises OSError when the file cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(HEADER_SIZE)
    if len(header) < HEADER_SIZE or header[:4] != b"\x7fELF":
        return None
    order = "little" if header[5] == 1 else "big"
    number = int.from_bytes(header[18:20], order)  # type: ignore[arg-type]
    return ElfKind(64 if header[4] == 2 else 32, MACHINES.get(number, f"machine {number}"))
