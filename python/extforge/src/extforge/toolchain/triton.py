"""Triton's launcher compiled by this toolchain: a value for ``triton.knobs.build.impl``.

Triton asks ``ldconfig`` for the driver before it calls the implementation, and gives up where there is
none; naming the view's stubs spares it the question.

>>> toolchain = resolve()
>>> triton.knobs.nvidia.libcuda_path = str(require_view(toolchain).stubs)
>>> triton.knobs.build.impl = triton_build_impl(toolchain)
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from extforge.errors import FailedCommand
from extforge.toolchain.driver import SONAME
from extforge.toolchain.model import Toolchain
from extforge.toolchain.view import require_view

BuildImpl = Callable[[str, str, str, Sequence[str], Sequence[str], Sequence[str]], str]


def triton_build_impl(toolchain: Toolchain) -> BuildImpl:
    """Return a function of (name, source, directory, library and include directories, libraries).

    It compiles and links in ``directory`` and returns the module's path. The driver is linked from the
    view alone, whatever directories Triton found by ``ldconfig``. Raises :class:`NotFoundError` at once when
    the compiler, Python.h or a driver to link is missing.
    """
    compilers = {".c": toolchain["cc"].path, ".cpp": toolchain["cxx"].path}
    include = toolchain["python_include"].path
    toolchain["libcuda"]
    stubs = require_view(toolchain).stubs
    suffix = toolchain.interpreter.extension_suffix

    def build(
        name: str,
        source: str,
        directory: str,
        library_directories: Sequence[str],
        include_directories: Sequence[str],
        libraries: Sequence[str],
    ) -> str:
        module = Path(directory) / f"{name}{suffix}"
        compiler = compilers[Path(source).suffix]
        command = [str(compiler), source, "-O3", "-shared", "-fPIC", "-Wno-psabi", "-o", str(module)]
        command += [
            f"-l:{library}" if ".so" in library or library.endswith(".a") else f"-l{library}"
            for library in libraries
        ]
        command += [f"-L{stubs}"]
        command += [f"-L{place}" for place in library_directories if not (Path(place) / SONAME).exists()]
        command += [f"-I{place}" for place in (*include_directories, directory, str(include)) if place]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise FailedCommand(f"{' '.join(command)}\n{done.stderr.strip()}")
        return str(module)

    return build
