"""What is wrong with a toolchain: a code, a sentence and a function a check.

Levels: ``refused`` contradicts something and ends in exit code 3; ``error`` makes common builds fail;
``warning`` may; ``note`` informs. A check reads; it never opens a compiler and never prints.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from extforge.toolchain.cache import UNSUITABLE_TYPES, cache_directory, mount_of, nearest_existing
from extforge.toolchain.catalogue import CUDA_PARTS, TARGETS
from extforge.toolchain.kinds import ask_version, holds_headers
from extforge.toolchain.model import Finding, Found, Missing, Toolchain
from extforge.toolchain.query import Query

Check = Callable[[Toolchain, Query], Iterator[Finding]]


def check(toolchain: Toolchain, query: Query) -> tuple[Finding, ...]:
    """Return the findings of every check, in the order of the table."""
    return tuple(finding for one in CHECKS for finding in one(toolchain, query))


def _release(version: str | None) -> str | None:
    """Return major.minor."""
    return ".".join(version.split(".")[:2]) if version else None


def _version_of(toolchain: Toolchain, name: str) -> str | None:
    part = toolchain.get(name)
    return part.version if isinstance(part, Found) else None


def _check_one_version(toolchain: Toolchain, query: Query) -> Iterator[Finding]:
    """The parts of one root must be of one release; a link or a half-done update breaks that."""
    if toolchain.root is None or toolchain.root.kind == "triton":
        return
    parts = {name: toolchain.get(name) for name in ("nvcc", "ptxas", "cuda_include")}
    stated = {
        f"{name} {part.version} ({part.path})": _release(part.version)
        for name, part in parts.items()
        if isinstance(part, Found) and part.version and part.via != "argument"
    }
    if len(set(stated.values())) > 1:
        text = f"{toolchain.root.path} holds parts of several CUDA releases: {', '.join(stated)}"
        yield Finding("cuda-versions-mixed", "refused", text, "install all CUDA packages in one version")


def _check_torch_cuda(toolchain: Toolchain, query: Query) -> Iterator[Finding]:
    """Extensions of a CUDA torch need the same major: the runtime's name and ABI carry it."""
    toolkit = _version_of(toolchain, "nvcc") or _version_of(toolchain, "cuda_include")
    if not toolchain.torch_cuda or not toolkit or _release(toolkit) == _release(toolchain.torch_cuda):
        return
    text = f"torch was built with CUDA {toolchain.torch_cuda}, the toolkit is {toolkit}"
    if toolchain.root is not None:
        text += f" ({toolchain.root.path}, via {toolchain.root.via})"
    same_major = toolkit.split(".")[0] == toolchain.torch_cuda.split(".")[0]
    fix = f"name a toolkit {_release(toolchain.torch_cuda)}: export EXTFORGE_CUDA_ROOT=DIRECTORY"
    yield Finding("torch-cuda-differs", "warning" if same_major else "refused", text, fix)


COMPILER_BOUNDS = {
    "gcc": r"__GNUC__\s*>\s*(\d+)[\s\S]{0,160}?gcc versions later than",
    "clang": r"__clang_major__\s*>\s*=\s*(\d+)",
}


def _check_compiler_bound(toolchain: Toolchain, query: Query) -> Iterator[Finding]:
    """The bound is read from the toolkit's own header, the file that would stop the compilation."""
    compiler = toolchain.get("cxx")
    if isinstance(compiler, Missing) or toolchain.path("nvcc") is None or toolchain.root is None:
        return
    family = "clang" if "clang" in compiler.path.resolve().name else "gcc"
    for place in toolchain.root.places["include"]:
        header = place / "crt" / "host_config.h"
        stated = (
            re.search(COMPILER_BOUNDS[family], header.read_text(errors="replace"))
            if header.is_file()
            else None
        )
        if not stated or not compiler.version:
            continue
        bound = int(stated[1]) - (family == "clang")
        if int(compiler.version.split(".")[0]) > bound:
            level = "warning" if query.allow_unsupported_compiler else "refused"
            text = (
                f"{compiler.path} is {family} {compiler.version}, nvcc takes {family} to {bound} ({header})"
            )
            fix = f"set CC and CXX to a {family} {bound}, or pass --allow-unsupported-compiler"
            yield Finding("compiler-too-new", level, text, fix)
        return


