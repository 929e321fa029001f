"""What a package is made from, as one digest: it is built anew when, and only when, that has changed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from extforge.build import normalising
from extforge.files import hash_file

if TYPE_CHECKING:
    from rattler_build import RenderedVariant

#: Directories that hold no source, whatever a recipe's filter says.
NO_SOURCE = {"__pycache__", ".git", ".local"}
#: A source with one of these keys lies here or names its content; one without may change behind our back.
PINNED_BY = {"path", "sha256", "md5"}


def hash_inputs(variant: RenderedVariant, channels: Sequence[str], output: Path) -> str | None:
    """Return a digest of sources, recipe, variant, tools, local channels, and the date if one is asked for.

    Nothing below ``output`` counts. ``None`` says that a source is not pinned, so that nobody can tell
    whether it has changed.
    """
    import rattler_build

    recipe = variant.recipe.to_dict()
    if not all(PINNED_BY & source.keys() for source in sources(recipe)):
        return None
    tools = (rattler_build.rattler_build_version(), hash_file(Path(normalising.__file__)))
    facts = (*tools, recipe, dict(variant.variant), os.environ.get(normalising.DATE_VARIABLE))
    digest = hashlib.sha256(repr(facts).encode())
    for file in source_files(variant, output):
        digest.update(f"{file}\0{os.access(file, os.X_OK)}\0{hash_file(file)}\n".encode())
    for channel in channels:
        digest.update(f"{channel}\0".encode())
        for index in channel_indexes(channel):
            digest.update(index.read_bytes())
    return digest.hexdigest()


def sources(recipe: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of a rendered recipe's ``source``."""
    return list(recipe.get("source", []))


def channel_indexes(channel: str) -> list[Path]:
    """Return the index files of a local channel; a remote one has none to read here."""
    url = urlsplit(channel)
    return sorted(Path(url2pathname(url.path)).glob("*/repodata.json")) if url.scheme == "file" else []


def source_files(variant: RenderedVariant, output: Path) -> Iterator[Path]:
    """Yield the local files of the recipe and of its sources; at least those that the build copies."""
    folder = variant.recipe_path.parent
    yield from tree_files(folder, [""], output)
    for source in sources(variant.recipe.to_dict()):
        if "path" in source:
            beginnings = filter_beginnings(source.get("filter", []))
            yield from tree_files((folder / source["path"]).resolve(), beginnings, output)


def filter_beginnings(chosen: list[str] | dict[str, list[str]]) -> list[str]:
    """Return what the paths that a source filter lets pass may begin with.

    rattler-build's patterns have a dialect of their own; up to the first special character they are plain.
    """
    patterns = chosen.get("include", []) if isinstance(chosen, dict) else chosen
    return [re.split(r"[*?\[{!\\]", pattern.removeprefix("./"))[0] for pattern in patterns] or [""]


def tree_files(root: Path, beginnings: Sequence[str], output: Path) -> Iterator[Path]:
    """Yield the files of ``root``, a directory or a file, whose relative path begins with one of these."""
    if root.is_file():
        yield root
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in NO_SOURCE and Path(directory, name) != output)
        for name in sorted(files):
            path = Path(directory) / name
            relative = path.relative_to(root).as_posix()
            if path.is_file() and any(relative.startswith(beginning) for beginning in beginnings):
                yield path
