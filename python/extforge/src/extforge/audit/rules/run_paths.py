"""Where does the loader look, on the user's machine?"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from extforge.audit.model import Context, Format, Observation, Package

ORIGIN = re.compile(r"\$(ORIGIN|\{ORIGIN\})")
SITE_PACKAGES = "lib/python3/site-packages/"


def installed_path(package: Package, path: str) -> str:
    """Where a file comes to lie, relative to the environment."""
    if package.claims.format is Format.WHEEL:
        return SITE_PACKAGES + path
    return SITE_PACKAGES + path.removeprefix("site-packages/") if path.startswith("site-packages/") else path


def resolved(package: Package, path: str, run_path: str) -> str:
    """The directory that ``run_path`` means for the library at ``path``, relative to the environment."""
    origin = posixpath.dirname(installed_path(package, path))
    return posixpath.normpath(ORIGIN.sub(origin or ".", run_path))


def _run_paths(package: Package) -> Iterator[tuple[str, str, str]]:
    for path, elf in package.elves.items():
        for run_path in elf.run_paths:
            yield path, run_path, elf.run_path_tag


def _observation(path: str, tag: str, run_path: str, seen: str) -> Observation:
    return Observation(
        path, f"{tag} {run_path or '(empty)'}", seen, f"INSTALL_RPATH of {posixpath.basename(path)}"
    )


def absolute_run_paths(package: Package, context: Context) -> Iterator[Observation]:
    """R01. A recorded placeholder is replaced by the installer, and so is no leak."""
    for path, run_path, tag in _run_paths(package):
        claim = package.claims.files.get(path)
        placeholder = claim.placeholder if claim else ""
        replaced = placeholder and run_path.startswith(placeholder)
        if run_path.startswith("/") and not replaced:
            yield _observation(
                path, tag, run_path, "an absolute path; valid are paths that begin with $ORIGIN"
            )


def escaping_run_paths(package: Package, context: Context) -> Iterator[Observation]:
    """R02."""
    for path, run_path, tag in _run_paths(package):
        if ORIGIN.match(run_path) and resolved(package, path, run_path).split("/")[0] == "..":
            yield _observation(path, tag, run_path, "leads above the root of the environment")


def stub_run_paths(package: Package, context: Context) -> Iterator[Observation]:
    """R03."""
    for path, run_path, tag in _run_paths(package):
        if "stubs" in run_path.split("/"):
            yield _observation(path, tag, run_path, "leads to libraries that are made for linking only")


def relative_run_paths(package: Package, context: Context) -> Iterator[Observation]:
    """R04."""
    for path, run_path, tag in _run_paths(package):
        if not run_path.startswith(("/", "$")):
            yield _observation(path, tag, run_path, "is taken relative to the current directory")


def useless_run_paths(package: Package, context: Context) -> Iterator[Observation]:
    """R05. Only directories below one that this package alone owns can be known not to exist."""
    files = [installed_path(package, entry.path) for entry in package.payload]
    directories = {parent for file in files for parent in _parents(file)}
    owned = {d for d in directories if posixpath.dirname(d) == SITE_PACKAGES.rstrip("/")}
    for path, run_path, tag in _run_paths(package):
        target = resolved(package, path, run_path)
        inside = any(target.startswith(f"{o}/") for o in owned)
        if ORIGIN.match(run_path) and inside and target not in directories:
            yield _observation(path, tag, run_path, f"{target} is not in the package")


def _parents(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path


RULES = {
    "R01": absolute_run_paths,
    "R02": escaping_run_paths,
    "R03": stub_run_paths,
    "R04": relative_run_paths,
    "R05": useless_run_paths,
}
