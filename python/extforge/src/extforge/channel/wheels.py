"""Wheels: a cache that pip fills, and what a wheel says of itself."""

from __future__ import annotations

import base64
import csv
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from extforge.errors import NotFoundError
from extforge.files import PARTIAL, locked

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
    def dist_info(self) -> str:
        """The name of the directory that describes the wheel."""
        names = self.archive.namelist()
        return next(m[1] for name in names if (m := re.fullmatch(r"([^/]+\.dist-info)/METADATA", name)))

    @cached_property
    def distribution(self) -> importlib.metadata.Distribution:
        return importlib.metadata.PathDistribution(zipfile.Path(self.archive, f"{self.dist_info}/"))

    @cached_property
    def record(self) -> str:
        """The wheel's list of its files with their digests: what a wheel holds, in short."""
        return self.archive.read(f"{self.dist_info}/RECORD").decode()

    @cached_property
    def digests(self) -> dict[str, str]:
        """SHA-256 in hexadecimal digits of each file, as the wheel states it."""
        rows = (row for row in csv.reader(self.record.splitlines()) if row and row[1].startswith("sha256="))
        return {path: base64.urlsafe_b64decode(f"{digest[7:]}=").hex() for path, digest, _ in rows}

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
    if len(found) < len(pins):
        with locked(cache):
            found = find_cached(pins, cache)
            download([pin for pin in pins if pin not in found], cache)
        found = find_cached(pins, cache)
    absent = [str(pin) for pin in pins if pin not in found]
    if absent:
        raise NotFoundError(f"pip fetched no wheel that fits {sys.executable} for: {', '.join(absent)}")
    return found


def find_cached(pins: Sequence[Pin], cache: Path) -> dict[Pin, Wheel]:
    """Return the wheels in ``cache`` that are whole, match a pin and run here; the most specific tag wins."""
    rank = {tag: place for place, tag in enumerate(sys_tags())}
    best: dict[tuple[str, Version], tuple[int, Path]] = {}
    for path in sorted(cache.glob("*.whl")):
        try:
            name, version, _, tags = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            continue  # somebody else's file: no pin names it
        fit = tag_rank(tags, rank)
        if fit is not None and fit < best.get((name, version), (len(rank), path))[0] and is_whole(path):
            best[name, version] = (fit, path)
    keys = {pin: (canonicalize_name(pin.project), Version(pin.version)) for pin in pins}
    return {pin: Wheel(best[key][1]) for pin, key in keys.items() if key in best}


def tag_rank(tags: Iterable[Tag], rank: dict[Tag, int]) -> int | None:
    return min((rank[tag] for tag in tags if tag in rank), default=None)


def is_whole(path: Path) -> bool:
    """Return whether a wheel can be opened; one that was cut off is removed, so that it is fetched again."""
    if zipfile.is_zipfile(path):
        return True
    print(f"{path} is damaged: removed", file=sys.stderr)
    path.unlink()
    return False


def download(pins: Sequence[Pin], cache: Path) -> None:
    """Let pip, as configured on this machine, fetch ``pins`` into ``cache``; each file appears by rename."""
    if not pins:
        return
    for unfinished in cache.glob(f"{PARTIAL}*"):
        shutil.rmtree(unfinished)
    print(f"fetching {len(pins)} wheels with pip", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=cache) as partial:
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
