"""Channels: as given on a command line, their index, and the cache in which their packages are unpacked."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from extforge.errors import BadInputError

CACHE_VARIABLE = "RATTLER_CACHE_DIR"


def add_channel_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--channel", "-c", action="append", default=[], metavar="URL",
                        help="a channel: URL, directory or name; repeat it, the first has the highest priority "
                             "(default: conda-forge)")


def read_channels(arguments: argparse.Namespace) -> list[str]:
    """Return the channels to use; directories become file URLs.

    Raises :class:`BadInputError` for a directory that holds no channel.
    """
    return [resolve_channel(name) for name in arguments.channel or ["conda-forge"]]


def resolve_channel(name: str) -> str:
    if "://" in name:
        return name
    path = Path(name).expanduser()
    if not path.is_dir():
        if os.sep in name:
            raise BadInputError(f"no directory {path} (given as a channel); valid: a URL, a directory, or a name")
        return name
    if not (path / "noarch" / "repodata.json").exists():
        raise BadInputError(f"{path} is no channel: it has no noarch/repodata.json")
    return path.resolve().as_uri()


def rattler_cache() -> Path:
    """Return the directory in which rattler keeps packages: its own variable's, else its default."""
    if directory := os.environ.get(CACHE_VARIABLE):
        return Path(directory)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rattler" / "cache"


def index_channel(directory: Path) -> None:
    """Write ``repodata.json`` of every subdirectory anew."""
    from rattler.index import index_fs

    (directory / "noarch").mkdir(parents=True, exist_ok=True)
    asyncio.run(index_fs(directory, write_shards=False, force=True))
