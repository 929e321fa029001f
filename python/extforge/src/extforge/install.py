"""``extforge install``: solve an environment file or a list of specs, and install it into a prefix."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extforge.channels import add_channel_arguments, rattler_cache, read_channels
from extforge.errors import BadInputError, ConflictError, FailedCommand, NotFoundError
from extforge.files import holds_other_content, write_atomically
from extforge.virtual import solving_for_cuda

if TYPE_CHECKING:
    from rattler import RepoDataRecord

#: Lies in an environment made here; says what it holds, and whether the last installation came to its end.
STATE = ".extforge-install.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("specs", nargs="*", metavar="SPEC", help="packages, as in `conda install`")
    parser.add_argument("--file", type=Path, metavar="YAML",
                        help="an environment file; its channels are not read")
    parser.add_argument("--without", action="append", default=[], metavar="NAME",
                        help="leave this package of the environment file out; repeatable")
    parser.add_argument("--prefix", type=Path, required=True, metavar="DIR",
                        help="the environment's directory")
    parser.add_argument("--cuda", metavar="VERSION",
                        help="choose packages as for a driver that knows this CUDA, where there is none")
    add_channel_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    specs = list(arguments.specs)
    if arguments.file is not None:
        specs += leave_out(read_environment_file(arguments.file), arguments.without)
    if not specs:
        raise BadInputError("nothing to install: name packages or give an environment file with --file")
    with solving_for_cuda(arguments.cuda):
        changed = install(arguments.prefix.resolve(), specs, read_channels(arguments))
    print(f"{arguments.prefix.resolve()}: {'installed' if changed else 'up to date'}")
    return 0


def read_environment_file(path: Path) -> list[str]:
    """Return the match specs of a conda environment file.

    Raises :class:`BadInputError` for a file that is no such thing or that asks pip for something.
    """
    import yaml

    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInputError(f"{path} cannot be read as an environment file: {error}") from error
    dependencies = document.get("dependencies") if isinstance(document, dict) else None
    if not isinstance(dependencies, list):
        raise BadInputError(f"{path} is no environment file: it has no list of dependencies")
    unusable = [item for item in dependencies if not isinstance(item, str)]
    if unusable:
        raise BadInputError(f"{path}: only conda packages can be installed here, not {unusable[0]!r}")
    return dependencies


def leave_out(specs: list[str], names: Sequence[str]) -> list[str]:
    """Return ``specs`` without the packages named.

    Raises :class:`BadInputError` for a name that is not among them.
    """
    by_name = {spec: package_name(spec) for spec in specs}
    unknown = sorted(set(names) - set(by_name.values()))
    if unknown:
        named = ", ".join(by_name.values())
        raise BadInputError(f"cannot leave out {unknown[0]}: the environment file names {named}")
    return [spec for spec, name in by_name.items() if name not in names]


def package_name(spec: str) -> str:
    """Return the name of the package that a match spec asks for.

    Raises :class:`BadInputError` for what is no match spec.
    """
    from rattler import MatchSpec
    from rattler.exceptions import InvalidMatchSpecError

    try:
        return str(MatchSpec(spec, strict=True).name.normalized)
    except InvalidMatchSpecError as error:
        raise BadInputError(f"{spec!r} is no package with an optional version and build: {error}") from error


def install(prefix: Path, specs: Sequence[str], channels: Sequence[str]) -> bool:
    """Make ``prefix`` hold exactly what ``specs`` solve to; return whether anything had to be done.

    An interrupted installation is started anew. Raises :class:`BadInputError` for a bad spec,
    :class:`NotFoundError` when a channel cannot be read or the solver finds no solution,
    :class:`ConflictError` for a directory that was not made here, and :class:`FailedCommand` when packages
    cannot be put into place.
    """
    for spec in specs:
        package_name(spec)
    state = read_state(prefix)
    records = asyncio.run(solve(specs, channels))
    wanted = {record.name.normalized: describe(record) for record in records}
    if state is not None and state["complete"] and state["packages"] == wanted:
        return False
    if state is not None and not state["complete"]:
        shutil.rmtree(prefix)
        state = None
    write_atomically(prefix / STATE, json.dumps({"complete": False, "packages": {}}))
    known = state["packages"] if state else {}
    replaced = {name for name, what in wanted.items() if known.get(name, what) != what}
    asyncio.run(link(prefix, records, replaced))
    write_atomically(prefix / STATE, json.dumps({"complete": True, "packages": wanted}, indent=1))
    return True


def read_state(prefix: Path) -> dict[str, Any] | None:
    """Return what an earlier installation wrote, or ``None`` for a directory that is absent or empty."""
    if holds_other_content(prefix, STATE):
        raise ConflictError(
            f"{prefix} is not empty and was not made by `extforge install`; name another directory"
        )
    try:
        return dict(json.loads((prefix / STATE).read_text()))
    except FileNotFoundError:
        return None


def describe(record: RepoDataRecord) -> str:
    digest = record.sha256.hex() if record.sha256 else ""
    return f"{record.version}-{record.build} {digest}"


async def solve(specs: Sequence[str], channels: Sequence[str]) -> list[RepoDataRecord]:
    from rattler import Gateway, VirtualPackage, VirtualPackageOverrides
    from rattler import solve as rattler_solve
    from rattler.exceptions import FetchRepoDataError, GatewayError, SolverError

    gateway = Gateway(cache_dir=rattler_cache() / "repodata")
    try:
        return await rattler_solve(
            channels,
            specs,
            gateway=gateway,
            platforms=["linux-64", "noarch"],
            virtual_packages=VirtualPackage.detect(VirtualPackageOverrides.from_env()),
        )
    except (GatewayError, FetchRepoDataError) as error:
        raise NotFoundError(f"a channel of {', '.join(channels)} cannot be read: {error}") from error
    except SolverError as error:
        asked = f"from {', '.join(channels)} for {', '.join(specs)}"
        raise NotFoundError(f"no solution {asked}:\n{error}") from error


async def link(prefix: Path, records: list[RepoDataRecord], replaced: set[str]) -> None:
    from rattler import install as rattler_install
    from rattler.exceptions import InstallerError

    try:
        await rattler_install(
            records,
            target_prefix=prefix,
            cache_dir=rattler_cache() / "pkgs",
            reinstall_packages=replaced,
            show_progress=sys.stderr.isatty(),
        )
    except InstallerError as error:
        raise FailedCommand(f"installing into {prefix} failed: {error}") from error
