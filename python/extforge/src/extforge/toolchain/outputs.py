"""One toolchain in the words of its readers: environment variables, CMake cache, JSON document."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from extforge.errors import NotFoundError
from extforge.toolchain.archs import for_cmake
from extforge.toolchain.cache import cache_directory
from extforge.toolchain.catalogue import PART_NAMES
from extforge.toolchain.flags import MODULES, torch_cmake_directories
from extforge.toolchain.model import Found, Missing, Toolchain, Tried
from extforge.toolchain.view import View, plan_view

SCHEMA = 1


def environment(toolchain: Toolchain, view: View | None, archs: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the variables that make every known tool use this toolchain.

    Only what was found is set. LD_LIBRARY_PATH, CPATH and LIBRARY_PATH are never set: they reach
    programs that have nothing to do with the build.
    """
    variables = {name: str(path) for name, part in PART_VARIABLES if (path := toolchain.path(part))}
    if view is not None:
        variables |= {name: str(path) for name, path in _view_variables(toolchain, view)}
    if isinstance(bundled := toolchain.get("ptxas"), Found) and bundled.via == "bundled":
        variables = {name: value for name, value in variables.items() if not name.startswith("TRITON_")}
    variables |= _cache_variables(toolchain)
    variables["CMAKE_PREFIX_PATH"] = os.pathsep.join(_cmake_prefix_path(toolchain))
    if archs:
        variables["CUDAARCHS"] = for_cmake(archs)
        variables["TORCH_CUDA_ARCH_LIST"] = ";".join(archs)
    return variables


# One compiler serves the host and nvcc, and both of Triton's ptxas knobs get one tool: which of the
# two is consulted depends on Triton's version and on the architecture.
PART_VARIABLES = (
    ("CC", "cc"),
    ("CXX", "cxx"),
    ("CUDAHOSTCXX", "cxx"),
    ("NVCC_CCBIN", "cxx"),
    ("TRITON_PTXAS_PATH", "ptxas"),
    ("TRITON_PTXAS_BLACKWELL_PATH", "ptxas"),
    ("TRITON_CUOBJDUMP_PATH", "cuobjdump"),
    ("TRITON_NVDISASM_PATH", "nvdisasm"),
)


def _view_variables(toolchain: Toolchain, view: View) -> Iterator[tuple[str, Path]]:
    for name in ("CUDA_HOME", "CUDA_PATH", "CUDAToolkit_ROOT"):
        yield name, view.path
    if toolchain.path("nvcc"):
        yield "CUDACXX", view.path / "bin" / "nvcc"
    if view.stubbed:
        yield "TRITON_LIBCUDA_PATH", view.stubs


def _cache_variables(toolchain: Toolchain) -> dict[str, str]:
    """Return caches that carry the toolchain's fingerprint, since Triton's own key leaves the compiler out.

    A place that the user chose is left alone.
    """
    own = cache_directory(toolchain.system)
    places = {"TRITON_CACHE_DIR": own / "triton", "TORCH_EXTENSIONS_DIR": own / "torch_extensions"}
    chosen = {name: toolchain.system.variable(name) for name in places}
    return {
        name: str(place / toolchain.fingerprint[:16])
        for name, place in places.items()
        if chosen[name] is None or Path(chosen[name] or "").is_relative_to(own)
    }


def _cmake_prefix_path(toolchain: Toolchain) -> list[str]:
    """Return torch's CMake directory, the prefix, then what the user had."""
    torch = toolchain.path("torch")
    own = [str(torch / "share/cmake")] if torch and (torch / "share/cmake").is_dir() else []
    user = toolchain.system.variable("CMAKE_PREFIX_PATH") or ""
    return list(dict.fromkeys((*own, str(toolchain.prefix), *filter(None, user.split(os.pathsep)))))