def _check_compiler_pair(toolchain: Toolchain, query: Query) -> Iterator[Finding]:
    first, second = toolchain.get("cc"), toolchain.get("cxx")
    if isinstance(first, Found) and isinstance(second, Found) and first.version != second.version:
        text = f"CC is {first.path} ({first.version}), CXX is {second.path} ({second.version})"
        yield Finding("compilers-differ", "warning", text, "set CC and CXX to one compiler")


def _check_target(toolchain: Toolchain, query: Query) -> Iterator[Finding]:
    root = toolchain.root
    if query.target is not None and (root is None or root.target != query.target):
        text = f"no toolkit root holds the target {query.target}"
        fix = f"install the packages of {query.target}, or leave --target away"
        yield Finding("target-absent", "refused", text, fix, tuple(map(str, toolchain.root_tried)))
    if root is not None and root.kind == "conda":
        all_names = [name for names in TARGETS.values() for name in names]
        present = [name for name in all_names if holds_headers(root.path / "targets" / name)]
        if len(present) > 1:
            text = f"{root.path} holds several targets ({', '.join(present)}); {root.target} is used"
            yield Finding("several-targets", "warning", text, f"--target {present[0]}|{present[1]} chooses")


SEARCH_VARIABLES = {
    "CPATH": ("cuda.h", "cuda_runtime.h"),
    "C_INCLUDE_PATH": ("cuda.h", "cuda_runtime.h"),
    "CPLUS_INCLUDE_PATH": ("cuda.h", "cuda_runtime.h"),
    "LIBRARY_PATH": ("libcudart.so", "libcuda.so", "libcudart_static.a"),
}


def _check_search_variables(toolchain: Toolchain, query: Query) -> Iterator[Finding]:
    """gcc searches these before ``-isystem``, so another toolkit's headers win without a word."""
    for variable, names in SEARCH_VARIABLES.items():
        for directory in query.system.directories(variable):
            held = [name for name in names if (directory / name).exists()]
            if held and not _in_root(toolchain, directory):
                text = f"{variable} holds another CUDA toolkit: {directory} ({', '.join(held)})"
                yield Finding("foreign-search-path", "warning", text, f"unset {variable}")


def _in_root(toolchain: Toolchain, path: Path) -> bool:
    return toolchain.root is not None and path.resolve().is_relative_to(toolchain.root.path.resolve())


def _check_variables_agree(toolchain: Toolchain, query: Query) -> Iterator[Finding]:
    home, path = (query.system.variable(name) for name in ("CUDA_HOME", "CUDA_PATH"))
    if home and path and Path(home).resolve() != Path(path).resolve():
        text = f"CUDA_HOME={home} and CUDA_PATH={path} differ; torch takes the first, others the second"
        yield Finding("cuda-variables-differ", "warning", text, "unset CUDA_PATH")


TRITON_OVERRIDES = (
    "TRITON_PTXAS_PATH",
    "TRITON_PTXAS_BLACKWELL_PATH",
    "TRITON_CUOBJDUMP_PATH",
    "TRITON_NVDISASM_PATH",
    "TRITON_LIBCUDA_PATH",
)


def _check_triton_overrides(toolchain: Toolchain, query: Query) -> Iterator[Finding]:
    """Triton falls back in silence when an override is absent; here that is refused."""
    values = {name: query.system.variable(name) for name in TRITON_OVERRIDES}
    for name, value in values.items():
        if value and not Path(value).exists():
            text = f"{name}={value} does not exist; Triton would use its bundled tool without a word"
            yield Finding(
                "triton-override-missing", "refused", text, f'unset {name}, or: eval "$(extforge env)"'
            )
    old, new = values["TRITON_PTXAS_PATH"], values["TRITON_PTXAS_BLACKWELL_PATH"]
    if bool(old) != bool(new):
        text = "only one of TRITON_PTXAS_PATH and TRITON_PTXAS_BLACKWELL_PATH is set; Triton 3.9 takes the "
        text += "second from sm_90 up, older versions from sm_100 up"
        yield Finding("triton-override-half", "warning", text, f"set both to {old or new}")


