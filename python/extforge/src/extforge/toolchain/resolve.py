"""The resolution: a pure function of arguments, an environment mapping and the file system."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from extforge.errors import BadInputError
from extforge.toolchain import driver, host, interpreter
from extforge.toolchain.catalogue import (
    CONDA_PLATFORMS,
    CUDA_PARTS,
    PART_NAMES,
    PROVIDERS,
    TARGETS,
    TOOL_NAMES,
    Part,
)
from extforge.toolchain.checks import check
from extforge.toolchain.examine import examine
from extforge.toolchain.interpreter import Interpreter
from extforge.toolchain.kinds import Layouts, ask_version, header_version, locate
from extforge.toolchain.model import Finding, Found, Missing, Root, Toolchain
from extforge.toolchain.prefixes import choose_prefixes
from extforge.toolchain.query import Query, interpreter_of, machine_of
from extforge.toolchain.roots import Search, choose_root
from extforge.toolchain.system import System
from extforge.toolchain.view import plan_view

Parts = dict[str, Found | Missing]


def resolve(
    prefix: str | None = None,
    cuda: str | None = None,
    target: str | None = None,
    prefer: str = "prefix",
    overrides: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    *,
    allow_unsupported_compiler: bool = False,
    generate_stub: bool = False,
    sysroot: Path = Path("/"),
) -> Toolchain:
    """Return the toolchain of ``prefix`` (default: of the running interpreter).

    ``cuda`` names the toolkit root, ``overrides`` single parts (name -> path), ``prefer`` is
    ``prefix`` or ``env``; ``env`` stands for ``os.environ`` and ``sysroot`` for ``/``.
    ``generate_stub`` makes up for a missing driver stub with one that the view will hold. A missing
    part never raises. Raises :class:`ToolchainConflict` when the parts contradict each other or
    something named explicitly does not work, :class:`BadInputError` for an unknown name.
    """
    query = Query(
        System(os.environ if env is None else env, sysroot),
        interpreter.current(),
        machine_of(sys.executable, os.uname().machine),
        prefix,
        cuda,
        target,
        prefer,
        overrides or {},
        allow_unsupported_compiler,
        generate_stub,
    )
    return survey(query).refuse()


def survey(query: Query) -> Toolchain:
    """Return the toolchain with its contradictions listed as findings instead of raised.

    Most of the time goes into programs that are asked for their version, so they are asked side by side.
    """
    validate(query)
    prefixes = choose_prefixes(query)
    python = interpreter_of(query, prefixes.prefix)
    this_host = host.Host(query, prefixes, python, _choose_machine(query, python))
    with ThreadPoolExecutor(max_workers=8) as pool:
        cc, cxx = pool.map(partial(host.find_compiler, this_host), ("cc", "cxx"))
        host_parts = [pool.submit(find, this_host) for find in HOST_STEPS]
        torch, torch_cuda = host.find_torch(python)
        layouts = Layouts(query, prefixes, python, this_host.machine, _path_of(cxx[0]), torch_cuda)
        choice = choose_root(Search(query, prefixes, layouts))
        cuda_parts = list(pool.map(partial(_find_cuda_part, layouts, choice.root), CUDA_PARTS))
        runtime = driver.find_runtime_driver(query.system, this_host.machine)
        found = [("cc", cc[0]), ("cxx", cxx[0]), ("torch", torch), ("libcuda_runtime", runtime[0])]
        parts: Parts = dict((*found, *cuda_parts, *(part.result() for part in host_parts)))
    parts["libcuda"] = driver.link_with_driver(parts["libcuda"], parts["libcuda_runtime"])
    overruled = _apply_overrides(query, parts, this_host.machine)
    toolchain = Toolchain(
        prefixes.prefix,
        prefixes.via,
        prefixes.conda,
        this_host.machine,
        choice.root.target if choice.root else None,
        choice.root,
        choice.tried,
        {name: parts[name] for name in PART_NAMES},
        torch_cuda,
        python,
        query.system,
        (*prefixes.findings, *cc[1], *cxx[1], *choice.findings, *runtime[1], *overruled),
    )
    toolchain = _add_hints(_plan_stub(toolchain) if query.generate_stub else toolchain)
    return replace(toolchain, findings=(*toolchain.findings, *check(toolchain, query)))


HOST_STEPS: tuple[Callable[[host.Host], tuple[str, Found | Missing]], ...] = (
    lambda this_host: ("python_include", host.find_python_include(this_host)),
    lambda this_host: ("libpython", host.find_libpython(this_host)),
    lambda this_host: ("ninja", host.find_build_tool(this_host, "ninja")),
    lambda this_host: ("cmake", host.find_build_tool(this_host, "cmake")),
)


def validate(query: Query) -> None:
    """Raise :class:`BadInputError` for a part, target or preference that is unknown."""
    unknown = [name for name in query.overrides if name not in PART_NAMES]
    if unknown:
        raise BadInputError(f"unknown part {', '.join(unknown)}; known: {', '.join(PART_NAMES)}")
    targets = [name for names in TARGETS.values() for name in names]
    if query.target is not None and query.target not in targets:
        raise BadInputError(f"unknown target {query.target!r}; known: {', '.join(targets)}")
    if query.prefer not in ("prefix", "env"):
        raise BadInputError(f"prefer is {query.prefer!r}; it may be 'prefix' or 'env'")


def _choose_machine(query: Query, python: Interpreter) -> str:
    """Return the machine to build for: the target's, the package build's, else the interpreter's."""
    for machine, names in TARGETS.items():
        if query.target in names:
            return machine
    if query.system.variable("CONDA_BUILD") == "1":
        platform = query.system.variable("target_platform") or ""
        if platform in CONDA_PLATFORMS:
            return CONDA_PLATFORMS[platform]
    return machine_of(python.executable, query.native)


