"""Write ``.conda`` packages from files that need not lie unpacked on disk.

The archive itself is made by conda-package-streaming; what is added here are the ``info/`` files that CEP 34
describes: ``index.json``, ``paths.json``, ``about.json``, ``link.json``, ``run_exports.json``.
"""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from extforge.files import PARTIAL

#: What an installer replaces by the environment's prefix in files that carry it.
PLACEHOLDER = "/opt/extforge_bootstrap_placeholder"

#: zip and tar count seconds from here; the value is fixed so that equal input gives equal packages.
TIMESTAMP = 1_577_836_800  # 2020-01-01

COMPRESSION_LEVEL = 1

EMPTY_SHA256 = hashlib.sha256().hexdigest()

NOTICE = (
    "Made on this machine by `extforge channel` under conda-forge's name and layout, "
    "for local builds only. Not the conda-forge package; never publish it."
)


@dataclass(frozen=True)
class Entry:
    """One file of a package: a destination, and where its bytes come from.

    Exactly one of ``open`` (a function that returns a fresh binary stream of ``size`` bytes), ``text``
    and ``link`` (the target of a symbolic link) is given. ``text`` may hold :data:`PLACEHOLDER`.
    A link to a file of another package carries that file's ``size`` and ``sha256``.
    """

    path: str
    open: Callable[[], IO[bytes]] | None = None
    size: int = 0
    text: str | None = None
    link: str | None = None
    sha256: str = EMPTY_SHA256
    executable: bool = False


@dataclass(frozen=True)
class PlannedPackage:
    """All that a package file consists of. ``subdir`` is ``noarch`` or a platform such as ``linux-64``."""

    name: str
    version: str
    build: str
    subdir: str
    summary: str
    license: str
    entries: Callable[[], Iterator[Entry]]
    number: int = 0
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    run_exports: Mapping[str, list[str]] = field(default_factory=dict)
    noarch: str | None = None
    entry_points: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        return f"{self.name}-{self.version}-{self.build}"

    @property
    def file_name(self) -> str:
        return f"{self.stem}.conda"


def write_package(package: PlannedPackage, directory: Path) -> Path:
    """Write ``package`` into ``directory``; the file appears whole, by rename, or not at all."""
    from conda_package_streaming.create import conda_builder

    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=directory) as partial:
        with conda_builder(
            package.stem, partial, compression_level=COMPRESSION_LEVEL, compression_threads=2
        ) as archive:
            for name, content in describe(package, add_entries(archive, package.entries())).items():
                add_bytes(archive, f"info/{name}", content)
        timeless = copy_without_times(Path(partial) / package.file_name, Path(partial) / "timeless")
        return timeless.replace(directory / package.file_name)


def copy_without_times(source: Path, target: Path) -> Path:
    """Copy a ``.conda`` file without the time of day that the builder stamps ``metadata.json`` with."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for member in old.infolist():
            bare = zipfile.ZipInfo(member.filename)
            bare.file_size = member.file_size
            with old.open(member) as reader, new.open(bare, "w") as writer:
                shutil.copyfileobj(reader, writer, 1 << 20)
    return target


def add_entries(archive: tarfile.TarFile, entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Add all files and return their records for ``paths.json``; a link's tells of the file it leads to."""
    records: dict[str, dict[str, Any]] = {}
    links: dict[str, str] = {}
    for entry in entries:
        if entry.path in records:
            raise ValueError(f"two files of one package have the path {entry.path!r}")
        records[entry.path] = add_entry(archive, entry)
        if entry.link is not None:
            links[entry.path] = posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), entry.link))
    for path, target in links.items():
        if target in records:
            records[path] |= {key: records[target][key] for key in ("sha256", "size_in_bytes")}
    return [records[path] for path in sorted(records)]


def add_entry(archive: tarfile.TarFile, entry: Entry) -> dict[str, Any]:
    """Add one file and return its record for ``paths.json``."""
    if entry.link is not None:
        member = tar_member(entry.path, 0, executable=True)
        member.type, member.linkname = tarfile.SYMTYPE, entry.link
        archive.addfile(member)
        return path_record(entry.path, entry.sha256, entry.size) | {"path_type": "softlink"}
    if entry.text is not None:
        content = entry.text.encode()
        add_bytes(archive, entry.path, content, entry.executable)
        record = path_record(entry.path, sha256(content), len(content))
        if PLACEHOLDER in entry.text:
            record |= {"prefix_placeholder": PLACEHOLDER, "file_mode": "text"}
        return record
    return add_stream(archive, entry)


class HashingReader:
    """Pass a stream through and keep the digest of what was read."""

    def __init__(self, source: IO[bytes]) -> None:
        self.source = source
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        chunk = self.source.read(size)
        self.digest.update(chunk)
        return chunk


def add_stream(archive: tarfile.TarFile, entry: Entry) -> dict[str, Any]:
    """Add a file from a stream, hashing it on the way."""
    assert entry.open is not None, entry
    with entry.open() as source:
        reader = HashingReader(source)
        archive.addfile(tar_member(entry.path, entry.size, entry.executable), cast("IO[bytes]", reader))
    return path_record(entry.path, reader.digest.hexdigest(), entry.size)


def add_bytes(archive: tarfile.TarFile, path: str, content: bytes, executable: bool = False) -> None:
    archive.addfile(tar_member(path, len(content), executable), io.BytesIO(content))


def tar_member(path: str, size: int, executable: bool = False) -> tarfile.TarInfo:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError(f"a package path must be relative and stay inside: {path!r}")
    member = tarfile.TarInfo(path)
    member.size, member.mtime, member.mode = size, TIMESTAMP, 0o755 if executable else 0o644
    return member


def path_record(path: str, digest: str, size: int) -> dict[str, Any]:
    return {"_path": path, "path_type": "hardlink", "sha256": digest, "size_in_bytes": size}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def describe(package: PlannedPackage, paths: list[dict[str, Any]]) -> dict[str, bytes]:
    """Return the ``info/`` files of a package, name to content."""
    index: dict[str, Any] = {
        "name": package.name,
        "version": package.version,
        "build": package.build,
        "build_number": package.number,
        "subdir": package.subdir,
        "depends": list(package.depends),
        "constrains": list(package.constrains),
        "license": package.license,
        "timestamp": TIMESTAMP * 1000,
    }
    if package.noarch:
        index["noarch"] = package.noarch
    else:
        platform, _, arch = package.subdir.partition("-")
        index |= {"platform": platform, "arch": {"64": "x86_64"}.get(arch, arch)}
    about = {"summary": package.summary, "description": NOTICE, "license": package.license}
    documents: dict[str, Any] = {
        "index.json": index,
        "about.json": about,
        "paths.json": {"paths": paths, "paths_version": 1},
    }
    if package.run_exports:
        documents["run_exports.json"] = dict(package.run_exports)
    if package.noarch == "python":
        noarch = {"type": "python", "entry_points": list(package.entry_points)}
        documents["link.json"] = {"noarch": noarch, "package_metadata_version": 1}
    return {name: json.dumps(value, indent=1, sort_keys=True).encode() for name, value in documents.items()}
