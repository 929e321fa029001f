"""The claims of a conda package, from its ``info`` directory or from an installed record."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from extforge.audit.model import Claims, FileClaim, Format
from extforge.audit.requirements import MOST_REQUIREMENTS, read_conda_requirement
from extforge.errors import BadInputError

Reader = Callable[[str], bytes]
ROOT = "info/"
# JSON grows when it is parsed: an element of two characters takes up to 200 bytes. The list of 150,000 files
# has a million elements.
MOST_ELEMENTS = 1_200_000


def read_conda_claims(read: Reader, present: Mapping[str, object], file_name: str) -> Claims:
    """Claims of an unpacked conda package. ``file_name`` is empty for a directory."""
    index = parse_object(read, "info/index.json")
    paths = parse_object(read, "info/paths.json") if "info/paths.json" in present else {}
    variant = parse_object(read, "info/hash_input.json") if "info/hash_input.json" in present else {}
    about = parse_object(read, "info/about.json") if "info/about.json" in present else {}
    claims = index_claims(index, "info/index.json", read_paths(paths, "info/paths.json"))
    return Claims(
        **claims,
        identities=_identities(index, file_name),
        license=str(about.get("license") or index.get("license") or ""),
        variant={k: str(v) for k, v in variant.items() if isinstance(v, str | int | float)},
    )


def read_installed_claims(record: Mapping[str, Any], source: str, prefix: str) -> Claims:
    """Claims of a package as ``conda-meta/NAME.json`` records it after installation into ``prefix``.

    In its files, ``prefix`` has taken the place of each placeholder.
    """
    paths = record.get("paths_data")
    files = read_paths(paths if isinstance(paths, dict) else {}, source)
    files = {path: replace(c, placeholder=prefix) if c.placeholder else c for path, c in files.items()}
    claims = index_claims(record, source, files)
    return Claims(
        **claims, identities=_identities(record, ""), license=str(record.get("license") or ""), installed=True
    )


def index_claims(index: Mapping[str, Any], source: str, files: dict[str, FileClaim]) -> dict[str, Any]:
    """The part that index.json and an installed record share."""
    for key, kind in (("name", str), ("version", str), ("build", str), ("build_number", int)):
        if not isinstance(index.get(key), kind):
            raise BadInputError(f"{source} has no {kind.__name__} {key!r}; seen: {index.get(key)!r}")
    return {
        "format": Format.CONDA,
        "name": index["name"],
        "version": index["version"],
        "build": index["build"],
        "build_number": index["build_number"],
        "subdir": str(index.get("subdir") or ""),
        "requirements": tuple(map(read_conda_requirement, _strings(index, "depends", source))),
        "constraints": tuple(map(read_conda_requirement, _strings(index, "constrains", source))),
        "files": files,
        "metadata_root": ROOT,
    }


def parse_object(read: Reader, path: str) -> dict[str, Any]:
    """Parse a JSON file that must hold an object."""
    content = read(path)
    elements = sum(content.count(mark) for mark in (b"[", b"{", b","))
    if elements > MOST_ELEMENTS:
        raise BadInputError(f"{path} holds {elements} elements; {MOST_ELEMENTS} is the most read")
    try:
        value = json.loads(content)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadInputError(f"{path} holds a {type(value).__name__}; an object is valid")
    return value


def _strings(index: Mapping[str, Any], key: str, source: str) -> list[str]:
    value = index.get(key) or []
    if isinstance(value, list) and len(value) > MOST_REQUIREMENTS:
        raise BadInputError(f"{source}: {key!r} lists {len(value)}; {MOST_REQUIREMENTS} is the most read")
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise BadInputError(f"{source}: {key!r} is not a list of strings")
    return value


def read_paths(paths: Mapping[str, Any], source: str) -> dict[str, FileClaim]:
    """What ``paths.json`` says of each file."""
    listed = paths.get("paths") or []
    if not isinstance(listed, list):
        raise BadInputError(f"{source}: 'paths' is not a list")
    files = {}
    for item in listed:
        if not isinstance(item, dict) or not isinstance(item.get("_path"), str):
            raise BadInputError(f"{source}: an entry has no '_path'")
        size = item.get("size_in_bytes")
        files[item["_path"]] = FileClaim(
            size=size if isinstance(size, int) else None,
            sha256=str(item.get("sha256") or ""),
            placeholder=str(item.get("prefix_placeholder") or ""),
        )
    return files


def _identities(index: Mapping[str, Any], file_name: str) -> tuple[tuple[str, str, str], ...]:
    stated = [("info/index.json", key, str(index[key])) for key in ("name", "version", "build")]
    parts = file_name.rsplit("-", 2)
    if len(parts) == 3:
        stated += [("file name", k, v) for k, v in zip(("name", "version", "build"), parts, strict=True)]
    return tuple(stated)
