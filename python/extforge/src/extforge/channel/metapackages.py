"""Plan packages without files: they only tie others together."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from extforge.channel.archive import PlannedPackage
from extforge.channel.repack import FORMAT


class MetaRow(NamedTuple):
    """One package; ``exports`` are (strength, spec) pairs."""

    name: str
    version: str
    summary: str
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    exports: tuple[tuple[str, str], ...] = ()


ROWS: tuple[MetaRow, ...] = (
    MetaRow("pybind11-abi", "11", "Says which internals of pybind11 the modules of an environment share"),
)


def plan_metapackage(row: MetaRow) -> PlannedPackage:
    run_exports: dict[str, list[str]] = {}
    for strength, spec in row.exports:
        run_exports.setdefault(strength, []).append(spec)
    return PlannedPackage(
        name=row.name,
        version=row.version,
        build=f"h{hashlib.sha256(repr((FORMAT, row)).encode()).hexdigest()[:7]}_0",
        subdir="noarch",
        summary=row.summary,
        license="BSD-3-Clause",
        entries=lambda: iter(()),
        depends=row.depends,
        constrains=row.constrains,
        run_exports=run_exports,
        noarch="generic",
    )
