"""What only a search through a library's bytes reveals: build paths, operators, GPU code, a CUDA runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from extforge.audit.binaries import DeviceImage
from extforge.audit.reading import fatbin
from extforge.audit.reading.limits import Allowance
from extforge.audit.reading.window import Malformed, Window

# Directories in which packages are built and which no user's machine has.
BUILD_ROOTS = (
    b"/home/",
    b"/root/",
    b"/tmp/",
    b"/Users/",
    b"/__w/",
    b"/builds/",
    b"/feedstock_root/",
    b"/github/workspace/",
    b"_placehold" * 3,
    b"_build_env/",
)
PATH_CHARACTERS = re.compile(rb"[\w./+@-]+")
BEFORE_PATH = re.compile(rb"[\w./+@-]+\Z")
OPERATOR = re.compile(rb"aten::([A-Za-z_][A-Za-z_0-9]*)(?:\.[A-Za-z_0-9]+)?(?=[\0(])")
# The name of a shared memory that every libcudart since CUDA 11 makes, the static one included.
CUDA_RUNTIME = b"/cudart.shm.%x.%x.%llx"
OVERLAP = 512
MOST_KEPT = 4096
MOST_CONTAINERS = 100_000
T = TypeVar("T")


@dataclass(slots=True)
class Scan:
    """The sum of one pass."""

    build_paths: dict[str, int] = field(default_factory=dict)
    operators: set[str] = field(default_factory=set)
    images: set[DeviceImage] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    cuda_runtime: bool = False


def scan(window: Window, allowance: Allowance) -> Scan:
    """Pass once over the file; memory stays at a few pieces, whatever its size."""
    result = Scan()
    containers: set[int] = set()
    for offset, piece, _ in window.pieces(OVERLAP):
        allowance.check_time()
        containers.update(offset + at for at in occurrences(piece, fatbin.MAGIC))
        if len(containers) > MOST_CONTAINERS:
            raise Malformed(f"more than {MOST_CONTAINERS} fat binaries")
        result.cuda_runtime = result.cuda_runtime or CUDA_RUNTIME in piece
        if b"aten::" in piece:
            _keep(result.operators, (m.group(1).decode() for m in OPERATOR.finditer(piece)))
        _find_build_paths(piece, offset, result)
    for container in sorted(containers):
        allowance.check_time()
        _read_container(window, container, result)
    return result


def _find_build_paths(piece: bytes, offset: int, result: Scan) -> None:
    for root in BUILD_ROOTS:
        for at in occurrences(piece, root):
            if len(result.build_paths) < MOST_KEPT and (path := path_around(piece, at, root)):
                result.build_paths.setdefault(path, offset + at)


def _read_container(window: Window, container: int, result: Scan) -> None:
    try:
        _keep(result.images, fatbin.read_device_images(window, container))
        end = container + fatbin.container_size(window, container)
    except Malformed as error:
        result.problems.append(f"device code: {error}")
        return
    # Compressed device code spells anything, paths included.
    for path in [p for p, at in result.build_paths.items() if container <= at < end]:
        del result.build_paths[path]


def _keep(kept: set[T], found: Iterator[T]) -> None:
    for value in found:
        if len(kept) >= MOST_KEPT:
            return
        kept.add(value)


def occurrences(piece: bytes, needle: bytes) -> Iterator[int]:
    """Offsets of ``needle`` in ``piece``."""
    at = piece.find(needle)
    while at >= 0:
        yield at
        at = piece.find(needle, at + 1)


def path_around(piece: bytes, at: int, root: bytes) -> str:
    """The path below ``root`` that the bytes at ``at`` belong to; empty when it is none.

    A root that begins with a slash must begin the path: ``/usr/home/x`` is not below ``/home``.
    """
    before = BEFORE_PATH.search(piece, max(0, at - 256), at)
    if before and root.startswith(b"/"):
        return ""
    whole = PATH_CHARACTERS.match(piece, before.start() if before else at)
    text = whole.group().decode("ascii", "replace") if whole else ""
    below = text.split("/", 3)
    hidden = len(below) > 2 and below[2].startswith(".")  # /tmp/.X11-unix is where a server listens
    return text if text.startswith("/") and len(below) == 4 and below[3] and not hidden else ""
