"""Auditing packages: read each, find out with what it will live, run the checks."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from extforge.audit.checks import chosen_codes, run_checks
from extforge.audit.model import Context, Format, Package, Provider, Report
from extforge.audit.reading.environment import (
    ChannelProblem,
    read_installed,
    read_prefix,
    solve_channels,
)
from extforge.audit.reading.limits import Limits
from extforge.audit.reading.package import read_package
from extforge.audit.rules.architectures import parse_architectures

LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Options:
    """How to audit.

    ``select`` and ``ignore`` are comma-separated codes or beginnings of codes. ``channels`` are solved for
    each package's requirements; ``prefix`` is an environment that holds the requirements.
    ``architectures`` is the declared list of GPU architectures; without it, the package's variant is asked.
    ``cuobjdump`` is the program to ask for a second opinion; without it, the one on PATH, if any.
    """

    select: str = ""
    ignore: str = ""
    channels: tuple[str, ...] = ()
    prefix: Path | None = None
    architectures: str = ""
    cuobjdump: Path | None = None


DEFAULTS = Options()


def audit_packages(paths: Sequence[Path | str], options: Options = DEFAULTS) -> Report:
    """Audit packages and return what was found.

    ``paths`` are ``.conda``, ``.tar.bz2`` or ``.whl`` files or unpacked directories; with ``options.prefix``,
    a name that is no existing path is looked up among the packages installed there. Packages audited together
    may provide libraries to one another, and are compared for paths that two of them install.

    ``report.failed(strict)`` says whether they may be published; ``report.findings`` says why not.

    Raises :class:`NotFoundError` for a path or name that does not exist, and :class:`BadInputError` for a
    package that is damaged or hostile, and for options that make no sense.
    """
    codes, ignored = chosen_codes(options.select, options.ignore)
    if options.architectures:
        parse_architectures(options.architectures)
    packages = tuple(_read(str(path), options) for path in paths)
    installed = read_prefix(options.prefix) if options.prefix is not None else None
    findings = []
    for package in packages:
        companions = tuple(p for p in packages if p is not package)
        providers, problem = _providers(package, companions, installed, options.channels)
        context = Context(companions, providers, problem, options.architectures)
        findings += list(run_checks(package, context, codes))
    return Report(
        tuple(p.source for p in packages),
        tuple(f for f in findings if f.code not in ignored),
        tuple(f for f in findings if f.code in ignored),
    )


def _read(path: str, options: Options) -> Package:
    found = options.cuobjdump or shutil.which("cuobjdump")
    cuobjdump = Path(found) if found else None
    if options.prefix is not None and not Path(path).exists():
        return read_installed(options.prefix, path, cuobjdump, LIMITS)
    return read_package(Path(path), cuobjdump, LIMITS)


def _providers(
    package: Package,
    companions: tuple[Package, ...],
    installed: tuple[Provider, ...] | None,
    channels: tuple[str, ...],
) -> tuple[tuple[Provider, ...] | None, str]:
    own = tuple(
        Provider(
            c.claims.name,
            frozenset(e.path for e in c.payload),
            frozenset(r.name for r in c.claims.requirements),
        )
        for c in companions
    )
    if installed is not None:
        return (*own, *installed), ""
    if channels and package.claims.format is Format.WHEEL:
        return None, "a wheel's requirements are not solved in conda channels; give --prefix"
    if channels:
        try:
            return (*own, *solve_channels(package.claims, channels)), ""
        except ChannelProblem as problem:
            return None, str(problem)
    return None, ""
