"""Plan conda packages from rows of the catalogue and the wheels they name."""

from __future__ import annotations

import hashlib
import posixpath
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from importlib.resources import files
from typing import IO

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from extforge.channel.archive import PLACEHOLDER, Entry, PlannedPackage
from extforge.channel.catalogue import OWN_PLACE, Row, Rule
from extforge.channel.wheels import Wheel, WheelFile

PLATFORM = "linux-64"
PYTHON_MINOR = "{}.{}".format(*sys.version_info)
PYTHON_NEXT_MINOR = f"{sys.version_info[0]}.{sys.version_info[1] + 1}.0a0"
PYTHON_TAG = "{}{}".format(*sys.version_info)

#: Part of every build string; raise it when the same inputs give different packages.
FORMAT = "4"

SCRIPT = """\
#!{prefix}/bin/python
import sys

from {module} import {top}

if __name__ == "__main__":
    sys.exit({call}())
"""


def plan(row: Row, wheel: Wheel, conda_names: Mapping[str, str]) -> PlannedPackage:
    """Return the package that ``row`` makes of ``wheel``; ``conda_names`` maps projects to conda packages."""
    noarch = wheel.is_pure and not row.plain
    layout = Layout(noarch)
    version = Version(row.version).public
    depends = [*platform_requirements(row, wheel), *row.depends]
    if not row.plain:
        depends += conda_requirements(wheel, conda_names, row.not_python)
    scripts = [] if row.plain else console_scripts(wheel)
    return PlannedPackage(
        name=row.name,
        version=version,
        build=f"{row.flavour}{python_part(row, noarch)}h{content_hash(row, wheel, depends)}_{row.number}",
        number=row.number,
        subdir="noarch" if noarch else PLATFORM,
        summary=wheel.distribution.metadata["Summary"] or row.name,
        license=license_of(wheel),
        entries=partial(wheel_entries, row, wheel, layout, () if noarch else tuple(scripts)),
        depends=tuple(depends),
        run_exports={"weak": list(row.run_exports)} if row.run_exports else {},
        noarch="python" if noarch else None,
        entry_points=tuple(scripts) if noarch else (),
    )


def python_part(row: Row, noarch: bool) -> str:
    if row.plain:
        return ""
    tail = "_" if row.flavour else ""
    return "py" if noarch else f"py{PYTHON_TAG}{tail}"


def content_hash(row: Row, wheel: Wheel, depends: list[str]) -> str:
    """Seven digits that change with anything that a package is made from."""
    texts = [read_text(name) for _, name in row.texts]
    inputs = repr((FORMAT, row, texts, wheel.record, PYTHON_TAG, depends))
    return hashlib.sha256(inputs.encode()).hexdigest()[:7]


SITE_PACKAGES = f"lib/python{PYTHON_MINOR}/site-packages"


class Layout:
    """Where a wheel's install schemes lie in a conda package."""

    def __init__(self, noarch: bool) -> None:
        self.site_packages = "site-packages" if noarch else SITE_PACKAGES
        self.scripts = "python-scripts" if noarch else "bin"

    def own_place(self, path: str) -> str:
        """Return where an installer of wheels puts ``path`` (binary distribution format, "spreading")."""
        head, _, rest = path.partition("/")
        if not head.endswith(".data"):
            return f"{self.site_packages}/{path}"
        scheme, _, below = rest.partition("/")
        directories = {"scripts": self.scripts, "data": "", "headers": f"include/python{PYTHON_MINOR}"}
        return posixpath.join(directories.get(scheme, self.site_packages), below)

    def link_entry(self, path: str, target: str) -> Entry:
        """Return a link from ``path`` to ``target``; it leads there from where an installer puts ``path``."""
        installed = path
        if path.startswith(f"{self.site_packages}/"):
            installed = SITE_PACKAGES + path.removeprefix(self.site_packages)
        return replace(link_entry(installed, target), path=path)


def link_entry(path: str, target: str) -> Entry:
    """Return a relative link between two places of the prefix."""
    return Entry(path, link=posixpath.relpath(target, posixpath.dirname(path)))


def wheel_entries(row: Row, wheel: Wheel, layout: Layout, scripts: Iterable[str]) -> Iterator[Entry]:
    """Yield the files of the package that ``row`` makes of ``wheel``."""
    for file in wheel.files():
        rule = next(rule for rule in row.rules if fnmatchcase(file.path, rule.pattern))
        if rule.to is None or file.path in (f"{wheel.dist_info}/RECORD", f"{wheel.dist_info}/INSTALLER"):
            continue  # RECORD would list the places of a wheel install; conda keeps its own
        if row.not_python and file.path == f"{wheel.dist_info}/METADATA":
            yield Entry(layout.own_place(file.path), text=without_requirements(wheel, row.not_python))
            continue
        yield from apply(rule, file, wheel, layout)
    for path, target in row.links:
        yield layout.link_entry(path.format(site_packages=layout.site_packages), target)
    yield from (Entry(path, text=read_text(name)) for path, name in row.texts)
    yield from map(script_entry, scripts)
    if not row.plain:
        yield Entry(f"{layout.site_packages}/{wheel.dist_info}/INSTALLER", text="conda\n")


