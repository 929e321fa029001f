"""Plan the compiler packages: conda-forge's names and activation in front of the system's own compilers.

``compiler("cxx")`` renders to ``gxx_linux-64 15.*``, so the packages carry the versions that the variant
table asks for; their summaries and build strings say which compiler answers. The programs are small scripts
that call the system's, the sysroot holds links to the system's C library, and ``libstdcxx`` and ``libgcc``
are copies of its runtime.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from extforge.channel.archive import Entry, PlannedPackage
from extforge.channel.interpreter import from_file
from extforge.channel.repack import FORMAT, PLATFORM
from extforge.errors import NotFoundError
from extforge.files import hash_file

TRIPLET = "x86_64-conda-linux-gnu"
SYSROOT = f"{TRIPLET}/sysroot"

#: The versions that the variant tables of conda-forge name (gcc, binutils) and each sysroot's glibc.
GCC_VERSION = "15.2.0"
BINUTILS_VERSION = "2.45"
SYSROOT_VERSIONS = ("2.17", "2.28")

GCC_EXPORTS = {"strong": ["libgcc >=15"]}
GXX_EXPORTS = {"strong": ["libstdcxx >=15", "libgcc >=15"]}

#: conda's name of a program to the system's.
GCC_PROGRAMS = {"gcc": "gcc", "cc": "gcc", "cpp": "cpp", "gcc-ar": "gcc-ar", "gcc-nm": "gcc-nm",
                "gcc-ranlib": "gcc-ranlib"}
GXX_PROGRAMS = {"g++": "g++", "c++": "g++"}
BINUTILS = ("addr2line", "ar", "as", "ld", "nm", "objcopy", "objdump", "ranlib", "readelf", "size", "strings",
            "strip")  # fmt: skip
BINUTILS_PROGRAMS = {name: name for name in BINUTILS}
#: What every Linux program may link; ``compiler("c")`` finds them in its sysroot.
SYSTEM_LIBRARIES = (
    "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2",
)  # fmt: skip


class CompilerRow(NamedTuple):
    """One compiler package: its programs, its activation script in ``activation/``, its exports and needs."""

    name: str
    version: str
    programs: dict[str, str]
    script: str | None
    depends: tuple[str, ...]
    run_exports: dict[str, list[str]]


ROWS: tuple[CompilerRow, ...] = (
    CompilerRow("binutils_linux-64", BINUTILS_VERSION, BINUTILS_PROGRAMS, "binutils", (), {}),
    CompilerRow("gcc_linux-64", GCC_VERSION, GCC_PROGRAMS, "gcc", ("binutils_linux-64", "sysroot_linux-64"),
                GCC_EXPORTS),
    CompilerRow("gxx_linux-64", GCC_VERSION, GXX_PROGRAMS, "gxx", (f"gcc_linux-64 {GCC_VERSION}",),
                GXX_EXPORTS),
    CompilerRow("c-compiler", "1.11.0", {}, None, ("gcc_linux-64 15.*",), {}),
    CompilerRow("cxx-compiler", "1.11.0", {}, None, ("c-compiler 1.11.0", "gxx_linux-64 15.*"), {}),
)


def plan_compilers() -> Iterator[PlannedPackage]:
    """Yield the compiler, sysroot and runtime packages.

    Raises :class:`~extforge.errors.NotFoundError` where the machine has no g++.
    """
    system_compiler("g++")
    yield from map(plan_compiler, ROWS)
    yield from map(plan_sysroot, SYSROOT_VERSIONS)
    yield plan_runtime("libgcc", "libgcc_s.so.1", ())
    yield plan_runtime("libstdcxx", "libstdc++.so.6", (f"libgcc {GCC_VERSION}",))


def plan_compiler(row: CompilerRow) -> PlannedPackage:
    return PlannedPackage(
        name=row.name,
        version=row.version,
        build=build_string(row),
        subdir=PLATFORM,
        summary=f"conda-forge's name in front of this machine's {compiler_version()}",
        license="BSD-3-Clause",
        entries=partial(compiler_entries, row),
        depends=row.depends,
        run_exports=row.run_exports,
    )


def plan_sysroot(version: str) -> PlannedPackage:
    return PlannedPackage(
        name="sysroot_linux-64",
        version=version,
        build=build_string("sysroot", version),
        subdir="noarch",
        summary=f"Links to this machine's own C library, glibc {glibc_version()}, in the place of a sysroot",
        license="LGPL-2.0-or-later",
        entries=sysroot_entries,
        # conda-forge's sysroot exports its own version; what is linked against this one needs this machine's.
        run_exports={"strong": [f"__glibc >={glibc_version()},<3.0.a0"]},
        noarch="generic",
    )


def plan_runtime(name: str, library: str, depends: tuple[str, ...]) -> PlannedPackage:
    source = system_library(library)
    return PlannedPackage(
        name=name,
        version=GCC_VERSION,
        build=build_string(name, str(source), source.stat().st_size),
        subdir=PLATFORM,
        summary=f"A copy of this machine's {library}",
        license="GPL-3.0-only WITH GCC-exception-3.1",
        entries=lambda: iter((from_file(source, f"lib/{library}"),)),
        depends=(f"__glibc >={glibc_version()},<3.0.a0", *depends),
    )


def build_string(*inputs: object) -> str:
    seen = repr((FORMAT, compiler_version(), glibc_version(), activation_sources(), *inputs))
    return f"bootstrap_h{hashlib.sha256(seen.encode()).hexdigest()[:7]}_0"


def compiler_entries(row: CompilerRow) -> Iterator[Entry]:
    """Yield the programs of one package and its activation scripts."""
    for name, system_name in row.programs.items():
        call = f'#!/bin/sh\nexec {shlex.quote(system_compiler(system_name))} "$@"\n'
        yield Entry(f"bin/{TRIPLET}-{name}", text=call, executable=True)
    if row.script is not None:
        for verb in ("activate", "deactivate"):
            text = activation_sources()[f"{verb}-{row.script}.sh"]
            yield Entry(f"etc/conda/{verb}.d/{verb}-{row.script}_linux-64.sh", text=text)


def sysroot_entries() -> Iterator[Entry]:
    for library in SYSTEM_LIBRARIES:
        source = system_library(library)
        yield Entry(f"{SYSROOT}/lib64/{library}", link=str(source), sha256=hash_file(source),
                    size=source.stat().st_size)  # fmt: skip


@cache
def activation_sources() -> dict[str, str]:
    directory = files("extforge.channel") / "activation"
    return {item.name: item.read_text() for item in sorted(directory.iterdir(), key=lambda i: i.name)}


@cache
def glibc_version() -> str:
    return os.confstr("CS_GNU_LIBC_VERSION").split()[1]  # type: ignore[union-attr]


@cache
def system_compiler(name: str) -> str:
    """Return the absolute path of a program of the system's compiler."""
    path = shutil.which(name)
    if path is None:
        raise NotFoundError(
            f"no {name} on PATH: the bootstrap channel puts conda's names before the system's compilers. "
            "Install them (Debian: apt-get install g++; Fedora: dnf install gcc-c++)."
        )
    return path


@cache
def compiler_version() -> str:
    return subprocess.run(
        [system_compiler("g++"), "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]


@cache
def system_library(name: str) -> Path:
    """Ask the compiler where a library of the system lies; where it knows none, it answers with the name."""
    asked = [system_compiler("gcc"), f"-print-file-name={name}"]
    answer = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    if not answer.is_absolute() or not answer.exists():
        raise NotFoundError(f"the system's gcc knows no {name}: {' '.join(asked)} answers {answer}")
    return answer.resolve()
