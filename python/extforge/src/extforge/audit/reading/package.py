"""One package, read: recognised, unpacked when need be, and every file of it looked at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, NamedTuple

from extforge.audit.binaries import Elf, SecondOpinion
from extforge.audit.escaping import printable
from extforge.audit.model import Claims, Entry, Package
from extforge.audit.reading import archive, conda, wheel
from extforge.audit.reading.cuobjdump import ask_cuobjdump
from extforge.audit.reading.elf import is_linked_elf, read_elf
from extforge.audit.reading.limits import Allowance, Limits
from extforge.audit.reading.window import Malformed, Window
from extforge.errors import BadInputError, NotFoundError

SUFFIXES: dict[str, Callable[[Path, IO[bytes], Limits], dict[str, Entry]]] = {
    ".conda": archive.unpack_conda,
    ".tar.bz2": archive.unpack_tar_bz2,
    ".whl": archive.unpack_wheel,
}
DEFAULT_LIMITS = Limits()
# Part of every directory name in which conda-build and rattler-build prepare a host environment.
BUILD_PREFIX = "_placehold" * 3  # conda-build and rattler-build repeat it many times; this line does not
LONGEST_PREFIX = 1024


def read_package(path: Path, cuobjdump: Path | None = None, limits: Limits = DEFAULT_LIMITS) -> Package:
    """Read a package file or an unpacked directory; ask ``cuobjdump``, when given, about GPU code.

    Raises :class:`NotFoundError` when there is nothing at ``path`` and :class:`BadInputError` when it is no
    package, damaged, or hostile.
    """
    with _naming(path), _unpacked(path, limits) as (entries, suffix):
        claims = _claims(_Reader(entries, limits), entries, path.name if suffix else "", suffix)
        size = path.stat().st_size if suffix else sum(e.size for e in entries.values())
        return look_at_files(path.name, claims, entries, limits.allowance(size), cuobjdump)


@contextmanager
def opened_package(path: Path, limits: Limits = DEFAULT_LIMITS) -> Iterator[dict[str, Entry]]:
    """The entries of a package, as long as they can be read; raises as :func:`read_package` does."""
    with ExitStack() as stack:
        with _naming(path):
            entries, _ = stack.enter_context(_unpacked(path, limits))
        yield entries


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let a refusal begin with the path of what is refused."""
    try:
        yield
    except BadInputError as error:
        raise BadInputError(printable(f"{path}: {error}")) from error
    except archive.DAMAGE as error:
        raise BadInputError(printable(f"{path}: damaged: {type(error).__name__}: {error}")) from error


@contextmanager
def _unpacked(path: Path, limits: Limits) -> Iterator[tuple[dict[str, Entry], str]]:
    """The entries and the archive's suffix (empty for a directory), as long as they can be read."""
    if not path.exists():
        raise NotFoundError(f"{path} does not exist")
    if path.is_dir():
        yield archive.walk_directory(path, limits), ""
        return
    suffix = next((s for s in SUFFIXES if path.name.endswith(s)), "")
    if not suffix:
        raise BadInputError(f"is no package; valid are {', '.join(SUFFIXES)} and an unpacked directory")
    with NamedTemporaryFile(prefix="extforge-audit-") as spool:
        entries = SUFFIXES[suffix](path, spool, limits)
        spool.flush()
        yield entries, suffix


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
        with entry.location.file.open("rb") as stream:
            return Window(stream, entry.location.offset, entry.size).at(0, entry.size)


def _claims(reader: _Reader, entries: Mapping[str, Entry], file_name: str, suffix: str) -> Claims:
    if suffix == ".whl" or "info/index.json" not in entries:
        root = wheel.find_dist_info(entries)
        if suffix in (".conda", ".tar.bz2") or not root:
            raise BadInputError("has neither info/index.json nor a .dist-info/METADATA")
        return wheel.read_wheel_claims(reader, root, file_name)
    return conda.read_conda_claims(reader, entries, file_name.removesuffix(suffix) if suffix else "")


def look_at_files(
    source: str, claims: Claims, entries: Mapping[str, Entry], allowance: Allowance, cuobjdump: Path | None
) -> Package:
    """Hash every file, look for prefixes of the build machine, and read those that are ELF."""
    digests: dict[str, str] = {}
    prefixes: dict[str, frozenset[str]] = {}
    elves: dict[str, Elf] = {}
    opinions: dict[str, SecondOpinion] = {}
    for entry, window in _windows(entries):
        allowance.check_time()
        claim = claims.files.get(entry.path)
        wanted = {BUILD_PREFIX, claim.placeholder if claim else ""} - {""}
        look = _look(window, wanted, allowance)
        digests[entry.path] = look.digest
        if look.found:
            prefixes[entry.path] = look.found
        if is_linked_elf(look.head) and not entry.path.startswith(claims.metadata_root):
            elf = elves[entry.path] = _read_elf(window, allowance)
            if elf.device_images and cuobjdump is not None:
                opinions[entry.path] = _ask(cuobjdump, window)
    return Package(source, claims, entries, digests, prefixes, elves, opinions)


def _windows(entries: Mapping[str, Entry]) -> Iterator[tuple[Entry, Window]]:
    """Each file's bytes; the files of an archive lie in one file, which is opened once."""
    with ExitStack() as stack:
        opened, stream = Path(), None
        for entry in entries.values():
            if entry.location is None:
                continue
            if stream is None or entry.location.file != opened:
                stack.pop_all().close()
                opened = entry.location.file
                stream = stack.enter_context(opened.open("rb"))
            yield entry, Window(stream, entry.location.offset, entry.size)


def _ask(cuobjdump: Path, window: Window) -> SecondOpinion:
    with NamedTemporaryFile(prefix="extforge-audit-", suffix=".so") as library:
        for piece in window.pieces(0):
            library.write(piece.content)
        library.flush()
        return ask_cuobjdump(cuobjdump, Path(library.name))


class _Look(NamedTuple):
    digest: str
    head: bytes
    found: frozenset[str]


def _look(window: Window, wanted: set[str], allowance: Allowance) -> _Look:
    digest, head = hashlib.sha256(), b""
    found: set[str] = set()
    for piece in window.pieces(LONGEST_PREFIX):
        allowance.check_time()
        head = head or piece.content[:64]
        digest.update(memoryview(piece.content)[piece.repeated :])
        found |= {w for w in wanted - found if w.encode() in piece.content}
    return _Look(digest.hexdigest(), head, frozenset(found))


def _read_elf(window: Window, allowance: Allowance) -> Elf:
    try:
        return read_elf(window, allowance)
    except Malformed as error:
        return Elf(machine="", bits=0, unread=(f"ELF headers: {error}",))
