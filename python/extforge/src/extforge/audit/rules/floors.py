"""How old a system may be: symbol versions against `__glibc`, `libstdcxx` and manylinux tags."""

from __future__ import annotations

import re
from collections.abc import Iterator

from extforge.audit.binaries import Elf
from extforge.audit.model import Context, Format, Observation, Package
from extforge.audit.requirements import allow
from extforge.audit.rules.labels import described, listed
from extforge.audit.tables.floors import (
    CONDA_GLIBC,
    GCC,
    GLIBC_RELEASES,
    LEGACY_TAGS,
    MANYLINUX,
    numbers,
)
from extforge.audit.tables.libraries import plain_name

MANYLINUX_TAG = re.compile(r"manylinux_(\d+)_(\d+)_\w+|(manylinux(?:1|2010|2014))_\w+")
# A file linked with packed relative relocations asks for this instead of a number.
DT_RELR_GLIBC = "2.36"


def newer_glibc(package: Package, context: Context) -> Iterator[Observation]:
    """F01."""
    floor, claim = glibc_floor(package)
    if not floor:
        return
    for path, elf in package.elves.items():
        seen = highest(elf, "GLIBC")
        if numbers(seen) > numbers(floor):
            yield Observation(path, claim, f"GLIBC_{seen}{_users(elf, 'GLIBC', seen)}", "c_stdlib_version")


def newer_libstdcxx(package: Package, context: Context) -> Iterator[Observation]:
    """F02."""
    ceilings, claim = libstdcxx_ceilings(package)
    if ceilings is None:
        return
    for path, elf in package.elves.items():
        for prefix, ceiling in zip(("GLIBCXX", "CXXABI"), ceilings, strict=True):
            seen = highest(elf, prefix)
            if numbers(seen) > numbers(ceiling):
                users = _users(elf, prefix, seen)
                yield Observation(
                    path, f"{claim}: {prefix}_{ceiling}", f"{prefix}_{seen}{users}", "libstdcxx"
                )
                break


def glibc_floor(package: Package) -> tuple[str, str]:
    """The oldest glibc on which the package claims to work, and the words of that claim; empty if none."""
    claims = package.claims
    if claims.format is Format.WHEEL:
        floor = _manylinux_floor(package)
        return floor, f"manylinux glibc {floor}"
    required = claims.required("__glibc")
    oldest = next((r for r in GLIBC_RELEASES if allow(required, r)), "") if required else CONDA_GLIBC
    return oldest, described(required, f"no __glibc requirement, so every glibc from {CONDA_GLIBC}")


def libstdcxx_ceilings(package: Package) -> tuple[tuple[str, str] | None, str]:
    """Highest GLIBCXX and CXXABI that the package may use, and the words of that claim."""
    claims = package.claims
    if claims.format is Format.WHEEL:
        floor = _manylinux_floor(package)
        bundled = any(plain_name(p.rpartition("/")[2]).startswith("libstdc++.so") for p in package.elves)
        rows = [v for k, v in MANYLINUX.items() if floor and numbers(k) <= numbers(floor)]
        return (rows[-1] if rows and not bundled else None), f"manylinux glibc {floor}"
    required = claims.required("libstdcxx", "libstdcxx-ng")
    series = next((n for n in GCC if allow(required, f"{n}.99")), None) if required else None
    return (GCC[series] if series else None), described(required, "")


def _manylinux_floor(package: Package) -> str:
    floors = []
    for tag in package.claims.tags:
        match = MANYLINUX_TAG.fullmatch(tag.platform)
        if match is None:
            return ""
        floors.append(LEGACY_TAGS[match[3]] if match[3] else f"{match[1]}.{match[2]}")
    return min(floors, key=numbers, default="")


def highest(elf: Elf, prefix: str) -> str:
    """The highest version ``PREFIX_N`` that a library needs; empty if it needs none."""
    versions = {v.removeprefix(f"{prefix}_") for v in elf.version_needs if v.startswith(f"{prefix}_")}
    if "ABI_DT_RELR" in versions:
        versions.add(DT_RELR_GLIBC)
    return max((v for v in versions if numbers(v)), key=numbers, default="")


def _users(elf: Elf, prefix: str, version: str) -> str:
    names = sorted(s.name for s in elf.hard_imports if s.version == f"{prefix}_{version}")
    return f" by {listed(names, 3)}" if names else ""


RULES = {"F01": newer_glibc, "F02": newer_libstdcxx}
