"""What lives in an environment, or would live in one: the packages that can provide a library."""

from __future__ import annotations

import asyncio
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import rattler
from conda_package_streaming import package_streaming, url
from packaging.utils import canonicalize_name
from rattler.exceptions import (
    FetchRepoDataError,
    GatewayError,
    InvalidChannelError,
    InvalidUrlError,
    IoError,
    SolverError,
)

from extforge.audit.model import Claims, Entry, Package, Provider
from extforge.audit.reading import archive, conda, wheel
from extforge.audit.reading.limits import Limits
from extforge.audit.reading.package import look_at_files
from extforge.errors import BadInputError, NotFoundError

CHANNEL_PROBLEMS = (
    FetchRepoDataError,
    GatewayError,
    InvalidChannelError,
    InvalidUrlError,
    IoError,
    SolverError,
    LookupError,
    BadInputError,
    *archive.DAMAGE,
)


class ChannelProblem(Exception):
    """The channels could not be asked; the audit goes on, and says so."""


def read_prefix(prefix: Path) -> tuple[Provider, ...]:
    """Every conda package and every wheel installed in ``prefix``."""
    if not prefix.is_dir():
        raise NotFoundError(f"environment {prefix} does not exist")
    return (*_conda_providers(prefix), *_wheel_providers(prefix))


def _records(prefix: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(prefix.glob("conda-meta/*.json")):
        yield path, conda.parse_object(lambda name: Path(name).read_bytes(), str(path))


def _conda_providers(prefix: Path) -> Iterator[Provider]:
    for path, record in _records(prefix):
        files = record.get("files") or []
        if not isinstance(record.get("name"), str) or not isinstance(files, list):
            raise BadInputError(f"{path} is no record of an installed package")
        depends = frozenset(str(d).split()[0] for d in record.get("depends") or [])
        yield Provider(record["name"], frozenset(map(str, files)), depends)


def _wheel_providers(prefix: Path) -> Iterator[Provider]:
    for root in sorted(prefix.glob("lib/python3*/site-packages/*.dist-info")):
        if (root / "RECORD").exists() and (root / "METADATA").exists():
            claims = _wheel_claims(root)
            site = root.parent.relative_to(prefix).as_posix()
            requires = frozenset(r.name for r in claims.requirements)
            yield Provider(claims.name, frozenset(f"{site}/{name}" for name in claims.files), requires)


def _wheel_claims(root: Path) -> Claims:
    return wheel.read_wheel_claims(
        lambda path: (root.parent / path).read_bytes(), f"{root.name}/", "", installed=True
    )


def read_installed(prefix: Path, name: str, cuobjdump: Path | None, limits: Limits) -> Package:
    """The package called ``name`` as it is installed in ``prefix``, by conda or as a wheel."""
    for path, record in _records(prefix):
        if record.get("name") == name:
            claims = conda.read_installed_claims(record, path.name, str(prefix.absolute()))
            files = [str(f) for f in record.get("files") or []]
            return _installed(f"{name} in {prefix}", claims, prefix, files, cuobjdump, limits)
    for root in prefix.glob("lib/python3*/site-packages/*.dist-info"):
        if (
            canonicalize_name(root.name.split("-")[0]) == canonicalize_name(name)
            and (root / "RECORD").exists()
        ):
            claims = _wheel_claims(root)
            # Scripts lie outside site-packages, and were written by the installer, not by the wheel.
            inside = {path: claim for path, claim in claims.files.items() if not path.startswith("..")}
            claims = replace(claims, files=inside)
            return _installed(f"{name} in {prefix}", claims, root.parent, list(inside), cuobjdump, limits)
    raise NotFoundError(f"no package called {name!r} is installed in {prefix}")


def _installed(
    source: str, claims: Claims, root: Path, files: Sequence[str], cuobjdump: Path | None, limits: Limits
) -> Package:
    entries: dict[str, Entry] = {}
    for name in files:
        path = root / archive.checked_name(name, limits)
        if path.is_symlink() or path.exists():
            entries[name] = archive.entry_on_disk(root, path, limits)
    size = sum(entry.size for entry in entries.values())
    return look_at_files(source, claims, entries, limits.allowance(size), cuobjdump)


def solve_channels(package: Claims, channels: Sequence[str]) -> tuple[Provider, ...]:
    """The packages, with their files, that a solver takes from ``channels`` for the requirements.

    Raises :class:`ChannelProblem` with the reason when a channel cannot be read or nothing satisfies it.
    """
    specs = [r.text for r in package.requirements]
    here = str(rattler.Subdir.current())
    platforms: list[Any] = [here if package.subdir in ("", "noarch") else package.subdir, "noarch"]
    try:
        virtual = rattler.VirtualPackage.detect(rattler.VirtualPackageOverrides.from_env())
        generic = [v.into_generic() for v in virtual]
        solution = asyncio.run(
            rattler.solve(list(channels), specs, platforms=platforms, virtual_packages=generic)
        )
        return tuple(_provider(record) for record in solution)
    except CHANNEL_PROBLEMS as error:
        raise ChannelProblem(f"channels {', '.join(channels)}: {str(error).splitlines()[0]}") from error


def _provider(record: rattler.RepoDataRecord) -> Provider:
    depends = frozenset(d.split()[0] for d in record.depends)
    return Provider(record.name.normalized, frozenset(_package_files(str(record.url))), depends)


def _package_files(address: str) -> list[str]:
    for tar, member in _stream_info(address):
        if member.name == "info/paths.json" and (content := tar.extractfile(member)) is not None:
            paths = conda.parse_object(lambda _: content.read(), "info/paths.json")
            return list(conda.read_paths(paths, address))
    raise LookupError(f"{address} holds no info/paths.json")


def _stream_info(address: str) -> Any:
    parts = urllib.parse.urlsplit(address)
    if parts.scheme == "file":
        return package_streaming.stream_conda_info(urllib.request.url2pathname(parts.path))
    return url.stream_conda_info(address)
