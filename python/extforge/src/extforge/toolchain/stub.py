"""A driver stub made from the chosen root's own ``cuda.h``: the names a linker needs, and no more.

NVIDIA's wheels ship no stub. Every function of the generated one returns 34, the error that NVIDIA's
own stub returns (``CUDA_ERROR_STUB_LIBRARY``), and the library carries the driver's soname, so that
what is linked against it asks the loader for the real driver.
"""

from __future__ import annotations

import re
from pathlib import Path

from extforge.errors import FailedCommand
from extforge.toolchain.driver import SONAME
from extforge.toolchain.system import System

ERROR_STUB_LIBRARY = 34
# cuda.h maps old names to versioned ones with macros, hence the preprocessed text is read.
DECLARATION = re.compile(r"\bCUresult\s+(?:\w+\s+)*?(cu[A-Z]\w*)\s*\(")


def function_names(system: System, compiler: Path, include: Path) -> list[str]:
    """Return the driver functions that ``include/cuda.h`` declares, in order."""
    header = include / "cuda.h"
    succeeded, text = system.ask(compiler, "-E", "-P", "-x", "c", header)
    names = list(dict.fromkeys(DECLARATION.findall(text)))
    if not succeeded or not names:
        raise FailedCommand(f"{compiler} -E {header} named no driver function: {text[-400:].strip()}")
    return names


def generate_stub(system: System, compiler: Path, include: Path, directory: Path) -> Path:
    """Write ``libcuda.so.1`` and the link ``libcuda.so`` into ``directory``; return the library."""
    library = directory / SONAME
    source = directory / "stub.c"
    bodies = [
        f"int {name}(void) {{ return {ERROR_STUB_LIBRARY}; }}"
        for name in function_names(system, compiler, include)
    ]
    source.write_text("\n".join(bodies) + "\n")
    succeeded, text = system.ask(
        compiler, "-shared", "-fPIC", "-Os", "-s", "-nostdlib", f"-Wl,-soname,{SONAME}", "-o", library, source
    )
    source.unlink()
    if not succeeded:
        raise FailedCommand(f"{compiler} could not build the driver stub: {text[-400:].strip()}")
    (directory / "libcuda.so").symlink_to(SONAME)
    return library
