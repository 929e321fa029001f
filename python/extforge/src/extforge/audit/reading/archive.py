"""Archives and directories as a table of entries.

The bytes of an archive's files are written one behind the other into a single temporary file that the caller
owns, never under the names that the archive gives them: a hostile name can therefore lead nowhere. Memory
stays bounded because members are copied in chunks, and headers of unreasonable size are refused unread.
"""

from __future__ import annotations

import bz2
import lzma
import os
import stat
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from conda_package_streaming.package_streaming import TarfileNoSameOwner, tar_generator

from extforge.audit.model import Entry, Kind, Location
from extforge.audit.reading.limits import Allowance, Limits
from extforge.errors import BadInputError, NotFoundError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CHUNK = 1 << 20

# What the standard library's and zstd's decoders raise on damaged input, each by its documented name.
DAMAGE = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    tarfile.TarError,
    zstd.ZstdError,
    lzma.LZMAError,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    OverflowError,
    NotImplementedError,
    RuntimeError,
)


class CarefulTarInfo(tarfile.TarInfo):
    """A tar header that refuses extension headers larger than any name could need.

    The standard library reads these into memory whole, whatever size they state.
    """

    LARGEST_EXTENSION = 1 << 20
    EXTENSIONS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, b"L", b"K")

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> CarefulTarInfo:
        """Parse one header block."""
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (header.type in cls.EXTENSIONS and header.size > cls.LARGEST_EXTENSION):
            raise tarfile.ReadError(f"a header extension states {header.size} bytes")
        return header


class Unpacker:
    """Collects the entries of one archive, and their bytes in ``spool``, within ``limits``."""

    def __init__(self, spool: IO[bytes], packed: int, limits: Limits) -> None:
        self.entries: dict[str, Entry] = {}
        self._spool = spool
        self._limits = limits
        self._largest = limits.largest_unpacked(packed)
        self._left = self._largest
        self.allowance = limits.allowance(packed)

    def add_file(self, name: str, mode: int, content: IO[bytes]) -> None:
        """Copy one file's bytes."""
        path = self._accept(name)
        location = Location(Path(self._spool.name), self._spool.tell())
        size = 0
        while chunk := content.read(CHUNK):
            size += len(chunk)
            self._left -= len(chunk)
            if self._left < 0:
                raise BadInputError(f"unpacks to more than {self._largest} bytes; seen at {path!r}")
            self.allowance.check_time()
            self._spool.write(chunk)
        self.entries[path] = Entry(path, Kind.FILE, mode, size, location=location)

    def add_hard_link(self, name: str, mode: int, target: str) -> None:
        """Let one file share the bytes of an earlier one."""
        path = self._accept(name)
        original = self.entries.get(checked_name(target, self._limits))
        if original is None or original.kind is not Kind.FILE:
            raise BadInputError(f"entry {path!r} is a hard link to {target!r}, which is no earlier file")
        self.entries[path] = Entry(path, Kind.FILE, mode, original.size, location=original.location)

    def add_symlink(self, name: str, mode: int, target: str) -> None:
        """Note one symlink; it is never created."""
        path = self._accept(name)
        self.entries[path] = Entry(path, Kind.SYMLINK, mode, link_target=target)

    def add_directory(self, name: str, mode: int) -> None:
        """Note one directory; naming one twice is harmless."""
        path = checked_name(name, self._limits)
        self.allowance.check_time()
        if path not in self.entries and path != ".":
            self._count()
            self.entries[path] = Entry(path, Kind.DIRECTORY, mode)

    def _accept(self, name: str) -> str:
        path = checked_name(name, self._limits)
        self.allowance.check_time()
        self._count()
        if path in self.entries:
            raise BadInputError(f"entry {path!r} occurs twice; installers disagree about which one wins")
        return path

    def _count(self) -> None:
        if len(self.entries) >= self._limits.entries:
            raise BadInputError(f"holds more than {self._limits.entries} entries")


def checked_name(name: str, limits: Limits) -> str:
    """Return ``name`` in normal form, or refuse one that could mislead a reader or an installer."""
    if not name or len(name) > limits.name_length:
        raise BadInputError(
            f"an entry's name has {len(name)} characters; 1 to {limits.name_length} are valid"
        )
    if not name.isprintable():
        raise BadInputError(f"entry name {name[:200]!r} holds control or undecodable characters")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise BadInputError(f"entry {name[:200]!r} leaves the package")
    return str(path)


def unpack_conda(path: Path, spool: IO[bytes], limits: Limits) -> dict[str, Entry]:
    """Entries of a ``.conda`` file: a zip that holds one ``info-`` and one ``pkg-`` tar."""
    unpacker = Unpacker(spool, path.stat().st_size, limits)
    with guarded_zip(path, limits) as archive:
        for component in ("info-", "pkg-"):
            found = [i for i in archive.infolist() if i.filename.startswith(component)]
            if len(found) != 1:
                raise BadInputError(f"holds {len(found)} members named {component}*; exactly one is valid")
            with archive.open(found[0]) as packed, zstd.open(packed) as plain:
                _unpack_tar(plain, unpacker)
    return unpacker.entries