def _path_of(part: Found | Missing) -> Path | None:
    return part.path if isinstance(part, Found) else None


def _find_cuda_part(layouts: Layouts, root: Root | None, part: Part) -> tuple[str, Found | Missing]:
    """Take a part from the one root; what it lacks is missing."""
    if root is None:
        return part.name, Missing(part.name)
    path, tried = locate(layouts, root, part.name)
    if path is None:
        return part.name, Missing(part.name, tried)
    stated = header_version(root) if part.name == "cuda_include" else None
    version = stated or ask_version(layouts.query, part.name, path)
    return part.name, Found(path, version, root.via, root.path, tried)


def _apply_overrides(query: Query, parts: Parts, machine: str) -> list[Finding]:
    """Put the parts that the caller names in place; one that does not work is refused."""
    findings: list[Finding] = []
    kinds = {part.name: part.kind for part in CUDA_PARTS} | dict.fromkeys(TOOL_NAMES, "program")
    kinds |= {"python_include": "directory", "torch": "directory", "libcuda_runtime": "library"}
    for name, value in query.overrides.items():
        kind = kinds.get(name, "file")
        fault = examine(Path(value), kind, query.native if kind == "program" else machine)
        if fault is not None:
            text = f"the {name} named explicitly cannot be used: {fault}"
            findings.append(
                Finding("override-unusable", "refused", text, f"--set {name}=PATH with a path that works")
            )
        else:
            parts[name] = Found(Path(value), ask_version(query, name, Path(value)), "argument")
    return findings


def _plan_stub(toolchain: Toolchain) -> Toolchain:
    """Promise the stub that the view will hold, where there is none and one can be made."""
    needed = (toolchain.path("cc"), toolchain.path("cuda_include"))
    if toolchain.root is None or None in needed or isinstance(toolchain.get("libcuda"), Found):
        return toolchain
    promise = Found(
        Path("libcuda.so"), None, "generated", toolchain.root.path, toolchain.get("libcuda").tried
    )
    promised = replace(toolchain, parts={**toolchain.parts, "libcuda": promise})
    view = plan_view(promised)
    assert view is not None
    return replace(
        promised, parts={**promised.parts, "libcuda": replace(promise, path=view.stubs / "libcuda.so")}
    )


def _add_hints(toolchain: Toolchain) -> Toolchain:
    parts = {
        name: part if isinstance(part, Found) or part.hint else replace(part, hint=_hint_for(toolchain, name))
        for name, part in toolchain.parts.items()
    }
    return replace(toolchain, parts=parts)


def _hint_for(toolchain: Toolchain, name: str) -> str:
    """Return the one command that provides a part in this kind of environment, or nothing."""
    if name not in PROVIDERS:
        return ""
    root = toolchain.root
    versions = {
        "cuda": ".".join(((root and root.version) or toolchain.torch_cuda or "13.0").split(".")[:2]),
        "python": ".".join(toolchain.interpreter.version.split(".")[:2]),
    }
    conda, wheel, debian = (package.format(**versions) for package in PROVIDERS[name])
    if toolchain.prefix_via == "env:PREFIX":
        return f"add {conda.partition('=')[0]} to the requirements of the recipe"
    if toolchain.conda:
        return f"conda install -p {toolchain.prefix} -c conda-forge {conda}"
    if name == "libcuda" and root is not None:
        return "extforge view --generate-stub"
    if root is not None and root.kind != "wheel" and name in CUDA_NAMES:
        return f"export EXTFORGE_CUDA_ROOT=DIRECTORY, a toolkit {versions['cuda']} that holds it"
    if wheel:
        return f"{toolchain.interpreter.executable} -m pip install '{wheel}'"
    return f"apt-get install {debian}" if debian else ""


CUDA_NAMES = {part.name for part in CUDA_PARTS}
