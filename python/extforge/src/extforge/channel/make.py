"""Bring a channel directory up to date: plan every package, write what is missing, drop what is stale, index."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name
from rich.console import Console

from extforge.channel import catalogue
from extforge.channel.archive import NOTICE, PlannedPackage, write_package
from extforge.channel.compilers import plan_compilers
from extforge.channel.interpreter import plan_python, plan_python_abi
from extforge.channel.repack import plan
from extforge.channel.wheels import Pin, fetch_wheels
from extforge.channels import index_channel
from extforge.errors import ConflictError
from extforge.files import write_atomically

#: Marks a directory as ours and, holding the names of all packages, as indexed; written last.
STAMP = "extforge-channel.json"


def make_channel(directory: Path, cache: Path) -> Path:
    """Make ``directory`` a conda channel that holds every package of the catalogue, and return it.

    ``cache`` keeps the wheels. What is up to date is left alone. Raises :class:`ConflictError` for a directory with
    other content, :class:`NotFoundError` when a wheel, a compiler or the interpreter's files are not to be had.
    """
    refuse_foreign(directory)
    packages = plan_packages(catalogue.ROWS, cache)
    wanted = sorted(f"{package.subdir}/{package.file_name}" for package in packages)
    if read_stamp(directory) == wanted and all((directory / name).exists() for name in wanted):
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / STAMP, json.dumps({"packages": []}))
    remove_stale(directory, set(wanted))
    missing = [package for package in packages if not (directory / package.subdir / package.file_name).exists()]
    write_all(missing, directory)
    index_channel(directory)
    write_atomically(directory / STAMP, json.dumps({"notice": NOTICE, "packages": wanted}, indent=1))
    return directory


def plan_packages(rows: Sequence[catalogue.Row], cache: Path) -> list[PlannedPackage]:
    """Return all packages of the channel; wheels that ``cache`` lacks are fetched."""
    compilers = list(plan_compilers())
    wheels = fetch_wheels((Pin(row.wheel_project, row.version) for row in rows), cache)
    names = conda_names(rows)
    repacked = [plan(row, wheels[Pin(row.wheel_project, row.version)], names) for row in rows]
    return [plan_python(), plan_python_abi(), *compilers, *repacked]


def conda_names(rows: Iterable[catalogue.Row]) -> dict[str, str]:
    """Map projects of the package index to conda packages; of several from one wheel, the one Python imports."""
    return {canonicalize_name(row.wheel_project): row.name for row in rows if not row.plain}


def refuse_foreign(directory: Path) -> None:
    if directory.exists() and any(directory.iterdir()) and not (directory / STAMP).exists():
        raise ConflictError(
            f"{directory} holds something that `extforge channel` did not make (no {STAMP} in it); "
            "name a new or an empty directory"
        )


def read_stamp(directory: Path) -> list[str] | None:
    try:
        return list(json.loads((directory / STAMP).read_text())["packages"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def remove_stale(directory: Path, wanted: set[str]) -> None:
    """Remove packages that are not wanted any more and what an interrupted run left."""
    for path in [*directory.glob("*/*.conda"), *directory.glob("*/.partial-*")]:
        if path.is_dir():
            shutil.rmtree(path)
        elif path.relative_to(directory).as_posix() not in wanted:
            path.unlink()


def write_all(packages: Sequence[PlannedPackage], directory: Path) -> None:
    """Write packages; a terminal shows the one in work, a log gets one line in all."""
    console, start = Console(stderr=True, highlight=False), time.monotonic()
    with console.status("") as status:
        for package in packages:
            status.update(f"repacking {package.stem}")
            write_package(package, directory / package.subdir)
    console.print(f"{directory}: {len(packages)} packages made in {time.monotonic() - start:.1f} s", soft_wrap=True)
