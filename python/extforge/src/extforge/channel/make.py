"""Bring a channel up to date: plan every package, write what is missing, drop what is stale, index."""

from __future__ import annotations

import json
import shutil
import sysconfig
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name
from rich.console import Console

from extforge.channel import assembled, catalogue, catalogue_cuda
from extforge.channel.archive import NOTICE, PlannedPackage, write_package
from extforge.channel.assembled import plan_assembled
from extforge.channel.compilers import plan_compilers
from extforge.channel.interpreter import plan_python, plan_python_abi
from extforge.channel.nvidia import plan_cuda
from extforge.channel.repack import plan
from extforge.channel.wheels import Pin, fetch_wheels
from extforge.channels import index_channel
from extforge.errors import BadInputError, ConflictError, FailedCommand, NotFoundError
from extforge.files import PARTIAL, holds_other_content, locked, write_atomically

#: Marks a directory as ours and, holding the names of all packages, as indexed; written last.
STAMP = "extforge-channel.json"


def make_channel(
    directory: Path, cache: Path, rows: Sequence[catalogue.Row] = catalogue.ROWS, *, cuda: bool = False
) -> Path:
    """Make ``directory`` a conda channel with python, the compilers and a package of each row, and return it.

    ``cuda`` asks for the packages of CUDA besides. ``cache`` keeps the wheels. What is up to date is left.
    Raises :class:`ConflictError` for a directory with other content, :class:`NotFoundError` when a wheel, a
    compiler or the interpreter's files are not to be had, :class:`BadInputError` for a damaged wheel,
    :class:`FailedCommand` for a file that cannot be written.
    """
    refuse_other_platforms()
    refuse_foreign(directory)
    packages = plan_packages(rows, cache)
    if cuda:
        packages += plan_cuda(cache, conda_names((*rows, *catalogue_cuda.ROWS)))
    with locked(directory):
        bring_up_to_date(directory, packages)
    return directory


def bring_up_to_date(directory: Path, packages: Sequence[PlannedPackage]) -> None:
    """Write what is missing, remove what is not among ``packages``, index; the caller holds the lock."""
    wanted = sorted(f"{package.subdir}/{package.file_name}" for package in packages)
    indexes = [f"{subdir}/repodata.json" for subdir in {"noarch", *(package.subdir for package in packages)}]
    if read_stamp(directory) == wanted and all((directory / name).exists() for name in (*wanted, *indexes)):
        return
    write_atomically(directory / STAMP, json.dumps({"packages": []}))
    remove_stale(directory, set(wanted))
    write_all([p for p in packages if not (directory / p.subdir / p.file_name).exists()], directory)
    index_channel(directory)
    write_atomically(directory / STAMP, json.dumps({"notice": NOTICE, "packages": wanted}, indent=1))


def plan_packages(rows: Sequence[catalogue.Row], cache: Path) -> list[PlannedPackage]:
    """Return all packages of the channel; wheels that ``cache`` lacks are fetched."""
    compilers = list(plan_compilers())
    wheels = fetch_wheels((Pin(row.wheel_project, row.version) for row in rows), cache)
    names = conda_names(rows)
    repacked = [plan(row, wheels[Pin(row.wheel_project, row.version)], names) for row in rows]
    ties = map(plan_assembled, assembled.ROWS)
    return [plan_python(), plan_python_abi(), *compilers, *ties, *repacked]


def conda_names(rows: Iterable[catalogue.Row]) -> dict[str, str]:
    """Map projects of the index to conda packages; of several from one wheel, the one that Python imports."""
    return {canonicalize_name(row.wheel_project): row.name for row in rows if not row.plain}


def refuse_other_platforms() -> None:
    platform = sysconfig.get_platform()
    if platform != "linux-x86_64":
        raise NotFoundError(f"the bootstrap channel is made on linux-x86_64 only; this is {platform}")


def refuse_foreign(directory: Path) -> None:
    if holds_other_content(directory, STAMP):
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
    for path in [*directory.glob(f"{PARTIAL}*"), *directory.glob(f"*/{PARTIAL}*")]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in directory.glob("*/*.conda"):
        if path.relative_to(directory).as_posix() not in wanted:
            path.unlink()


def write_all(packages: Sequence[PlannedPackage], directory: Path) -> None:
    """Write packages; a terminal shows the one in work, a log gets one line in all."""
    console, start = Console(stderr=True, highlight=False), time.monotonic()
    with console.status("") as status:
        for package in packages:
            status.update(f"repacking {package.stem}")
            write_one(package, directory)
    seconds = time.monotonic() - start
    console.print(f"{directory}: {len(packages)} packages made in {seconds:.1f} s", soft_wrap=True)


def write_one(package: PlannedPackage, directory: Path) -> None:
    try:
        write_package(package, directory / package.subdir)
    except (zipfile.BadZipFile, zlib.error) as error:
        raise BadInputError(
            f"the wheel of {package.name} {package.version} in the cache is damaged ({error}); "
            "remove it there and run this again"
        ) from error
    except OSError as error:
        places = f"{directory} or, where it lies unpacked, {tempfile.gettempdir()} (TMPDIR)"
        raise FailedCommand(f"{package.file_name} could not be written to {places}: {error}") from error
