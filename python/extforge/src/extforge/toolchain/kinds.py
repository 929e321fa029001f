"""Recognising what kind of toolkit a directory is, and opening it as a :class:`Root`.

Each recogniser takes a path and returns the base directory of its kind, climbing from a part to the
whole where users and tools commonly name the part, or None.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from extforge.toolchain.catalogue import (
    CUDA_PARTS,
    EVIDENCE,
    LAYOUTS,
    MULTIARCH,
    TARGETS,
    VERSION_PATTERNS,
    WHEEL_COMPONENTS,
    Part,
)
from extforge.toolchain.elf import read_kind
from extforge.toolchain.examine import examine, first_usable
from extforge.toolchain.interpreter import Interpreter
from extforge.toolchain.model import Root, Tried
from extforge.toolchain.prefixes import Prefixes
from extforge.toolchain.query import Query

VIEW_MARKER = "extforge-view.json"


class Layouts(NamedTuple):
    """What decides how a root is laid out here. ``compiler`` is lent to nvcc when it is asked."""

    query: Query
    prefixes: Prefixes
    interpreter: Interpreter
    machine: str
    compiler: Path | None
    torch_cuda: str | None


def open_root(layouts: Layouts, value: str, via: str) -> Root | Tried:
    """Return the root that ``value`` (a directory; with ``via`` nvcc, that program) names, or why none."""
    if ":" in value and not Path(value).exists():
        return Tried(value, "list", f"{value.count(':') + 1} entries")
    if not value.startswith("/"):
        return Tried(value, "relative")
    kind = "program" if via == "nvcc" else "directory"
    fault = examine(Path(value), kind, layouts.query.native)
    if fault is not None:
        return fault
    named = _ask_nvcc(layouts, Path(value)) if via == "nvcc" else value
    if named is None:
        return Tried(value, "mute", "--dryrun names no toolkit")
    try:
        return _open_directory(layouts, Path(named), via)
    except PermissionError as error:
        return Tried(value, "unreadable", str(error.filename))


def _open_directory(layouts: Layouts, path: Path, via: str, ask: bool = True) -> Root | Tried:
    kind, base = recognise(path)
    target = _choose_target(layouts, kind, base)
    if isinstance(target, Tried):
        return target
    root = Root(kind, base, via, target, _list_places(layouts, kind, base, target or ""))
    foreign = _ask_foreign_nvcc(layouts, root) if ask else None
    if foreign is not None:
        return _open_directory(layouts, foreign, via, ask=False)
    held = [locate(layouts, root, name) for name in EVIDENCE]
    if not any(found for found, _ in held):
        faults = [fault for _, faults in held for fault in faults if fault.reason != "absent"]
        return Tried(str(path), "no-cuda", "; ".join(map(str, faults)) or "looked for " + ", ".join(EVIDENCE))
    return root


def recognise(path: Path) -> tuple[str, Path]:
    """Return the kind and the base directory; what nothing else claims is a classic toolkit."""
    for kind, recogniser in RECOGNISERS:
        base = recogniser(path)
        if base is not None:
            return recognise(base) if kind == "view" else (kind, base)
    return "ctk", path


def _as_view(path: Path) -> Path | None:
    """A view of ours stands for the root that it shows."""
    marker = path / VIEW_MARKER
    return Path(json.loads(marker.read_text())["root"]) if marker.is_file() else None


def _as_conda(path: Path) -> Path | None:
    above = path.parent.parent if path.parent.name == "targets" else path
    return above if (above / "conda-meta").is_dir() else None


def _as_wheel(path: Path) -> Path | None:
    return path if path.parent.name == "nvidia" and re.fullmatch(r"cu\d+", path.name) else None


def _as_wheels(path: Path) -> Path | None:
    above = path.parent if path.parent.name == "nvidia" else path
    return above if above.name == "nvidia" and any((above / c).is_dir() for c in WHEEL_COMPONENTS) else None


def _as_triton(path: Path) -> Path | None:
    return path if path.parts[-3:] == ("triton", "backends", "nvidia") else None


def _as_split(path: Path) -> Path | None:
    above = path.parent.parent if path.parts[-2:] == ("lib", "nvidia-cuda-toolkit") else path
    return above if (above / "lib/nvidia-cuda-toolkit").is_dir() else None


def _as_nvhpc(path: Path) -> Path | None:
    beside = (path.parent / "math_libs", path.parent.parent / "math_libs" / path.name)
    return path if any(directory.is_dir() for directory in beside) else None


RECOGNISERS: tuple[tuple[str, Callable[[Path], Path | None]], ...] = (
    ("view", _as_view),
    ("conda", _as_conda),
    ("triton", _as_triton),
    ("wheel", _as_wheel),
    ("wheels", _as_wheels),
    ("split", _as_split),
    ("nvhpc", _as_nvhpc),
)


def _list_places(layouts: Layouts, kind: str, base: Path, target: str) -> Mapping[str, tuple[Path, ...]]:
    """Return role -> existing directories. In a package build the tools' prefix serves as the second half."""
    words = {"target": target, "leaf": base.name, "multiarch": MULTIARCH.format(machine=layouts.machine)}
    places: dict[str, tuple[Path, ...]] = {}
    for role, patterns in LAYOUTS[kind].items():
        bases = _split_bases(layouts, base, role) if kind == "conda" else (base,)
        found = [p for b in bases for pattern in patterns for p in _expand(b, pattern.format(**words))]
        distinct: dict[Path, Path] = {}
        for place in filter(Path.is_dir, found):
            distinct.setdefault(place.resolve(), place)
        places[role] = tuple(distinct.values())
    return places


