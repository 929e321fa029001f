"""Requirements of conda packages and wheels, asked one question: which versions do they allow?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as WheelRequirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from rattler import MatchSpec, Version, VersionSpec
from rattler.exceptions import InvalidMatchSpecError, InvalidVersionSpecError

from extforge.errors import BadInputError

# Each takes microseconds and a kilobyte; no real package has a hundredth of this.
MOST_REQUIREMENTS = 10_000


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement. ``text`` is the line as the package states it; ``build`` a build-string pattern."""

    name: str
    text: str
    versions: VersionSpec | SpecifierSet | None = None
    build: str = ""

    def allows(self, version: str) -> bool:
        """Whether ``version`` satisfies this requirement."""
        if self.versions is None:
            return True
        if isinstance(self.versions, SpecifierSet):
            return not version.endswith(".*") and self.versions.contains(version, prereleases=True)
        return self.versions.matches(Version(version))


def allow(requirements: Iterable[Requirement], version: str) -> bool:
    """Whether every requirement allows ``version``."""
    return all(r.allows(version) for r in requirements)


def allowed_minors(requirements: Sequence[Requirement], minors: Iterable[str]) -> tuple[str, ...]:
    """Those of ``minors`` (such as ``2.10``) of which some release satisfies all requirements.

    Patch releases up to 29 are tried, and the very versions that a requirement names with ``==``.
    """
    pinned = [s.version for r in requirements if isinstance(r.versions, SpecifierSet) for s in r.versions]

    def releases(minor: str) -> Iterator[str]:
        yield from (f"{minor}.{patch}" for patch in range(30))
        yield from (version for version in pinned if version.startswith(f"{minor}."))

    return tuple(m for m in minors if any(allow(requirements, version) for version in releases(m)))


def read_conda_requirement(text: str) -> Requirement:
    """Parse a conda match specification such as ``pytorch >=2.10,<3 cuda*``."""
    try:
        spec = MatchSpec(text)
        versions = VersionSpec(spec.version) if spec.version else None
    except (InvalidMatchSpecError, InvalidVersionSpecError) as error:
        reason = str(error).splitlines()[0]
        raise BadInputError(f"requirement {text!r} is not a conda match specification: {reason}") from error
    return Requirement(spec.name.normalized, text, versions, spec.build or "")


def read_wheel_requirement(text: str) -> Requirement | None:
    """Parse a ``Requires-Dist`` line; ``None`` when it only applies to an extra."""
    try:
        requirement = WheelRequirement(text)
    except InvalidRequirement as error:
        raise BadInputError(f"requirement {text!r} is not valid: {error}") from error
    if requirement.marker is not None and "extra" in str(requirement.marker):
        return None
    return Requirement(canonicalize_name(requirement.name), text, requirement.specifier)
