"""Writing files so that a reader sees the old content or the new one, never a part."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Head of the name of everything that is not finished.
PARTIAL = ".partial-"
LOCK = ".lock"


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` by rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=PARTIAL, dir=path.parent)
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def holds_other_content(directory: Path, mark: str) -> bool:
    """Return whether ``directory`` holds something, but no file ``mark`` that says whose it is.

    What a run leaves that is killed before it can write the mark does not count.
    """
    if not directory.exists() or (directory / mark).exists():
        return False
    return any(path.name != LOCK and not path.name.startswith(PARTIAL) for path in directory.iterdir())


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other processes that ask the same out of ``directory``; it is made when it is absent."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process works in {directory}; waiting until it ends", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
