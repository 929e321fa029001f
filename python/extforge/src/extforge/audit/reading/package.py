"""One package, read: recognised, unpacked when need be, and every file of it looked at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from extforge.audit.model import Claims, Elf, Entry, Package, SecondOpinion
from extforge.audit.reading import archive, conda, wheel
from extforge.audit.reading.cuobjdump import ask_cuobjdump
from extforge.audit.reading.elf import is_linked_elf, read_elf
from extforge.audit.reading.limits import Deadline, Limits
from extforge.audit.reading.window import Malformed, Window
from extforge.errors import BadInputError, NotFoundError

SUFFIXES: dict[str, Callable[[Path, Path, Limits], dict[str, Entry]]] = {
    ".conda": archive.unpack_conda,
    ".tar.bz2": archive.unpack_tar_bz2,
    ".whl": archive.unpack_wheel,
}
DEFAULT_LIMITS = Limits()
# Part of every directory name in which conda-build and rattler-build prepare a host environment.
BUILD_PREFIX = "_h_env_placehold"
LONGEST_PREFIX = 1024


def read_package(path: Path, cuobjdump: Path | None = None, limits: Limits = DEFAULT_LIMITS) -> Package:
    """Read a package file or an unpacked directory; ask ``cuobjdump``, when given, about GPU code.

    Raises :class:`NotFoundError` when there is nothing at ``path`` and :class:`BadInputError` when it is no
    package, damaged, or hostile.
    """
    if not path.exists():
        raise NotFoundError(f"{path} does not exist")
    with ExitStack() as stack:
        try:
            entries, suffix = _entries(path, stack, limits)
            reader = _Reader(entries, limits)
            file_name = path.name if suffix else ""
            claims = _claims(reader, entries, file_name, suffix)
            packed = path.stat().st_size if suffix else sum(e.size for e in entries.values())
            return look_at_files(path.name, claims, entries, limits.deadline(packed), cuobjdump)
        except BadInputError as error:
            raise BadInputError(f"{path}: {error}") from error
        except archive.DAMAGE as error:
            raise BadInputError(f"{path}: damaged: {type(error).__name__}: {error}") from error


def _entries(path: Path, stack: ExitStack, limits: Limits) -> tuple[dict[str, Entry], str]:
    if path.is_dir():
        return archive.walk_directory(path, limits), ""
    suffix = next((s for s in SUFFIXES if path.name.endswith(s)), "")
    if not suffix:
        raise BadInputError(f"is no package; valid are {', '.join(SUFFIXES)} and an unpacked directory")
    directory = Path(stack.enter_context(TemporaryDirectory(prefix="extforge-audit-")))
    return SUFFIXES[suffix](path, directory, limits), suffix


class _Reader:
    """Reads metadata files by their name in the package."""

    def __init__(self, entries: Mapping[str, Entry], limits: Limits) -> None:
        self._entries = entries
        self._limits = limits

    def __call__(self, path: str) -> bytes:
        entry = self._entries.get(path)
        if entry is None or entry.location is None:
            raise BadInputError(f"has no file {path}")
        if entry.size > self._limits.metadata_bytes:
            raise BadInputError(
                f"{path} has {entry.size} bytes; {self._limits.metadata_bytes} is the most read"
            )
        return entry.location.read_bytes()


def _claims(reader: _Reader, entries: Mapping[str, Entry], file_name: str, suffix: str) -> Claims:
    if suffix == ".whl" or "info/index.json" not in entries:
        root = wheel.find_dist_info(entries)
        if suffix in (".conda", ".tar.bz2") or not root:
            raise BadInputError("has neither info/index.json nor a .dist-info/METADATA")
        return wheel.read_wheel_claims(reader, root, file_name)
    return conda.read_conda_claims(reader, entries, file_name.removesuffix(suffix) if suffix else "")


def look_at_files(
    source: str, claims: Claims, entries: Mapping[str, Entry], deadline: Deadline, cuobjdump: Path | None
) -> Package:
    """Hash every file, look for prefixes of the build machine, and read those that are ELF."""
    digests: dict[str, str] = {}
    prefixes: dict[str, frozenset[str]] = {}
    elves: dict[str, Elf] = {}
    opinions: dict[str, SecondOpinion] = {}
    for entry in entries.values():
        if entry.location is None:
            continue
        deadline.check()
        claim = claims.files.get(entry.path)
        wanted = {BUILD_PREFIX, claim.placeholder if claim else ""} - {""}
        look = _look(entry.location, wanted, deadline)
        digests[entry.path] = look.digest
        if look.found:
            prefixes[entry.path] = look.found
        if is_linked_elf(look.head) and not entry.path.startswith(claims.metadata_root):
            elf = elves[entry.path] = _read_elf(entry.location, deadline)
            if elf.device_images and cuobjdump is not None:
                opinions[entry.path] = ask_cuobjdump(cuobjdump, entry.location)
    return Package(source, claims, entries, digests, prefixes, elves, opinions)


class _Look(NamedTuple):
    digest: str
    head: bytes
    found: frozenset[str]


def _look(location: Path, wanted: set[str], deadline: Deadline) -> _Look:
    digest, head = hashlib.sha256(), b""
    found: set[str] = set()
    with location.open("rb") as stream:
        for piece in Window(stream).pieces(LONGEST_PREFIX):
            deadline.check()
            head = head or piece.content[:64]
            digest.update(memoryview(piece.content)[piece.repeated :])
            found |= {w for w in wanted - found if w.encode() in piece.content}
    return _Look(digest.hexdigest(), head, frozenset(found))


def _read_elf(location: Path, deadline: Deadline) -> Elf:
    with location.open("rb") as stream:
        try:
            return read_elf(stream, deadline)
        except Malformed as error:
            return Elf(machine="", bits=0, unread=(f"ELF headers: {error}",))
