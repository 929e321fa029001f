"""Compiler and linker arguments of the modules python, torch, cudart, cuda and libdevice.

The CUDA headers come with ``-I``: with ``-isystem`` any CPATH of a cluster module would beat them.
Directories of the system itself are never passed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from extforge.errors import BadInputError
from extforge.toolchain.model import Flags, Toolchain
from extforge.toolchain.view import plan_view

SYSTEM_DIRECTORIES = frozenset({"/usr/include"})
# A linker told --as-needed drops a library before anything asks for its symbols.
KEEP_CUDA = ("-Wl,--push-state,--no-as-needed", "-lcuda", "-Wl,--pop-state")


def flags_of(toolchain: Toolchain, modules: Sequence[str], embed: bool = False) -> Flags:
    """Return the sum over ``modules``; ``embed`` adds libpython for programs that hold an interpreter.

    Raises :class:`BadInputError` for an unknown module, :class:`NotFoundError` for a missing part.
    """
    unknown = [module for module in modules if module not in MODULES]
    if unknown:
        raise BadInputError(f"unknown module {', '.join(unknown)}; known: {', '.join(MODULES)}")
    total = Flags()
    for module in modules:
        total += MODULES[module](toolchain)
    return total + _embedding_flags(toolchain) if embed else total


def _include(*directories: Path) -> tuple[str, ...]:
    return tuple(f"-I{directory}" for directory in directories if str(directory) not in SYSTEM_DIRECTORIES)


def _python_flags(toolchain: Toolchain) -> Flags:
    """Extension modules do not link libpython: a static one would double the interpreter."""
    return Flags(cflags=_include(toolchain["python_include"].path))


def _embedding_flags(toolchain: Toolchain) -> Flags:
    library = toolchain["libpython"].path
    name = re.sub(r"^lib|\.(so|a)[.\d]*$", "", library.name)
    libraries = shlex.split(toolchain.interpreter.embed_libraries)
    return Flags(ldflags=(f"-L{library.parent}",), libs=(f"-l{name}", *libraries))


def _torch_flags(toolchain: Toolchain) -> Flags:
    """The language standard is the one that torch's own CMake files state."""
    package = toolchain["torch"].path
    includes = [d for d in _torch_include_directories(toolchain, package) if d.is_dir()]
    names = ["c10", "torch_cpu", "torch", "torch_python"]
    names += ["c10_cuda", "torch_cuda"] if toolchain.torch_cuda else []
    return Flags(
        cflags=_include(*includes),
        cxxflags=_torch_language(package, toolchain.prefix),
        ldflags=(f"-L{package / 'lib'}",),
        libs=tuple(f"-l{name}" for name in names),
    )


def _torch_include_directories(toolchain: Toolchain, package: Path) -> list[Path]:
    """conda-forge keeps the headers in the prefix and only links its libraries from the package."""
    bases = [package / "include"]
    if toolchain.conda:
        bases.insert(0, toolchain.prefix / "include")
    bases = [base for base in bases if (base / "torch" / "csrc").is_dir()]
    return [directory for base in bases for directory in (base, base / "torch/csrc/api/include")]


def _torch_language(package: Path, prefix: Path) -> tuple[str, ...]:
    config = next((d / "TorchConfig.cmake" for d in torch_cmake_directories(package, prefix)), None)
    text = config.read_text(errors="replace") if config else ""
    standard = re.search(r"\bCXX_STANDARD (\d+)", text)
    extra = re.search(r'set\(TORCH_CXX_FLAGS "([^"]*)"\)', text)
    flags = (f"-std=c++{standard[1]}",) if standard else ()
    return flags + tuple(extra[1].split() if extra else ())


def torch_cmake_directories(package: Path, prefix: Path) -> list[Path]:
    """Return the directories that hold TorchConfig.cmake, the package's own first."""
    places = (package / "share/cmake/Torch", prefix / "share/cmake/Torch")
    return [place for place in places if (place / "TorchConfig.cmake").is_file()]


def _cudart_flags(toolchain: Toolchain) -> Flags:
    return Flags(_cuda_include(toolchain), ldflags=_link_from(toolchain, "cudart"), libs=("-lcudart",))


def _cuda_flags(toolchain: Toolchain) -> Flags:
    """The driver API, linked against a stub."""
    return Flags(_cuda_include(toolchain), ldflags=_link_from(toolchain, "libcuda"), libs=KEEP_CUDA)


def _link_from(toolchain: Toolchain, name: str) -> tuple[str, ...]:
    """Return ``-L`` for the part's own directory, or for the view where ``-l`` would not find it there.

    Wheels lack the unversioned names, and a directory of the system holds far more than CUDA.
    """
    library, root, view = toolchain[name].path, toolchain.root, plan_view(toolchain)
    own = root is not None and root.kind != "split" and library.is_relative_to(root.path)
    if view is None or (own and library.suffix == ".so"):
        return (f"-L{library.parent}",)
    return (f"-L{view.stubs if name == 'libcuda' else view.libraries}",)


def uses_view(toolchain: Toolchain, flags: Flags) -> bool:
    """Tell whether some directory in the flags lies in the view, which then has to be built."""
    view = plan_view(toolchain)
    return view is not None and any(flag.startswith(f"-L{view.path}/") for flag in flags.ldflags)


def _libdevice_flags(toolchain: Toolchain) -> Flags:
    """Nothing to compile or link: the bitcode's path is the ``libdevice`` variable."""
    toolchain["libdevice"]
    return Flags()


def _cuda_include(toolchain: Toolchain) -> tuple[str, ...]:
    """CUDA 13 keeps CCCL one level deeper; nvcc knows, a host compiler has to be told."""
    own = toolchain["cuda_include"].path
    places = dict.fromkeys((own, *(toolchain.root.places["include"] if toolchain.root else ())))
    return _include(*places, *(place / "cccl" for place in places if (place / "cccl").is_dir()))


MODULES: dict[str, Callable[[Toolchain], Flags]] = {
    "python": _python_flags,
    "torch": _torch_flags,
    "cudart": _cudart_flags,
    "cuda": _cuda_flags,
    "libdevice": _libdevice_flags,
}
CUDA_MODULES = ("cudart", "cuda", "libdevice")