def unpack_tar_bz2(path: Path, spool: IO[bytes], limits: Limits) -> dict[str, Entry]:
    """Entries of a ``.tar.bz2`` file."""
    unpacker = Unpacker(spool, path.stat().st_size, limits)
    with bz2.open(path) as plain:
        _unpack_tar(plain, unpacker)
    return unpacker.entries


def _unpack_tar(stream: Any, unpacker: Unpacker) -> None:
    opener = partial(TarfileNoSameOwner.open, tarinfo=CarefulTarInfo)
    for tar, member in tar_generator(stream, tarfile_open=opener):
        mode = member.mode or 0
        if member.isdir():
            unpacker.add_directory(member.name, mode)
        elif member.issym():
            unpacker.add_symlink(member.name, mode, member.linkname)
        elif member.islnk():
            unpacker.add_hard_link(member.name, mode, member.linkname)
        elif member.isfile() and (content := tar.extractfile(member)) is not None:
            unpacker.add_file(member.name, mode, content)
        else:
            raise BadInputError(f"entry {member.name[:200]!r} is neither file, directory nor link")


def unpack_wheel(path: Path, spool: IO[bytes], limits: Limits) -> dict[str, Entry]:
    """Entries of a ``.whl`` file."""
    unpacker = Unpacker(spool, path.stat().st_size, limits)
    with guarded_zip(path, limits) as archive:
        for info in archive.infolist():
            mode = (info.external_attr >> 16) & 0xFFFF
            if info.is_dir():
                unpacker.add_directory(info.filename, stat.S_IMODE(mode))
                continue
            with archive.open(info) as content:
                if stat.S_ISLNK(mode):
                    target = content.read(limits.name_length).decode("utf-8", "replace")
                    unpacker.add_symlink(info.filename, stat.S_IMODE(mode), target)
                else:
                    unpacker.add_file(info.filename, stat.S_IMODE(mode), content)
    return unpacker.entries


def guarded_zip(path: Path, limits: Limits) -> zipfile.ZipFile:
    """Open a zip file whose directory's size and whose members' names and compression are reasonable."""
    size = central_directory_size(path)
    if size > limits.metadata_bytes:
        raise BadInputError(
            f"its zip directory states {size} bytes; {limits.metadata_bytes} is the most read"
        )
    archive = zipfile.ZipFile(path)
    for info in archive.infolist():
        checked_name(info.filename, limits)
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise BadInputError(f"member {info.filename[:200]!r} uses zip compression {info.compress_type}")
    return archive


def central_directory_size(path: Path) -> int:
    """Bytes of a zip's central directory, from its end record or that record's 64-bit extension."""
    with path.open("rb") as stream:
        length = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, length - 65_557 - 20))
        tail = stream.read()
        end = tail.rfind(b"PK\x05\x06")
        if end < 0 or end + 22 > len(tail):
            raise BadInputError("is no zip archive, or a truncated one: it has no end record")
        size: int = struct.unpack_from("<I", tail, end + 12)[0]
        if end >= 20 and tail[end - 20 : end - 16] == b"PK\x06\x07":
            stream.seek(min(struct.unpack_from("<Q", tail, end - 12)[0], length))
            record = stream.read(56)
            if len(record) == 56:
                size = max(0 if size == 0xFFFFFFFF else size, struct.unpack_from("<Q", record, 40)[0])
        return size


def walk_directory(root: Path, limits: Limits) -> dict[str, Entry]:
    """Entries below ``root``; symlinks are noted and not followed."""
    allowance = limits.allowance(0)
    entries: dict[str, Entry] = {}
    for path in _walk(root, allowance):
        if len(entries) >= limits.entries:
            raise BadInputError(f"holds more than {limits.entries} entries")
        entry = entry_on_disk(root, path, limits)
        entries[entry.path] = entry
    return entries


def _walk(root: Path, allowance: Allowance) -> Iterator[Path]:
    waiting = [root]
    while waiting:
        for child in sorted(waiting.pop().iterdir()):
            allowance.check_time()
            yield child
            if child.is_dir() and not child.is_symlink():
                waiting.append(child)


def entry_on_disk(root: Path, path: Path, limits: Limits) -> Entry:
    """The entry for ``path``, named relative to ``root``."""
    name = checked_name(path.relative_to(root).as_posix(), limits)
    try:
        status = path.lstat()
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} is recorded as installed but does not exist") from error
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return Entry(name, Kind.SYMLINK, mode, link_target=str(path.readlink()))
    if stat.S_ISDIR(status.st_mode):
        return Entry(name, Kind.DIRECTORY, mode)
    if stat.S_ISREG(status.st_mode):
        return Entry(name, Kind.FILE, mode, status.st_size, location=Location(path))
    raise BadInputError(f"entry {name!r} is neither file, directory nor link")
