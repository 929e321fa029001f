"""GPU architectures in torch's spelling (``9.0``, ``9.0a``, ``12.0+PTX``), checked against nvcc itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

from extforge.errors import BadInputError
from extforge.toolchain.model import Toolchain, ToolchainConflict

SPELLING = re.compile(r"(\d+)\.(\d)([af]?)(\+PTX)?")


def parse_archs(text: str) -> tuple[str, ...]:
    """Return the architectures of a list separated by blanks, commas or semicolons, as torch reads it."""
    archs = tuple(arch for arch in re.split(r"[\s;,]+", text) if arch)
    wrong = [arch for arch in archs if not SPELLING.fullmatch(arch)]
    if wrong or not archs:
        raise BadInputError(f"architecture {' '.join(wrong) or text!r}: write it as 9.0, 9.0a or 12.0+PTX")
    return archs


def for_cmake(archs: Sequence[str]) -> str:
    """Return the list as CUDAARCHS wants it: a bare number means code and PTX, ``-real`` code alone."""
    return ";".join(_number(arch) + ("" if arch.endswith("+PTX") else "-real") for arch in archs)


def _number(arch: str) -> str:
    return arch.removesuffix("+PTX").replace(".", "")


def require_archs(toolchain: Toolchain, archs: Sequence[str]) -> None:
    """Raise :class:`ToolchainConflict` for an architecture that the chosen nvcc cannot compile for."""
    nvcc = toolchain["nvcc"]
    _, answer = toolchain.system.ask(nvcc.path, "--list-gpu-code")
    known = re.findall(r"\bsm_(\w+)", answer)
    unknown = [arch for arch in archs if _number(arch) not in known]
    if unknown:
        raise ToolchainConflict(
            f"{nvcc.path} (CUDA {nvcc.version}) does not compile for {' '.join(unknown)}; "
            f"it knows sm_ {' '.join(known)}; choose another architecture or another toolkit"
        )
