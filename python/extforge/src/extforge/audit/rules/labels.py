"""Facts that several families ask of a package: what it is labelled as, and what it uses."""

from __future__ import annotations

import re

from extforge.audit.binaries import Elf
from extforge.audit.model import Claims, Format, Package
from extforge.audit.requirements import Requirement
from extforge.audit.tables.torch import SHIM

TORCH_NAMES = ("pytorch", "libtorch", "torch")
TORCH_LIBRARY = re.compile(r"lib(torch|c10)\w*\.so")
CUDA_TORCH_LIBRARIES = frozenset({"libtorch_cuda.so", "libc10_cuda.so", "libtorch_cuda_linalg.so"})
# A C++ name in one of torch's namespaces, after _Z, a table's mark and the nesting and cv marks.
CLASSIC = re.compile(r"_Z(?:T[VIST]|GV)?N?[VKrRO]*(?:2at|3c10|5torch|6caffe2)")
CUDA_BUILD = re.compile(r"cuda|gpu")


def device_label(claims: Claims) -> str:
    """``cuda`` or ``cpu`` as build string, variant, name or local version label it; else empty."""
    if claims.format is Format.WHEEL:
        local = claims.version.partition("+")[2] or claims.name.rpartition("-")[2]
        return "cuda" if re.fullmatch(r"(cu|cuda)\d{2,3}", local) else "cpu" if local == "cpu" else ""
    for label in ("cuda", "cpu"):
        if claims.build.startswith(label):
            return label
    compiler = claims.variant.get("cuda_compiler_version", "")
    return "cpu" if compiler == "None" else "cuda" if compiler else ""


def uses_torch(elf: Elf) -> bool:
    """Whether a library needs torch, by its needed libraries or its symbols."""
    return any(TORCH_LIBRARY.fullmatch(n) for n in elf.needed) or any(
        SHIM.fullmatch(s.name) or CLASSIC.match(s.name) for s in elf.hard_imports
    )


def torch_libraries(package: Package) -> dict[str, Elf]:
    """Libraries that use torch; none in a package that is torch."""
    if package.claims.name in TORCH_NAMES:
        return {}
    return {path: elf for path, elf in package.elves.items() if uses_torch(elf)}


def accepts_torch_without_cuda(claims: Claims) -> bool:
    """Whether no requirement or constraint on torch asks for a CUDA build of it."""
    restricted = claims.restricted(*TORCH_NAMES)
    return not any(CUDA_BUILD.search(r.build) for r in restricted) and device_label(claims) != "cuda"


def described(requirements: tuple[Requirement, ...], otherwise: str) -> str:
    """The requirements as their package states them."""
    return "; ".join(r.text for r in requirements) or otherwise


def listed(names: list[str], most: int = 5) -> str:
    """The first few of ``names`` and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
