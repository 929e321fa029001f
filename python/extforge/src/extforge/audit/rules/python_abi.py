"""Which Pythons can load the modules, and which does the package claim?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import abi3info

from extforge.audit.binaries import Elf
from extforge.audit.model import Context, Format, Observation, Package
from extforge.audit.requirements import allowed_minors
from extforge.audit.rules.labels import listed

MINORS = tuple(f"3.{n}" for n in range(6, 40))
PYTHON_SYMBOL = re.compile(r"_?Py[A-Z_]\w*")
MODULE_SUFFIX = re.compile(
    r"\.(?:cpython-3(?P<minor>\d+)(?P<free>t?)(?:-(?P<platform>[\w-]+))?|(?P<abi3>abi3))\.so$"
)
ONE_ABI = re.compile(r"(?:^|_)(cp3\d+t?)$")
LIBPYTHON = re.compile(r"libpython3[\d.]*t?\.so[\d.]*")


@cache
def limited_api() -> dict[str, tuple[int, int]]:
    """Symbol of the limited API -> the Python that added it."""
    tables = (abi3info.FUNCTIONS, abi3info.DATAS)
    return {s.name: (i.added.major, i.added.minor) for table in tables for s, i in table.items()}


def python_symbols(elf: Elf) -> list[str]:
    """Symbols that a library takes from the interpreter."""
    return sorted({s.name for s in elf.hard_imports if PYTHON_SYMBOL.fullmatch(s.name)})


def claimed_pythons(package: Package) -> tuple[tuple[str, ...], str]:
    """Minor Python versions that the package claims to work with, and the words that say so."""
    claims = package.claims
    required = claims.restricted("python", "python_abi")
    minors = allowed_minors(required, MINORS) if required else MINORS
    words = "; ".join(r.text for r in required) or "any Python"
    if claims.format is Format.CONDA:
        return minors, words
    words = " ".join(sorted({f"{t.interpreter}-{t.abi}" for t in claims.tags}))
    exact = {t.interpreter for t in claims.tags if t.abi.startswith("cp") and t.abi[2:].rstrip("t").isdigit()}
    if exact:
        return tuple(m for m in MINORS if f"cp{m.replace('.', '')}" in exact), words
    oldest = [m for t in claims.tags if (m := re.fullmatch(r"(?:cp|py)3(\d+)", t.interpreter))]
    first = min((int(m[1]) for m in oldest), default=0)
    return tuple(m for m in minors if int(m.partition(".")[2]) >= first), words


def outside_the_limited_api(package: Package, context: Context) -> Iterator[Observation]:
    """P01."""
    pythons, words = claimed_pythons(package)
    for path, elf in package.elves.items():
        suffix = MODULE_SUFFIX.search(path)
        outside = [name for name in python_symbols(elf) if name not in limited_api()]
        stable_name = suffix is not None and suffix["abi3"] is not None
        per_python = suffix is not None and suffix["minor"] is not None and _several_suffixes(package)
        if outside and not per_python and (len(pythons) != 1 or stable_name):
            claim = f"abi3, by its name; {words}" if stable_name else words
            yield Observation(
                path, claim, f"{len(outside)} symbols outside: {listed(outside)}", "Py_LIMITED_API"
            )


def younger_limited_api(package: Package, context: Context) -> Iterator[Observation]:
    """P02."""
    pythons, words = claimed_pythons(package)
    if len(pythons) < 2:
        return
    oldest = (3, int(pythons[0].partition(".")[2]))
    for path, elf in package.elves.items():
        names = python_symbols(elf)
        younger = [name for name in names if limited_api().get(name, (0, 0)) > oldest]
        if younger and all(name in limited_api() for name in names):
            born = max(limited_api()[name] for name in younger)
            seen = f"functions of Python {born[0]}.{born[1]}: {listed(younger)}"
            yield Observation(path, f"{words}: Python {pythons[0]}", seen, "Py_LIMITED_API")


def claimed_abis(package: Package) -> frozenset[str]:
    """ABIs such as ``cp313`` and ``cp313t`` (free-threaded) that the tags or ``python_abi`` name."""
    claims = package.claims
    stated = [tag.abi for tag in claims.tags] + [r.build for r in claims.restricted("python_abi")]
    return frozenset(match[1] for text in stated if (match := ONE_ABI.search(text)))


def contradicting_suffix(package: Package, context: Context) -> Iterator[Observation]:
    """P03. A package with modules for several Pythons chooses among them itself."""
    (pythons, words), abis = claimed_pythons(package), claimed_abis(package)
    for path, elf in package.elves.items():
        suffix = MODULE_SUFFIX.search(path)
        if suffix is None or suffix["minor"] is None:
            continue
        minor, platform = f"3.{suffix['minor']}", suffix["platform"] or ""
        if (minor,) != pythons and not _several_suffixes(package):
            yield Observation(
                path, words, f"a module for Python {minor} alone", "the wheel's tag or `python`"
            )
        elif abis and f"cp3{suffix['minor']}{suffix['free']}" not in abis and not _several_suffixes(package):
            kind = "free-threaded Python" if suffix["free"] else "Python with the interpreter lock"
            yield Observation(path, words, f"a module for {kind} alone", "the wheel's tag or `python_abi`")
        if platform and elf.machine and not platform.startswith(elf.machine):
            yield Observation(path, f"suffix {platform}", f"a binary for {elf.machine}", "Python_SOABI")


def _several_suffixes(package: Package) -> bool:
    found = (m for path in package.elves if (m := MODULE_SUFFIX.search(path)) and m["minor"])
    return len({(m["minor"], m["free"]) for m in found}) > 1


def needlessly_tied(package: Package, context: Context) -> Iterator[Observation]:
    """P04. Libraries without any Python symbol load in every Python."""
    pythons, words = claimed_pythons(package)
    verified = not any(elf.unread for elf in package.elves.values())
    used = any(python_symbols(elf) for elf in package.elves.values())
    if len(pythons) == 1 and package.elves and not used and verified:
        seen = f"no Python symbol in {listed(sorted(package.elves), 3)}"
        yield Observation(package.claims.metadata_root, words, seen, "the wheel's tag or `python`")


def needs_libpython(package: Package, context: Context) -> Iterator[Observation]:
    """P05."""
    for path, elf in package.elves.items():
        module = any(name.startswith("PyInit_") for name in elf.exports)
        for soname in elf.needed:
            if module and LIBPYTHON.fullmatch(soname):
                yield Observation(path, "an extension module", f"needs {soname}", "target_link_libraries")


RULES = {
    "P01": outside_the_limited_api,
    "P02": younger_limited_api,
    "P03": contradicting_suffix,
    "P04": needlessly_tied,
    "P05": needs_libpython,
}