def cmake_variables(toolchain: Toolchain, view: View | None, archs: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the initial cache for ``cmake -C``."""
    variables = {name: str(path) for name, part in CMAKE_PARTS if (path := toolchain.path(part))}
    variables["Python_EXECUTABLE"] = variables["Python3_EXECUTABLE"] = toolchain.interpreter.executable
    variables["CMAKE_PREFIX_PATH"] = ";".join(_cmake_prefix_path(toolchain))
    torch = toolchain.path("torch")
    for directory in torch_cmake_directories(torch, toolchain.prefix)[:1] if torch else ():
        variables["Torch_DIR"] = str(directory)
    if view is not None:
        variables |= {name: str(value(view)) for name, value in CMAKE_VIEW.items()}
        if toolchain.path("nvcc"):
            variables["CMAKE_CUDA_COMPILER"] = str(view.path / "bin/nvcc")
            variables["CMAKE_CUDA_HOST_COMPILER"] = variables.get("CMAKE_CXX_COMPILER", "")
        if toolchain.path("cudart"):
            variables["CUDA_CUDART"] = str(view.libraries / "libcudart.so")
        if view.stubbed:
            variables["CUDA_cuda_driver_LIBRARY"] = str(view.stubs / "libcuda.so")
    if archs:
        variables["CMAKE_CUDA_ARCHITECTURES"] = for_cmake(archs)
    return {name: value for name, value in variables.items() if value}


CMAKE_PARTS = (("CMAKE_C_COMPILER", "cc"), ("CMAKE_CXX_COMPILER", "cxx"))
# torch's CMake files still run the older FindCUDA first and stop when the two disagree.
CMAKE_VIEW: dict[str, Callable[[View], Path]] = {
    "CUDAToolkit_ROOT": lambda view: view.path,
    "CUDA_TOOLKIT_ROOT_DIR": lambda view: view.path,
}


def cmake_script(variables: dict[str, str]) -> str:
    """Return ``set(NAME [=[value]=] CACHE TYPE)`` lines; bracket arguments need no escape."""
    kinds = {"_EXECUTABLE": "FILEPATH", "_COMPILER": "FILEPATH", "_LIBRARY": "FILEPATH", "CUDART": "FILEPATH"}
    kinds |= {"_DIR": "PATH", "_ROOT": "PATH"}
    lines = []
    for name, value in variables.items():
        kind = next((kind for ending, kind in kinds.items() if name.endswith(ending)), "STRING")
        lines.append(f'set({name} [=[{value}]=] CACHE {kind} "extforge")')
    return "\n".join(lines) + "\n"


def document(toolchain: Toolchain, why: bool = True) -> dict[str, Any]:
    """Return the document of ``extforge json``.

    Keys may be added within a schema number, meanings never change.
    """
    parts = {name: _part_document(toolchain.get(name), why) for name in PART_NAMES}
    link, runtime = parts.pop("libcuda"), parts.pop("libcuda_runtime")
    root, view = toolchain.root, plan_view(toolchain)
    root_document: dict[str, Any] | None = None
    if root is not None:
        root_document = {"kind": root.kind, "path": str(root.path), "version": root.version, "via": root.via}
        root_document |= {"view": str(view.path) if view else None}
    return {
        "schema": SCHEMA,
        "prefix": {"path": str(toolchain.prefix), "via": toolchain.prefix_via, "conda": toolchain.conda},
        "machine": toolchain.machine,
        "target": toolchain.target,
        "root": root_document,
        **({"overruled": list(map(_tried_document, toolchain.root_tried))} if why else {}),
        "tools": parts,
        "torch_cuda": toolchain.torch_cuda,
        "driver": {"link": link, "runtime": runtime},
        "flags": {module: flags for module in MODULES if (flags := _flags_document(toolchain, module))},
        "environ": environment(toolchain, view),
        "findings": [vars(finding) | {"evidence": list(finding.evidence)} for finding in toolchain.findings],
        "fingerprint": toolchain.fingerprint,
    }


def _part_document(part: Found | Missing, why: bool) -> dict[str, Any]:
    tried = {"tried": list(map(_tried_document, part.tried))} if why else {}
    if isinstance(part, Missing):
        return {"path": None, "hint": part.hint, **tried}
    root = str(part.root) if part.root else None
    return {"path": str(part.path), "version": part.version, "via": part.via, "root": root, **tried}


def _tried_document(tried: Tried) -> dict[str, str]:
    return {"path": tried.path, "reason": tried.reason, "detail": tried.detail}


def _flags_document(toolchain: Toolchain, module: str) -> dict[str, list[str]] | None:
    """Return the flags of a module, or None when a part of it is missing."""
    try:
        flags = toolchain.flags(module)
    except NotFoundError:
        return None
    return {key: list(value) for key, value in vars(flags).items()}
