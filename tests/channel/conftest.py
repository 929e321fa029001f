"""Wheels, channels and environments that are made on the spot: no test here needs a network or torch."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib.metadata
import io
import json
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conda_package_streaming.package_streaming import stream_conda_component
from extforge.channel.archive import Entry, PlannedPackage
from extforge.channel.catalogue import KEEP_REST, Row, Rule
from extforge.channel.make import make_channel
from extforge.channels import CACHE_VARIABLE

#: Projects that a python needs before it can install a source distribution, and their files.
INSTALLERS = {
    "pip": ("pip",),
    "setuptools": ("setuptools", "pkg_resources", "_distutils_hack", "*-precedence.pth"),
}


@pytest.fixture(scope="session", autouse=True)
def package_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory in which rattler unpacks packages during these tests."""
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("rattler")
        patch.setenv(CACHE_VARIABLE, str(cache))
        yield cache


def write_wheel(directory: Path, stem: str, files: Mapping[str, str], metadata: str = "") -> Path:
    """Write ``stem``.whl, where stem is ``name-version-tags``, with RECORD and metadata."""
    name, version, tags = stem.split("-", 2)
    info = f"{name}-{version}.dist-info"
    contents = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tags}\n",
    }
    lines = [f'"{path}",sha256={record_digest(text)},{len(text)}' for path, text in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    path = directory / f"{stem}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, text in contents.items():
            archive.writestr(member, text)
    return path


def record_digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def wheel_of_installed(directory: Path, project: str) -> Row:
    """Pack an installed pure project into a wheel again, and return its row."""
    distribution = importlib.metadata.distribution(project)
    info = Path(str(distribution.locate_file(f"{project}-{distribution.version}.dist-info")))
    roots = [info, *(root for pattern in INSTALLERS[project] for root in info.parent.glob(pattern))]
    path = directory / f"{project}-{distribution.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(f for root in roots for f in (root, *root.rglob("*")) if f.is_file()):
            if "__pycache__" not in file.parts and file != info / "RECORD":
                archive.write(file, file.relative_to(info.parent))
        archive.writestr(f"{info.name}/RECORD", "")
    return Row(project, distribution.version)


def small_package(name: str, text: str, **fields: Any) -> PlannedPackage:
    """Plan a package of one file; its version and build do not depend on the content."""
    defaults: dict[str, Any] = {
        "version": "1.0",
        "build": "h0_0",
        "subdir": "noarch",
        "summary": name,
        "license": "MIT",
        "noarch": "generic",
        "entries": lambda: iter([Entry(f"share/{name}.txt", text=text)]),
    }
    return PlannedPackage(name=name, **(defaults | fields))


def write_index(channel: Path) -> None:
    from rattler.index import index_fs

    (channel / "noarch").mkdir(parents=True, exist_ok=True)
    asyncio.run(index_fs(channel, write_shards=False, force=True))


class Contents(NamedTuple):
    """A package read back: ``info/`` documents by name, and the archive's members with their bytes."""

    info: dict[str, Any]
    members: dict[str, tarfile.TarInfo]
    content: dict[str, bytes]

    @property
    def paths(self) -> dict[str, dict[str, Any]]:
        return {record["_path"]: record for record in self.info["paths.json"]["paths"]}


def read_package(path: Path) -> Contents:
    """Read a package with the library that conda itself uses."""
    info, members, content = {}, {}, {}
    with path.open("rb") as stream:
        for tar, member in stream_conda_component(path, stream, "info"):
            reader = tar.extractfile(member)
            assert reader is not None
            info[member.name.removeprefix("info/")] = json.load(reader)
        for tar, member in stream_conda_component(path, io.BytesIO(path.read_bytes()), "pkg"):
            members[member.name] = member
            if (reader := tar.extractfile(member) if member.isfile() else None) is not None:
                content[member.name] = reader.read()
    return Contents(info, members, content)


class Small(NamedTuple):
    """A small channel of the running interpreter, the wheels it was made from, and its rows."""

    channel: Path
    wheels: Path
    rows: tuple[Row, ...]


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """A channel with python, the compilers, pip, setuptools, and two projects with scripts."""
    base = tmp_path_factory.mktemp("a small channel")
    wheels = base / "wheels"
    wheels.mkdir()
    for stem, tag in (("greeter-1.0", "py3-none-any"), ("native-2.0", "py3-none-linux_x86_64")):
        name = stem.partition("-")[0]
        write_wheel(
            wheels,
            f"{stem}-{tag}",
            {
                f"{name}/__init__.py": f"def main():\n    print('hello from {name}')\n",
                f"{name}/include/{name}.h": "#pragma once\n",
                f"{stem}.data/scripts/{name}-script": f"#!python\nimport {name}\n{name}.main()\n",
                f"{stem}.dist-info/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
            },
            "Summary: says hello\n",
        )
    rules = (Rule("*/include/*", "include", put="both"), KEEP_REST)
    rows = (
        *(wheel_of_installed(wheels, project) for project in INSTALLERS),
        Row("greeter", "1.0", rules=rules),
        Row("native", "2.0", rules=rules, depends=("greeter",)),
    )
    return Small(make_channel(base / "channel", wheels, rows), wheels, rows)


@pytest.fixture(scope="session")
def small_prefix(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with everything that the small channel holds."""
    from extforge.install import install

    prefix = tmp_path_factory.mktemp("environment") / "small"
    assert install(
        prefix, ["python", "gxx_linux-64", *(row.name for row in small.rows)], [small.channel.as_uri()]
    )
    return prefix


Runner = Callable[..., "subprocess.CompletedProcess[str]"]


def run(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program and give back what it said; a failure is the test's to judge."""
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