def _check_triton_bundle(toolchain: Toolchain, query: Query) -> Iterator[Finding]:
    """A toolkit older than Triton's bundle may not know the newest architectures."""
    ours = toolchain.get("ptxas")
    if isinstance(ours, Missing) or ours.via == "bundled" or not ours.version:
        return
    for site in toolchain.interpreter.site_packages:
        bundled = Path(site) / "triton/backends/nvidia/bin/ptxas-blackwell"
        version = ask_version(query, "ptxas", bundled) if bundled.is_file() else None
        if version and tuple(map(int, version.split("."))) > tuple(map(int, ours.version.split("."))):
            text = f"Triton bundles ptxas {version}, but is told to use {ours.version} of the chosen root"
            fix = "if ptxas does not know your GPU: unset TRITON_PTXAS_PATH TRITON_PTXAS_BLACKWELL_PATH"
            yield Finding("triton-bundle-newer", "note", text, fix)


def _check_nvcc_flags(toolchain: Toolchain, query: Query) -> Iterator[Finding]:
    flags = query.system.variable("NVCC_PREPEND_FLAGS") or ""
    named = re.search(r"-(?:ccbin|-compiler-bindir)[= ](\S+)", flags)
    cxx = toolchain.path("cxx")
    if named and cxx and Path(named[1]).name != cxx.name:
        text = f"NVCC_PREPEND_FLAGS sets the host compiler {named[1]}, the resolved one is {cxx}"
        yield Finding(
            "other-ccbin", "warning", text, "unset NVCC_PREPEND_FLAGS, or set CXX to the same compiler"
        )


def _check_on_path(toolchain: Toolchain, query: Query) -> Iterator[Finding]:
    ninja = toolchain.path("ninja")
    if ninja is not None and not any(query.system.on_path("ninja")):
        text = f"ninja is installed ({ninja}) but not on PATH, the only place where torch looks"
        yield Finding("ninja-off-path", "warning", text, f'export PATH="{ninja.parent}:$PATH"')


def _check_activation(toolchain: Toolchain, query: Query) -> Iterator[Finding]:
    if (
        toolchain.conda
        and toolchain.prefix_via == "interpreter"
        and query.system.variable("CONDA_PREFIX") is None
    ):
        text = f"the environment {toolchain.prefix} is not activated; its parts are found all the same"
        yield Finding("not-activated", "note", text, f"conda activate {toolchain.prefix}")


def _check_cache(toolchain: Toolchain, query: Query) -> Iterator[Finding]:
    directory = cache_directory(query.system)
    existing = nearest_existing(directory)
    kind, options = mount_of(query.system, existing.resolve())
    troubles = {
        "is not writable": not os.access(existing, os.W_OK),
        "is mounted noexec, so compiled modules cannot be loaded from it": "noexec" in options,
        f"lies on {kind}, where locks and renames are slow or unsafe": kind in UNSUITABLE_TYPES,
    }
    for trouble in (text for text, true in troubles.items() if true):
        fix = "export EXTFORGE_CACHE_DIR=DIRECTORY on a local disk"
        yield Finding("cache-unsuitable", "warning", f"the cache {directory} {trouble}", fix)


# What a missing part means for the builds people start: without a toolkit nothing of CUDA is missed.
MISSING_LEVELS = {
    "cc": "error",
    "cxx": "error",
    "python_include": "error",
    "nvcc": "warning",
    "cuda_include": "warning",
    "cudart": "warning",
    "libcuda": "warning",
    "ninja": "warning",
}


def _check_missing(toolchain: Toolchain, query: Query) -> Iterator[Finding]:
    cuda = {part.name for part in CUDA_PARTS}
    wanted = toolchain.torch_cuda is not None or toolchain.root is not None
    for name, level in MISSING_LEVELS.items():
        part = toolchain.get(name)
        if isinstance(part, Missing) and (name not in cuda or wanted):
            where = f" in {toolchain.root.path}" if toolchain.root is not None and name in cuda else ""
            seen = tuple(map(str, part.tried))
            yield Finding(
                f"missing-{name.replace('_', '-')}", level, f"{name} is missing{where}", part.hint, seen
            )
    if not wanted:
        yield Finding("no-cuda", "note", "no CUDA toolkit was found; only CPU extensions can be built")


CHECKS: tuple[Check, ...] = (
    _check_one_version,
    _check_torch_cuda,
    _check_compiler_bound,
    _check_target,
    _check_triton_overrides,
    _check_missing,
    _check_compiler_pair,
    _check_search_variables,
    _check_variables_agree,
    _check_nvcc_flags,
    _check_on_path,
    _check_cache,
    _check_triton_bundle,
    _check_activation,
)
