"""Whether one candidate file can be used, and if not, why: never an exception."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from extforge.toolchain.elf import read_kind
from extforge.toolchain.model import Tried

UNREADABLE = {errno.EACCES: "unreadable", errno.EPERM: "unreadable", errno.ELOOP: "dangling"}


def examine(path: Path, kind: str, machine: str) -> Tried | None:
    """Return why ``path`` cannot serve as a ``kind``, or None when it can.

    Kinds: ``program`` (a script, or an ELF file of any machine that this one may run),
    ``library`` (a shared library of 64 bits for ``machine``), ``file``, ``directory``.
    """
    try:
        reason, detail = _examine_status(path, kind)
        if not reason and kind in ("program", "library"):
            reason, detail = _examine_content(path, kind, machine)
    except OSError as error:
        reason, detail = UNREADABLE.get(error.errno or 0, "absent"), error.strerror or ""
    return Tried(str(path), reason, detail) if reason else None


def _examine_status(path: Path, kind: str) -> tuple[str, str]:
    if path.is_symlink() and not os.path.exists(path):  # noqa: PTH110 - Path.exists hides errors
        return "dangling", str(path.readlink())
    mode = path.stat().st_mode
    if kind == "directory":
        readable = os.access(path, os.R_OK | os.X_OK)
        return (
            ("not-a-directory", "")
            if not stat.S_ISDIR(mode)
            else ("", "")
            if readable
            else ("unreadable", "")
        )
    if stat.S_ISDIR(mode):
        return "directory", ""
    if path.stat().st_size == 0:
        return "empty", ""
    if kind == "program" and not os.access(path, os.X_OK):
        return "not-executable", oct(mode & 0o777)
    return "", ""


def _examine_content(path: Path, kind: str, machine: str) -> tuple[str, str]:
    found = read_kind(path)
    if found is None:
        return ("not-elf", "") if kind == "library" else ("", "")
    if found.bits != 64:
        return "wrong-elf-class", f"{found.bits} bits, wanted 64"
    if found.machine != machine:
        return "wrong-machine", f"{found.machine}, wanted {machine}"
    return "", ""


def first_usable(candidates: list[Path], kind: str, machine: str) -> tuple[Path | None, tuple[Tried, ...]]:
    """Return the first candidate that works and the reasons of those before it."""
    tried: list[Tried] = []
    for candidate in candidates:
        fault = examine(candidate, kind, machine)
        if fault is None:
            return candidate, tuple(tried)
        tried.append(fault)
    return None, tuple(tried)


def is_stub(path: Path) -> bool:
    """Tell a driver stub by where it lies; size cannot tell, since WSL's driver is as small."""
    return "stubs" in path.parts or "stubs" in path.resolve().parts
