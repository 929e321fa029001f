"""Writes ``torch.json`` from torch itself, one release after another, oldest first::

    python -m extforge.audit.tables.regenerate torch-2.10/torch torch-2.11/torch ...

Each argument is an unpacked ``torch`` directory with ``lib`` and ``include``. What a release's libraries
export is what it has; a CPU build says nothing of ``libtorch_cuda``, so there the release's headers are taken
instead. Operators are the schemas that are spelled in ``libtorch_cpu``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from extforge.audit.reading.elf import read_elf
from extforge.audit.reading.limits import Allowance
from extforge.audit.reading.window import Window
from extforge.audit.tables.torch import LIBRARIES, SHIM, TABLE
from extforge.errors import BadInputError

SCHEMA = re.compile(rb"\0(?:aten::)?([A-Za-z_]\w*)(?:\.\w+)?\([^\0]{0,2000}\) -> ")
DECLARED = re.compile(r"\b((?:aoti_torch|torch)_\w+)\s*\(")
HEADERS = ("torch/csrc/stable/c", "torch/csrc/inductor/aoti_torch")


def read_release(torch: Path) -> tuple[str, dict[str, set[str]], set[str]]:
    """(minor, shims by library, operators) of the torch unpacked at ``torch``."""
    version = re.search(r"__version__ = '(\d+\.\d+)", (torch / "version.py").read_text())
    if version is None:
        raise BadInputError(f"{torch}/version.py states no __version__")
    declared: set[str] = set()
    for header in (h for root in HEADERS for h in (torch / "include" / root).rglob("*.h")):
        declared |= set(DECLARED.findall(header.read_text()))
    found = {name: exported_shims(torch / "lib" / name) for name in LIBRARIES}
    if not found["libtorch_cuda.so"]:
        found["libtorch_cuda.so"] = {name for name in declared if "cuda" in name} - found["libtorch_cpu.so"]
    return version[1], found, spelled_operators(torch / "lib" / "libtorch_cpu.so")


def exported_shims(library: Path) -> set[str]:
    """Names of C shims that a library of torch exports; none when this build of torch lacks the library."""
    if not library.exists():
        return set()
    with library.open("rb") as stream:
        return {name for name in read_elf(Window(stream), Allowance(600)).exports if SHIM.fullmatch(name)}


def spelled_operators(library: Path) -> set[str]:
    """Names of operators whose schema stands in the library's strings."""
    names: set[str] = set()
    with library.open("rb") as stream:
        for piece in Window(stream).pieces(4096):
            names |= {name.decode() for name in SCHEMA.findall(piece.content)}
    return names


def merge(released: Iterable[tuple[str, dict[str, set[str]], set[str]]]) -> dict[str, Any]:
    """The table: each name under the first release that has it."""
    table: dict[str, Any] = {"releases": [], "shims": {name: {} for name in LIBRARIES}, "operators": {}}
    known: set[str] = set()
    known_operators: set[str] = set()
    for minor, found, spelled in released:
        table["releases"].append(minor)
        for library, names in found.items():
            table["shims"][library][minor] = sorted(names - known)
            known |= names
        # Linkers let "conj(Tensor..." share the bytes of "_conj(Tensor...": a name that ends another one may
        # have been there before, unseen. It counts as old, so that nothing is refused wrongly.
        shared = {name for name in spelled if any(k.endswith(name) for k in known_operators)}
        table["operators"][minor] = sorted(spelled - shared)
        table["operators"][table["releases"][0]] += sorted(shared - known_operators)
        known_operators |= spelled
    return table


def main(directories: list[str]) -> None:
    """Write the table from the torch releases unpacked in ``directories``, oldest first."""
    table = merge(read_release(Path(d)) for d in directories)
    TABLE.write_text(json.dumps(table, indent=0) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
