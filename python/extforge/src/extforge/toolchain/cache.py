"""Where extforge may write: the user's cache directory, and nothing else outside a prefix."""

from __future__ import annotations

from pathlib import Path

from extforge.toolchain.system import System

UNSUITABLE_TYPES = ("nfs", "nfs4", "smbfs", "cifs", "lustre", "gpfs", "beegfs", "fuse.sshfs")


def cache_directory(system: System) -> Path:
    """Return ``EXTFORGE_CACHE_DIR``, else ``XDG_CACHE_HOME/extforge``, else ``~/.cache/extforge``."""
    own = system.variable("EXTFORGE_CACHE_DIR")
    if own:
        return Path(own).absolute()
    shared = system.variable("XDG_CACHE_HOME")
    home = system.variable("HOME") or str(Path.home())
    return (Path(shared) if shared else Path(home) / ".cache") / "extforge"


def nearest_existing(path: Path) -> Path:
    """Return ``path`` or the first of its parents that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def mount_of(system: System, path: Path) -> tuple[str, frozenset[str]]:
    """Return file-system type and mount options that apply to ``path`` (``/proc/mounts``, fstab(5))."""
    mounts = system.at("/proc/mounts")
    best, answer = -1, ("", frozenset[str]())
    for line in mounts.read_text(errors="replace").splitlines() if mounts.is_file() else ():
        _, directory, kind, options, *_ = line.split(" ")
        directory = directory.encode().decode("unicode_escape")
        if path.is_relative_to(directory) and len(directory) >= best:
            best, answer = len(directory), (kind, frozenset(options.split(",")))
    return answer