def _split_bases(layouts: Layouts, base: Path, role: str) -> tuple[Path, ...]:
    """Return where a role is looked for: in a package build the compiler's headers lie with the tools."""
    prefixes = layouts.prefixes
    if prefixes.tools == prefixes.prefix or base != prefixes.prefix:
        return (base,)
    return {"bin": (prefixes.tools,), "nvvm": (prefixes.tools,), "include": (base, prefixes.tools)}.get(
        role, (base,)
    )


def _expand(base: Path, pattern: str) -> list[Path]:
    if "*" in pattern:
        return sorted(base.glob(pattern))
    return [base / pattern]


def _choose_target(layouts: Layouts, kind: str, base: Path) -> str | Tried | None:
    """Return the target directory by content; two that fit need a record or the caller to decide."""
    names = TARGETS.get(layouts.machine, ())
    wanted = layouts.query.target
    present = [name for name in names if holds_headers(base / "targets" / name)]
    if wanted is not None and kind in ("conda", "ctk"):
        return wanted if (base / "targets" / wanted).is_dir() else Tried(f"{base}/targets/{wanted}", "absent")
    if len(present) > 1:
        present = [name for name in present if name.startswith(_platform_of(layouts, base))]
        if len(present) != 1:
            detail = "holds targets " + " and ".join(names) + "; choose one with --target"
            return Tried(str(base), "ambiguous", detail)
    return present[0] if present else names[0] if names and kind in ("conda", "ctk") else None


def holds_headers(directory: Path) -> bool:
    """Tell whether a target directory holds CUDA headers."""
    return any((directory / "include" / name).is_file() for name in ("cuda_runtime.h", "cuda.h"))


def _platform_of(layouts: Layouts, base: Path) -> str:
    """Return the target name's beginning for this arm platform: a conda record, else Tegra's own file."""
    for record in base.glob("conda-meta/arm-variant-*.json"):
        return "aarch64" if "tegra" in record.name else "sbsa"
    return "aarch64" if layouts.query.system.at("/etc/nv_tegra_release").is_file() else "sbsa"


def locate(layouts: Layouts, root: Root, name: str) -> tuple[Path | None, tuple[Tried, ...]]:
    """Return the part of ``root`` called ``name``, and the candidates that did not do."""
    part = PARTS[name]
    candidates = [path for place in root.places.get(part.role, ()) for path in _list_candidates(place, part)]
    kind = "file" if part.kind == "directory" else part.kind
    found, tried = first_usable(
        candidates, kind, layouts.query.native if kind == "program" else layouts.machine
    )
    if found is not None and part.kind == "directory":
        found = found.parent
    return found, tried


PARTS = {part.name: part for part in CUDA_PARTS}


def _list_candidates(place: Path, part: Part) -> list[Path]:
    return [path for name in part.names for path in sorted(_expand(place, name), reverse=True)]


def _ask_foreign_nvcc(layouts: Layouts, root: Root) -> Path | None:
    """Return another toolkit when the root's nvcc is a script or link that belongs to one."""
    nvcc, _ = locate(layouts, root, "nvcc")
    if nvcc is None or (read_kind(nvcc) is not None and nvcc.resolve().parent == nvcc.parent.resolve()):
        return None
    named = _ask_nvcc(layouts, nvcc)
    other = recognise(Path(named))[1] if named else root.path
    own = {path.resolve() for path in (root.path, layouts.prefixes.prefix, layouts.prefixes.tools)}
    return other if other.is_dir() and other.resolve() not in own else None


def _ask_nvcc(layouts: Layouts, nvcc: Path) -> str | None:
    """Return the toolkit directory that ``nvcc --dryrun`` names; it never compiles anything."""
    lent: list[str | Path] = ["-ccbin", layouts.compiler] if layouts.compiler else []
    _, answer = layouts.query.system.ask(nvcc, "--dryrun", "-E", "-x", "cu", "/dev/null", *lent)
    named = re.search(r"^#\$ TOP=(.+)$", answer, re.MULTILINE)
    return str(Path(named[1]).resolve()) if named else None


def with_version(layouts: Layouts, root: Root) -> Root:
    """Return the root with the version that nvcc tells, else the header's, else that of ptxas."""
    for name in ("nvcc", "cuda_include", "ptxas"):
        path, _ = locate(layouts, root, name)
        version = header_version(root) if name == "cuda_include" else ask_version(layouts.query, name, path)
        if version:
            return replace(root, version=version)
    return root


def header_version(root: Root) -> str | None:
    """Return major.minor as ``CUDA_VERSION`` in cuda.h states it."""
    for place in root.places.get("include", ()):
        header = place / "cuda.h"
        if header.is_file():
            stated = re.search(r"#define\s+CUDA_VERSION\s+(\d+)", header.read_text(errors="replace"))
            if stated:
                return f"{int(stated[1]) // 1000}.{int(stated[1]) % 1000 // 10}"
    return None


def ask_version(query: Query, name: str, path: Path | None) -> str | None:
    """Return the version that a program prints, or None when it does not print one."""
    if path is None or name not in VERSION_PATTERNS:
        return None
    _, answer = query.system.ask(path, "--version")
    stated = re.search(VERSION_PATTERNS[name], answer)
    return next(filter(None, stated.groups()), None) if stated else None
