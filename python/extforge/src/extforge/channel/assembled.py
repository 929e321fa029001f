"""Plan packages that no wheel holds: dependencies on others, links into them, and small texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from extforge.channel.archive import Entry, PlannedPackage
from extforge.channel.repack import FORMAT, link_entry, read_text


class AssembledRow(NamedTuple):
    """One package.

    ``links`` are (path, target) pairs of the prefix, ``texts`` are (path, file of this Python package) pairs,
    ``exports`` are (strength, spec) pairs.
    """

    name: str
    version: str
    summary: str
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    exports: tuple[tuple[str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    texts: tuple[tuple[str, str], ...] = ()


ROWS: tuple[AssembledRow, ...] = (
    AssembledRow("pybind11-abi", "11", "Says which internals of pybind11 the modules of a prefix share"),
)


def plan_assembled(row: AssembledRow) -> PlannedPackage:
    run_exports: dict[str, list[str]] = {}
    for strength, spec in row.exports:
        run_exports.setdefault(strength, []).append(spec)
    texts = tuple((path, read_text(source)) for path, source in row.texts)
    return PlannedPackage(
        name=row.name,
        version=row.version,
        build=f"h{hashlib.sha256(repr((FORMAT, row, texts)).encode()).hexdigest()[:7]}_0",
        subdir="noarch",
        summary=row.summary,
        license="BSD-3-Clause",
        entries=partial(assembled_entries, row.links, texts),
        depends=row.depends,
        constrains=row.constrains,
        run_exports=run_exports,
        noarch="generic",
    )


def assembled_entries(
    links: tuple[tuple[str, str], ...], texts: tuple[tuple[str, str], ...]
) -> Iterator[Entry]:
    """Yield the files of one package."""
    yield from (link_entry(path, target) for path, target in links)
    yield from (Entry(path, text=text) for path, text in texts)

