"""Lists of GPU architectures, as torch, CMake and nvcc write them."""

from __future__ import annotations

import re

from extforge.audit.binaries import DeviceImage
from extforge.errors import BadInputError

TORCH_STYLE = re.compile(r"(\d+)\.(\d)([af]?)(\+PTX)?", re.IGNORECASE)
CMAKE_STYLE = re.compile(r"(?:sm_|compute_)?(\d+)(\d)([af]?)(-real|-virtual)?")


def parse_architectures(text: str) -> frozenset[DeviceImage]:
    """``8.0;9.0+PTX``, ``80-real;90``, ``sm_80,compute_90`` as the images they promise.

    torch's ``9.0`` promises SASS, ``9.0+PTX`` PTX as well; CMake's ``90`` promises both.
    """
    images: set[DeviceImage] = set()
    for item in re.split(r"[;,\s]+", text.strip()):
        kinds: tuple[str, ...]
        if match := TORCH_STYLE.fullmatch(item):
            kinds = ("sass", "ptx") if match[4] else ("sass",)
        elif match := CMAKE_STYLE.fullmatch(item):
            kinds = _cmake_kinds(item, match[4])
        else:
            raise BadInputError(
                f"architecture {item!r} in {text!r} is not valid; valid are 9.0, 9.0+PTX, 90-real, sm_90"
            )
        images |= {DeviceImage(kind, f"{match[1]}.{match[2]}{match[3].lower()}") for kind in kinds}
    return frozenset(images)


def _cmake_kinds(item: str, suffix: str | None) -> tuple[str, ...]:
    if suffix == "-real" or item.startswith("sm_"):
        return ("sass",)
    if suffix == "-virtual" or item.startswith("compute_"):
        return ("ptx",)
    return ("sass", "ptx")


def sort_key(architecture: str) -> tuple[int, int, str]:
    """Orders ``9.0`` before ``10.0`` and ``9.0`` before ``9.0a``."""
    major, _, minor = architecture.partition(".")
    return int(major), int(minor.rstrip("af")), architecture


def described(images: frozenset[DeviceImage]) -> str:
    """``sass 8.0 9.0, ptx 9.0``, or ``none``."""
    parts = []
    for kind in ("sass", "ptx"):
        found = sorted((i.architecture for i in images if i.kind == kind), key=sort_key)
        parts += [f"{kind} {' '.join(found)}"] if found else []
    return ", ".join(parts) or "none"