def apply(rule: Rule, file: WheelFile, wheel: Wheel, layout: Layout) -> Iterator[Entry]:
    own = layout.own_place(file.path)
    if rule.to == OWN_PLACE:
        yield file_entry(own, file, wheel)
        return
    assert rule.to is not None
    moved = posixpath.normpath(posixpath.join(rule.to, file.path.removeprefix(rule.base)))
    if rule.put != "link":
        yield file_entry(moved, file, wheel)
    if rule.put != "file":
        yield replace(layout.link_entry(own, moved), sha256=wheel.digests[file.path], size=file.size)


def without_requirements(wheel: Wheel, projects: Container[str]) -> str:
    """Return a wheel's METADATA without what asks for ``projects``: pip would look for Python packages."""
    text = wheel.archive.read(f"{wheel.dist_info}/METADATA").decode()
    head, gap, body = text.partition("\n\n")
    kept = [line for line in head.split("\n") if required_project(line) not in projects]
    return "\n".join(kept) + gap + body


def required_project(line: str) -> str:
    """Return the project that a line of METADATA requires, or nothing."""
    field, _, value = line.partition(": ")
    return canonicalize_name(Requirement(value).name) if field == "Requires-Dist" else ""


def file_entry(path: str, file: WheelFile, wheel: Wheel) -> Entry:
    is_script = "/scripts/" in file.path and ".data/" in file.path
    if is_script and wheel.archive.read(file.path).startswith(b"#!python"):
        body = wheel.archive.read(file.path).decode().partition("\n")[2]
        return Entry(path, text=f"#!{PLACEHOLDER}/bin/python\n{body}", executable=True)
    executable = file.executable or is_script
    return Entry(path, partial(open_member, wheel, file.path), file.size, executable=executable)


def open_member(wheel: Wheel, path: str) -> IO[bytes]:
    return wheel.archive.open(path)


def read_text(name: str) -> str:
    """Return a file that lies beside this module."""
    return (files("extforge.channel") / name).read_text()


def script_entry(entry_point: str) -> Entry:
    """Return the script of an entry point ``name = module:call``, as installers of wheels write it."""
    name, _, reference = entry_point.partition(" = ")
    module, _, call = reference.partition(":")
    top = call.partition(".")[0]
    text = SCRIPT.format(prefix=PLACEHOLDER, module=module, top=top, call=call)
    return Entry(f"bin/{name}", text=text, executable=True)


def console_scripts(wheel: Wheel) -> list[str]:
    points = wheel.distribution.entry_points.select(group="console_scripts")
    return [f"{point.name} = {point.value.partition('[')[0].strip()}" for point in points]


def platform_requirements(row: Row, wheel: Wheel) -> Iterator[str]:
    """Yield what the package needs of Python and of glibc."""
    if wheel.is_pure and not row.plain:
        yield match_spec("python", SpecifierSet(wheel.distribution.metadata["Requires-Python"] or ""))
    elif not row.plain:
        yield f"python >={PYTHON_MINOR},<{PYTHON_NEXT_MINOR}"
        yield f"python_abi {PYTHON_MINOR}.* *_cp{PYTHON_TAG}"
    if wheel.glibc_floor:
        yield f"__glibc >={wheel.glibc_floor},<3.0.a0"


def requirements(wheel: Wheel, *extras: str) -> Iterator[Requirement]:
    """Yield what ``Requires-Dist`` asks for on this platform, with some extras."""
    for requirement in map(Requirement, wheel.distribution.requires or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def conda_requirements(
    wheel: Wheel, conda_names: Mapping[str, str], not_python: Container[str]
) -> Iterator[str]:
    """Translate ``Requires-Dist`` into match specs, without extras and without what is no Python package."""
    for requirement in requirements(wheel):
        project = canonicalize_name(requirement.name)
        if project not in not_python:
            yield match_spec(conda_names.get(project, project), requirement.specifier)


def match_spec(name: str, specifiers: SpecifierSet) -> str:
    """Return conda's form of Python's version specifiers: ``==1.*`` is ``1.*`` there, ``===`` is ``==``."""
    texts = (str(specifier).replace("===", "==") for specifier in specifiers)
    versions = sorted(text.removeprefix("==") if text.endswith(".*") else text for text in texts)
    return f"{name} {','.join(versions)}".strip()


def license_of(wheel: Wheel) -> str:
    """Return what the wheel says of its licence, shortened to the classifier where the field holds a text."""
    metadata = wheel.distribution.metadata
    named = metadata["License-Expression"] or metadata["License"] or ""
    if named and len(named) < 80 and "\n" not in named:
        return str(named)
    classifiers = [c for c in metadata.get_all("Classifier") or () if c.startswith("License ::")]
    return classifiers[0].rpartition(" :: ")[2] if classifiers else "LicenseRef-see-package"


