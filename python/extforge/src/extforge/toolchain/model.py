"""The records of a resolution: what was found, what was not, and why.

A record never says only *where*. ``via`` names the step that gave the answer and ``tried`` the
candidates it was preferred to, each with its reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from extforge.errors import ConflictError, NotFoundError
from extforge.toolchain.interpreter import Interpreter
from extforge.toolchain.system import System

REASONS = {
    "absent": "there is no such file",
    "dangling": "a link whose target is gone",
    "unreadable": "may not be read",
    "empty": "is empty",
    "directory": "is a directory, a file was expected",
    "not-a-directory": "is no directory",
    "not-executable": "lacks the permission to be executed",
    "not-elf": "is no ELF file",
    "wrong-elf-class": "is an ELF file of another word size",
    "wrong-machine": "is an ELF file for another machine",
    "stub": "is a stub, made for linking only",
    "list": "holds a list, one directory was expected",
    "relative": "is no absolute path",
    "no-cuda": "holds no part of a CUDA toolkit",
    "mute": "did not answer when asked",
    "ambiguous": "fits as well as another",
    "shadowed": "is overruled by an earlier answer",
}

LEVELS = ("refused", "error", "warning", "note")


class ToolchainConflict(ConflictError):
    """The parts contradict each other, or something named explicitly does not work."""


@dataclass(frozen=True)
class Tried:
    """A candidate that was not taken. ``reason`` is a key of :data:`REASONS`."""

    path: str
    reason: str
    detail: str = ""

    def __str__(self) -> str:
        """Return the candidate and what is wrong with it, as one sentence."""
        sentence = f"{self.path or '(empty)'}: {REASONS[self.reason]}"
        return f"{sentence} ({self.detail})" if self.detail else sentence


@dataclass(frozen=True)
class Found:
    """A part, the step that gave it (``via``) and the root it was taken from."""

    path: Path
    version: str | None
    via: str
    root: Path | None = None
    tried: tuple[Tried, ...] = ()


@dataclass(frozen=True)
class Missing:
    """A part that was not found, and the command that provides it, if one is known."""

    name: str
    tried: tuple[Tried, ...] = ()
    hint: str = ""

    def __str__(self) -> str:
        """Return the name, every candidate with its fault, and the remedy."""
        seen = "; ".join(str(tried) for tried in self.tried) or "no candidate"
        return f"{self.name} is missing ({seen})" + (f"; try: {self.hint}" if self.hint else "")


@dataclass(frozen=True)
class Finding:
    """Something worth telling. ``code`` is stable, ``fix`` is one command or one action."""

    code: str
    level: str
    text: str
    fix: str = ""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Root:
    """The one CUDA toolkit. ``places`` maps a role to the existing directories that serve it."""

    kind: str
    path: Path
    via: str
    target: str | None
    places: Mapping[str, tuple[Path, ...]]
    version: str | None = None


@dataclass(frozen=True)
class Flags:
    """Compiler and linker arguments, one list item an argument, never joined or quoted."""

    cflags: tuple[str, ...] = ()
    cxxflags: tuple[str, ...] = ()
    ldflags: tuple[str, ...] = ()
    libs: tuple[str, ...] = ()

    def __add__(self, other: Flags) -> Flags:
        """Return the flags of both, each once."""
        mine, theirs = vars(self), vars(other)
        return Flags(**{key: tuple(dict.fromkeys(mine[key] + theirs[key])) for key in mine})


@dataclass(frozen=True)
class Toolchain:
    """The answer of one resolution; a value without behaviour that touches the system."""

    prefix: Path
    prefix_via: str
    conda: bool
    machine: str
    target: str | None
    root: Root | None
    root_tried: tuple[Tried, ...]
    parts: Mapping[str, Found | Missing]
    torch_cuda: str | None
    interpreter: Interpreter
    system: System
    findings: tuple[Finding, ...] = field(default=())

    def get(self, name: str) -> Found | Missing:
        """Return the record of a part; raises :class:`KeyError` for a name the catalogue lacks."""
        return self.parts[name]

    def __getitem__(self, name: str) -> Found:
        """Return a part that was found; raises :class:`NotFoundError` with what was tried."""
        part = self.parts[name]
        if isinstance(part, Missing):
            raise NotFoundError(str(part))
        return part

    def path(self, name: str) -> Path | None:
        """Return the path of a part, or None when it is missing."""
        part = self.parts[name]
        return part.path if isinstance(part, Found) else None

    def refuse(self) -> Toolchain:
        """Return the toolchain itself; raises :class:`ToolchainConflict` when it is contradictory."""
        refused = [finding for finding in self.findings if finding.level == "refused"]
        if refused:
            raise ToolchainConflict("\n".join(_describe_refusals(refused)))
        return self

    @property
    def fingerprint(self) -> str:
        """A digest over paths, versions and modification times of all parts: a cache key."""
        digest = hashlib.sha256()
        for name, part in sorted(self.parts.items()):
            if isinstance(part, Found):
                stamp = part.path.stat().st_mtime_ns if part.path.exists() else 0
                digest.update(f"{name}\0{part.path}\0{part.version}\0{stamp}\n".encode())
        return digest.hexdigest()

    def flags(self, *modules: str, embed: bool = False) -> Flags:
        """Return the arguments for ``modules``; see :mod:`extforge.toolchain.flags`."""
        from extforge.toolchain.flags import flags_of

        return flags_of(self, modules, embed=embed)

    def environ(self) -> dict[str, str]:
        """Return the variables that make every known tool use this toolchain."""
        from extforge.toolchain.outputs import environment
        from extforge.toolchain.view import plan_view

        return environment(self, plan_view(self))

    def cmake(self) -> dict[str, str]:
        """Return CMake cache variables; the same answers in CMake's words."""
        from extforge.toolchain.outputs import cmake_variables
        from extforge.toolchain.view import plan_view

        return cmake_variables(self, plan_view(self))

    def to_dict(self, why: bool = True) -> dict[str, Any]:
        """Return the document of ``extforge json``; ``schema.json`` describes it."""
        from extforge.toolchain.outputs import document

        return document(self, why=why)


def _describe_refusals(refused: Iterable[Finding]) -> list[str]:
    """Return one line a refusal and one line a remedy."""
    lines: list[str] = []
    for finding in refused:
        lines.append(f"refused [{finding.code}]: {finding.text}")
        if finding.fix:
            lines.append(f"  to mend it: {finding.fix}")
    return lines
