"""Wheels: a cache that pip fills, and what a wheel says of itself."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from packaging.tags import Tag, sys_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from extforge.errors import NotFoundError

PIP_DOWNLOAD = ("download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--retries=2")
PIP_LINES_SHOWN = 6


class Pin(NamedTuple):
    """One version of one project on the package index."""

    project: str
    version: str

    def __str__(self) -> str:
        return f"{self.project}=={self.version}"


class WheelFile(NamedTuple):
    """A file inside a wheel: its path there, its size, and whether it is executable."""

    path: str
    size: int
    executable: bool


class Wheel:
    """A wheel on disk, read without unpacking."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _, _, _, self.tags = parse_wheel_filename(path.name)

    @cached_property
    def archive(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(self.path)

    @cached_property
    def distribution(self) -> importlib.metadata.Distribution:
        name = next(n for n in self.archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
        return importlib.metadata.PathDistribution(zipfile.Path(self.archive, name.rpartition("/")[0] + "/"))

    @property
    def is_pure(self) -> bool:
        return all(tag.abi == "none" and tag.platform == "any" for tag in self.tags)

    @property
    def glibc_floor(self) -> str | None:
        """The glibc that the wheel's platform tag asks for, such as ``2.28``; the lowest of several."""
        floors = [m.groups() for t in self.tags if (m := re.match(r"manylinux_(\d+)_(\d+)_", t.platform))]
        return "{}.{}".format(*min(floors, key=lambda f: (int(f[0]), int(f[1])))) if floors else None

    def files(self) -> Iterator[WheelFile]:
        for info in self.archive.infolist():
            if not info.is_dir():
                yield WheelFile(info.filename, info.file_size, bool(info.external_attr >> 16 & 0o111))


def fetch_wheels(pins: Iterable[Pin], cache: Path) -> dict[Pin, Wheel]:
    """Return the wheel of each pin, taking from ``cache`` what it holds and letting pip fetch the rest.

    Raises :class:`~extforge.errors.NotFoundError` when pip cannot deliver one.
    """
    cache.mkdir(parents=True, exist_ok=True)
    pins = list(dict.fromkeys(pins))
    found = find_cached(pins, cache)
    missing = [pin for pin in pins if pin not in found]
    if missing:
        download(missing, cache)
        found |= find_cached(missing, cache)
    absent = [str(pin) for pin in pins if pin not in found]
    if absent:
        raise NotFoundError(f"pip fetched no wheel that fits {sys.executable} for: {', '.join(absent)}")
    return found


def find_cached(pins: Sequence[Pin], cache: Path) -> dict[Pin, Wheel]:
    """Return the wheels in ``cache`` that match a pin and run on this interpreter, the best tag first."""
    rank = {tag: place for place, tag in enumerate(sys_tags())}
    best: dict[tuple[str, Version], tuple[int, Path]] = {}
    for path in sorted(cache.glob("*.whl")):
        name, version, _, tags = parse_wheel_filename(path.name)
        fit = tag_rank(tags, rank)
        if fit is not None and (name, version) not in best or fit is not None and fit < best[name, version][0]:
            best[name, version] = (fit, path)
    keys = {pin: (canonicalize_name(pin.project), Version(pin.version)) for pin in pins}
    return {pin: Wheel(best[key][1]) for pin, key in keys.items() if key in best}


def tag_rank(tags: Iterable[Tag], rank: dict[Tag, int]) -> int | None:
    return min((rank[tag] for tag in tags if tag in rank), default=None)


def download(pins: Sequence[Pin], cache: Path) -> None:
    """Let pip, as configured on this machine, fetch ``pins`` into ``cache``; each file appears by rename."""
    print(f"fetching {len(pins)} wheels with pip", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=cache) as partial:
        command = [sys.executable, "-m", "pip", *PIP_DOWNLOAD, "--quiet", "--dest", partial, *map(str, pins)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise NotFoundError(explain_failed_download(pins, done.stderr))
        for wheel in Path(partial).glob("*.whl"):
            wheel.replace(cache / wheel.name)


def explain_failed_download(pins: Sequence[Pin], stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.startswith("ERROR")] or stderr.splitlines()
    version = "{}.{}".format(*sys.version_info)
    names = ", ".join(map(str, pins[:4])) + (f" and {len(pins) - 4} more" if len(pins) > 4 else "")
    advice = (
        "Needed: a package index that pip reaches, or a directory that holds these wheels "
        "(PIP_FIND_LINKS=/path/to/wheels)."
    )
    if any("+cpu" in pin.version for pin in pins):
        advice += (
            " A CPU build of torch is offered by PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu ."
        )
    said = "\n  ".join(lines[-PIP_LINES_SHOWN:])
    return f"pip could not fetch wheels for Python {version}: {names}\n  {said}\n{advice}"
