"""The nouns of the audit: what a package claims, what it contains, and what was found.

Everything here is plain data. Readers make it, rules compare it, printers show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from packaging.tags import Tag

from extforge.audit.binaries import Elf, SecondOpinion
from extforge.audit.requirements import Requirement


class Kind(Enum):
    """What an entry of a package is."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"


class Format(Enum):
    """Whose rules the package's metadata follows."""

    CONDA = "conda"
    WHEEL = "wheel"


class Location(NamedTuple):
    """Where the bytes of an entry can be read: never under a name taken from an archive."""

    file: Path
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, directory or symlink of a package; only files have a location."""

    path: str
    kind: Kind
    mode: int
    size: int = 0
    link_target: str = ""
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class FileClaim:
    """What the metadata says of one file; empty or ``None`` where it says nothing.

    ``placeholder`` is the prefix that the file holds: one that installers replace or, once installed, theirs.
    """

    size: int | None = None
    sha256: str = ""
    placeholder: str = ""


@dataclass(frozen=True, slots=True)
class Claims:
    """What the metadata of a package says, conda or wheel alike.

    ``identities`` holds name, version and build as each source states them: (source, field, value).
    """

    format: Format
    name: str
    version: str
    build: str = ""
    build_number: int | None = None
    subdir: str = ""
    requirements: tuple[Requirement, ...] = ()
    constraints: tuple[Requirement, ...] = ()
    identities: tuple[tuple[str, str, str], ...] = ()
    license: str = ""
    tags: frozenset[Tag] = frozenset()
    files: Mapping[str, FileClaim] = field(default_factory=dict)
    metadata_root: str = "info/"
    variant: Mapping[str, str] = field(default_factory=dict)
    installed: bool = False

    def required(self, *names: str) -> tuple[Requirement, ...]:
        """Run requirements on any of ``names``."""
        return tuple(r for r in self.requirements if r.name in names)

    def restricted(self, *names: str) -> tuple[Requirement, ...]:
        """Run requirements and run constraints on any of ``names``."""
        return tuple(r for r in (*self.requirements, *self.constraints) if r.name in names)


@dataclass(frozen=True, slots=True)
class Package:
    """One package, read: its claims, its entries and the ELF files among them.

    ``digests`` are SHA-256 by path; ``prefixes`` the build machine's prefixes that a file was seen to hold.
    """

    source: str
    claims: Claims
    entries: Mapping[str, Entry]
    digests: Mapping[str, str]
    prefixes: Mapping[str, frozenset[str]]
    elves: Mapping[str, Elf]
    second_opinions: Mapping[str, SecondOpinion] = field(default_factory=dict)

    @property
    def payload(self) -> Iterator[Entry]:
        """Entries that an installer puts into an environment: no metadata, no directories."""
        root = self.claims.metadata_root
        return (
            e for e in self.entries.values() if e.kind is not Kind.DIRECTORY and not e.path.startswith(root)
        )


@dataclass(frozen=True, slots=True)
class Provider:
    """A package, outside those audited, whose files are known: from a prefix or a solved channel."""

    name: str
    files: frozenset[str]
    requires: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Context:
    """What an audit knows besides the package: its companions, and the packages it will live with.

    ``providers`` is ``None`` when neither a prefix nor a channel was given: then nothing outside was read.
    ``problem`` says why a prefix or channel that was given could not be read.
    """

    companions: tuple[Package, ...] = ()
    providers: tuple[Provider, ...] | None = None
    problem: str = ""
    architectures: str = ""


class Level(Enum):
    """How a finding counts. Errors fail an audit; the others fail it with ``--strict``."""

    ERROR = "error"
    WARNING = "warning"
    UNVERIFIED = "not verified"


@dataclass(frozen=True, slots=True)
class Observation:
    """What a rule saw: the file, the claim, the content, and the line to change."""

    file: str
    claimed: str
    seen: str
    change: str
    verified: bool = True


@dataclass(frozen=True, slots=True)
class Finding:
    """An observation under its code, for one package."""

    package: str
    code: str
    level: Level
    observation: Observation


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of an audit, in the order of packages and codes."""

    packages: tuple[str, ...]
    findings: tuple[Finding, ...]
    ignored: tuple[Finding, ...] = ()

    def failed(self, strict: bool) -> bool:
        """Whether the packages may not leave the house."""
        return any(strict or f.level is Level.ERROR for f in self.findings)
