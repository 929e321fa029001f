"""The claims of a wheel, from its ``.dist-info`` directory."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Callable, Mapping
from email.parser import HeaderParser

from packaging.tags import Tag, parse_tag
from packaging.utils import (
    BuildTag,
    InvalidWheelFilename,
    NormalizedName,
    canonicalize_name,
    parse_wheel_filename,
)
from packaging.version import Version

from extforge.audit.model import Claims, FileClaim, Format
from extforge.audit.requirements import MOST_REQUIREMENTS, read_wheel_requirement
from extforge.errors import BadInputError

Reader = Callable[[str], bytes]
# Headers and rows grow when they are parsed, to many times their bytes.
LONGEST_HEADERS, MOST_ROWS = 4 << 20, 300_000


def find_dist_info(present: Mapping[str, object]) -> str:
    """The one ``NAME.dist-info/`` at the top of a wheel or of an unpacked one; empty when there is none."""
    roots = {path.split("/")[0] for path in present if path.endswith(".dist-info/METADATA")}
    roots = {root for root in roots if f"{root}/METADATA" in present}
    if len(roots) > 1:
        raise BadInputError(f"holds several .dist-info directories: {', '.join(sorted(roots))}")
    return f"{roots.pop()}/" if roots else ""


def read_wheel_claims(read: Reader, root: str, file_name: str, installed: bool = False) -> Claims:
    """Claims of a wheel whose metadata lies below ``root``; ``file_name`` is empty for a directory."""
    metadata = _headers(read, f"{root}METADATA")
    name, version = _single(metadata, "Name", root), _single(metadata, "Version", root)
    wheel = _headers(read, f"{root}WHEEL")
    inner = frozenset(tag for text in wheel.get("Tag", []) for tag in _tags(text))
    # Installers believe the file's name; without one, WHEEL is all there is.
    tags = _parse_file_name(file_name)[3] if file_name else inner
    stated = metadata.get("Requires-Dist", [])
    if len(stated) > MOST_REQUIREMENTS:
        raise BadInputError(f"{root}METADATA requires {len(stated)}; {MOST_REQUIREMENTS} is the most read")
    parsed = map(read_wheel_requirement, stated)
    requirements = [r for r in parsed if r is not None]
    for text in metadata.get("Requires-Python", []):
        python = read_wheel_requirement(f"python{text}")
        requirements += [python] if python is not None else []
    return Claims(
        format=Format.WHEEL,
        name=canonicalize_name(name),
        version=version,
        requirements=tuple(requirements),
        identities=_identities(metadata, inner, root, file_name),
        license=_license(metadata),
        tags=tags,
        files=_record(read, f"{root}RECORD"),
        metadata_root=root,
        installed=installed,
    )


def _headers(read: Reader, path: str) -> dict[str, list[str]]:
    content = read(path)
    if len(content) > LONGEST_HEADERS:
        raise BadInputError(f"{path} has {len(content)} bytes; {LONGEST_HEADERS} is the most read")
    try:
        message = HeaderParser().parsestr(content.decode())
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path} is not UTF-8: {error}") from error
    headers: dict[str, list[str]] = {}
    for key, value in message.items():
        headers.setdefault(key, []).append(str(value))
    return headers


def _single(headers: dict[str, list[str]], key: str, root: str) -> str:
    values = headers.get(key, [])
    if len(values) != 1:
        raise BadInputError(f"{root}METADATA states {key} {len(values)} times; once is valid")
    return values[0]


def _tags(text: str) -> frozenset[Tag]:
    if text.count("-") != 2:
        raise BadInputError(f"wheel tag {text!r} is not PYTHON-ABI-PLATFORM")
    return parse_tag(text)


def _license(headers: dict[str, list[str]]) -> str:
    classified = [c for c in headers.get("Classifier", []) if c.startswith("License ::")]
    stated = headers.get("License-Expression", []) + headers.get("License", []) + classified
    return stated[0].splitlines()[0] if stated else ""


def _identities(
    metadata: dict[str, list[str]], inner: frozenset[Tag], root: str, file_name: str
) -> tuple[tuple[str, str, str], ...]:
    name, version = metadata["Name"][0], metadata["Version"][0]
    stated = [(f"{root}METADATA", "name", canonicalize_name(name)), (f"{root}METADATA", "version", version)]
    directory = root.removesuffix(".dist-info/").rsplit("-", 1)
    if len(directory) == 2:
        stated += [(root, "name", canonicalize_name(directory[0])), (root, "version", directory[1])]
    if file_name:
        parsed = _parse_file_name(file_name)
        stated += [("file name", "name", str(parsed[0])), ("file name", "version", str(parsed[1]))]
        stated += [(f"{root}WHEEL", "tags", _tag_text(inner)), ("file name", "tags", _tag_text(parsed[3]))]
    return tuple(stated)


def _parse_file_name(file_name: str) -> tuple[NormalizedName, Version, BuildTag, frozenset[Tag]]:
    try:
        return parse_wheel_filename(file_name)
    except InvalidWheelFilename as error:
        raise BadInputError(f"its name is no wheel's: {error}") from error


def _tag_text(tags: frozenset[Tag]) -> str:
    return " ".join(sorted(map(str, tags)))


def _record(read: Reader, path: str) -> dict[str, FileClaim]:
    files: dict[str, FileClaim] = {}
    try:
        for row in csv.reader(io.StringIO(read(path).decode())):
            if len(files) >= MOST_ROWS:
                raise BadInputError(f"{path} lists more than {MOST_ROWS} files")
            if len(row) != 3:
                raise BadInputError(f"{path}: row {','.join(row)[:200]!r} has {len(row)} fields; 3 are valid")
            size = int(row[2]) if re.fullmatch(r"[0-9]{1,18}", row[2]) else None
            files[row[0]] = FileClaim(size, _hexadecimal(row[1], path))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInputError(f"{path} is not a record of files: {error}") from error
    return files


def _hexadecimal(field: str, path: str) -> str:
    if not field.startswith("sha256="):
        return ""
    try:
        return base64.urlsafe_b64decode(field.removeprefix("sha256=") + "==").hex()
    except ValueError as error:
        raise BadInputError(f"{path}: {field[:100]!r} is no sha256") from error
