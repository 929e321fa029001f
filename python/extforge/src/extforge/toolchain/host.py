"""Finding what does not belong to a CUDA toolkit: compilers, Python, torch, build tools."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from extforge.toolchain.catalogue import COMPILER_LAUNCHERS, COMPILERS
from extforge.toolchain.examine import examine
from extforge.toolchain.interpreter import Interpreter
from extforge.toolchain.kinds import ask_version
from extforge.toolchain.model import Finding, Found, Missing, Tried
from extforge.toolchain.prefixes import Prefixes
from extforge.toolchain.query import Query


class Host(NamedTuple):
    """What the steps of this module share; ``machine`` is the one that libraries are for."""

    query: Query
    prefixes: Prefixes
    interpreter: Interpreter
    machine: str


class _Offer(NamedTuple):
    path: Path
    via: str


def _pick(host: Host, name: str, offers: Iterator[_Offer], kind: str = "program") -> Found | Missing:
    """Return the first offer that can be used, carrying the reasons of those before it."""
    tried: list[Tried] = []
    machine = host.query.native if kind == "program" else host.machine
    for offer in offers:
        fault = examine(offer.path, kind, machine)
        if fault is None:
            version = ask_version(host.query, name, offer.path) if kind == "program" else None
            return Found(offer.path, version, offer.via, tried=tuple(tried))
        tried.append(fault)
    return Missing(name, tuple(tried))


def find_compiler(host: Host, name: str) -> tuple[Found | Missing, tuple[Finding, ...]]:
    """Return the compiler: the variable's, then the prefix's ``<triple>-gcc``, then PATH.

    The variable is one word for Triton and nvcc but a command line for make, so a launcher in front
    is passed over and arguments behind are reported as lost.
    """
    variable, names = COMPILERS[name]
    value = host.query.system.variable(variable)
    words = shlex.split(value) if value else []
    findings: list[Finding] = []
    while words and Path(words[0]).name in COMPILER_LAUNCHERS:
        findings.append(_launcher_finding(variable, words.pop(0)))
    if not words:
        return _pick(host, name, _offer_compilers(host, names)), tuple(findings)
    if words[1:]:
        findings.append(_arguments_finding(variable, words))
    found = _pick(host, name, _offer_named(host, words[0], f"env:{variable}"))
    if isinstance(found, Missing):
        seen = "; ".join(map(str, found.tried)) or f"{words[0]} is not on PATH"
        text = f"{variable}={value} does not work: {seen}"
        findings.append(
            Finding("compiler-unusable", "refused", text, f"unset {variable}, or name a compiler")
        )
    return found, tuple(findings)


def _offer_named(host: Host, word: str, via: str) -> Iterator[_Offer]:
    if "/" in word:
        yield _Offer(Path(word), via)
        return
    for path in (host.prefixes.tools / "bin" / word, *host.query.system.on_path(word)):
        if path.is_symlink() or path.exists():
            yield _Offer(path, via)


def _offer_compilers(host: Host, names: tuple[str, ...]) -> Iterator[_Offer]:
    if host.prefixes.conda:
        for name in names:
            path = host.prefixes.tools / "bin" / f"{host.machine}-conda-linux-gnu-{name}"
            if path.is_symlink() or path.exists():
                yield _Offer(path, "conda")
    for path in host.query.system.on_path(*names):
        if path.resolve().name not in COMPILER_LAUNCHERS:
            yield _Offer(path, "path")


def _launcher_finding(variable: str, launcher: str) -> Finding:
    text = f"{variable} begins with {launcher}; Triton and nvcc take one word, so the compiler alone is used"
    return Finding("compiler-launcher", "note", text, f"for CMake set CMAKE_C_COMPILER_LAUNCHER={launcher}")


def _arguments_finding(variable: str, words: list[str]) -> Finding:
    text = f"{variable} holds arguments ({shlex.join(words[1:])}); torch and Triton would lose them"
    return Finding("compiler-arguments", "warning", text, f"move them to {variable.replace('CC', 'C')}FLAGS")


def find_build_tool(host: Host, name: str) -> Found | Missing:
    """Return ninja or cmake: the prefix's, the interpreter's neighbour, then PATH."""

    def offers() -> Iterator[_Offer]:
        own = {
            host.prefixes.tools / "bin" / name: "conda",
            Path(host.interpreter.executable).parent / name: "wheel",
        }
        for path, via in own.items():
            if path.is_symlink() or path.exists():
                yield _Offer(path, via if host.prefixes.conda or via == "wheel" else "default")
        for path in host.query.system.on_path(name):
            yield _Offer(path, "path")

    return _pick(host, name, offers())


def find_python_include(host: Host) -> Found | Missing:
    """Return the directory that really holds Python.h; the interpreter's word is only a candidate."""
    found = _pick(
        host,
        "python_include",
        (_Offer(Path(d) / "Python.h", "interpreter") for d in host.interpreter.includes),
        "file",
    )
    return found if isinstance(found, Missing) else Found(
        found.path.parent, host.interpreter.version, found.via, tried=found.tried
    )  # fmt: skip


def find_libpython(host: Host) -> Found | Missing:
    """Return the library an embedding program links; extension modules must not."""
    name = host.interpreter.library_name
    directories = host.interpreter.library_directories if name else ()
    kind = "library" if ".so" in name else "file"
    found = _pick(host, "libpython", (_Offer(Path(d) / name, "interpreter") for d in directories), kind)
    return found if isinstance(found, Missing) else Found(
        found.path, host.interpreter.version, found.via, tried=found.tried
    )  # fmt: skip


def find_torch(interpreter: Interpreter) -> tuple[Found | Missing, str | None]:
    """Return the torch package and its CUDA version (None for a build without), read as text.

    Importing torch would cost seconds and fails exactly where a diagnosis is needed.
    """
    tried: list[Tried] = []
    for site in map(Path, interpreter.site_packages):
        stated = site / "torch" / "version.py"
        fault = examine(stated, "file", "")
        if fault is None:
            text = stated.read_text(errors="replace")
            via = "wheel" if any(site.glob("torch-*.dist-info/WHEEL")) else "default"
            version = read_assignment(text, "__version__")
            return Found(stated.parent, version, via, tried=tuple(tried)), read_assignment(text, "cuda")
        tried.append(fault)
    return Missing("torch", tuple(tried)), None


def read_assignment(text: str, name: str) -> str | None:
    """Return the quoted value that a line of ``torch/version.py`` assigns to ``name``."""
    found = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found[1] if found else None
