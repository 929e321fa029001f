"""Every check in words: its code, how it counts, what is wrong when it speaks, and the cure.

Codes keep their meaning for ever: a retired one is not used again.
"""

from __future__ import annotations

from typing import NamedTuple

from extforge.audit.model import Level

ERROR, WARNING = Level.ERROR, Level.WARNING

FAMILIES = {
    "M": "metadata",
    "L": "linkage",
    "R": "run paths",
    "F": "floors",
    "C": "CUDA",
    "T": "torch ABI",
    "P": "Python ABI",
    "H": "hygiene",
}


class Wording(NamedTuple):
    """One code in words."""

    code: str
    level: Level
    sentence: str
    cure: str

    @property
    def family(self) -> str:
        """The family that the code's letter stands for."""
        return FAMILIES[self.code[0]]


WORDINGS: tuple[Wording, ...] = (
    Wording(
        "M01",
        ERROR,
        "The package states its name, version, build or tags differently in different places.",
        "Rebuild it instead of renaming the file or editing its metadata.",
    ),
    Wording(
        "M02",
        ERROR,
        "The build string contradicts the build number or the hash of the variant.",
        "End `build.string` with `_${{ build_number }}` and take its hash from `${{ hash }}`.",
    ),
    Wording(
        "M03",
        ERROR,
        "The list of files names a file that the package does not hold.",
        "Rebuild the package; if files are removed after packing, remove them in the build script instead.",
    ),
    Wording(
        "M04",
        ERROR,
        "The package holds a file that its list of files does not name.",
        "Rebuild the package; do not add files to a finished one.",
    ),
    Wording(
        "M05",
        ERROR,
        "A file's size or SHA-256 differs from the one recorded.",
        "Rebuild the package; if a tool (strip, a signer) must touch binaries, run it before packing.",
    ),
    Wording(
        "M06",
        ERROR,
        "A recorded prefix placeholder is not in the file, or a build prefix in the file is not recorded.",
        "Remove `prefix_detection.ignore` for that file, or do not write the prefix into it.",
    ),
    Wording(
        "M07",
        WARNING,
        "The package carries no licence text, or names no licence.",
        "List the licence in `about.license_file` and `about.license` (wheels: `license-files`, `license`).",
    ),
    Wording(
        "M08",
        WARNING,
        "A file lies outside the directories that packages share in an environment.",
        "Install it below lib, bin, include, share, etc, or into site-packages.",
    ),
    Wording(
        "M09",
        ERROR,
        "Two of the packages audited together install the same path.",
        "Give each file to one output, by `build.files` or by the install component.",
    ),
    Wording(
        "M10",
        ERROR,
        "A binary's machine contradicts the package's platform.",
        "Build with the compilers of `target_platform`; keep binaries out of `noarch` packages.",
    ),
    Wording(
        "M11",
        WARNING,
        "A Python distribution inside the conda package has another version than the package.",
        "Take both versions from one place, such as `context.version` read from pyproject.toml.",
    ),
    Wording(
        "L01",
        ERROR,
        "A needed library comes neither from the package, nor from a run requirement, nor from the system.",
        "Require the package that provides it, or do not link it.",
    ),
    Wording(
        "L02",
        WARNING,
        "A needed library comes from a package that is no run requirement itself, only a requirement's.",
        "Add the providing package to `requirements.run`.",
    ),
    Wording(
        "L03",
        WARNING,
        "A run requirement provides only libraries, and nothing in the package needs any of them.",
        "Drop it from `requirements.run`, or list it in `ignore_run_exports.by_name`.",
    ),
    Wording(
        "L04",
        ERROR,
        "A library needs the NVIDIA driver to be loaded, so the package cannot be imported without a GPU.",
        "Link `CUDA::cudart`, not `CUDA::cuda_driver`; get driver functions by cudaGetDriverEntryPoint.",
    ),
    Wording(
        "L05",
        ERROR,
        "The package bundles a library that one of its requirements provides.",
        "Exclude it from the wheel (`auditwheel repair --exclude`), or from the installed files.",
    ),
    Wording(
        "L06",
        ERROR,
        "The libraries of the package load two different CUDA runtimes.",
        "Link all libraries to one libcudart (`CUDA_RUNTIME_LIBRARY Shared`), and exclude it from repair.",
    ),
    Wording(
        "R01",
        ERROR,
        "A run path is absolute: it leads to a directory of the build machine.",
        "Set CMake's `INSTALL_RPATH` to `$ORIGIN/...`; unset `LD_RUN_PATH` and `-Wl,-rpath` of the build.",
    ),
    Wording(
        "R02",
        ERROR,
        "A run path leads out of the environment.",
        "Count the `..` of `$ORIGIN/...` again: the root of the environment is the last directory to reach.",
    ),
    Wording(
        "R03",
        ERROR,
        "A run path leads into a directory of stubs, whose libraries fail every call.",
        "Use the stub directory for linking only: `link_directories`, not `INSTALL_RPATH`.",
    ),
    Wording(
        "R04",
        ERROR,
        "A run path is empty or relative: the loader takes it from the current directory.",
        "Write `$ORIGIN` where the library's own directory is meant; drop empty parts (`::`).",
    ),
    Wording(
        "R05",
        WARNING,
        "A run path leads to a directory of this package that does not exist.",
        "Drop it from `INSTALL_RPATH`.",
    ),
    Wording(
        "F01",
        ERROR,
        "A library needs a newer glibc than the package claims.",
        "Raise `c_stdlib_version` (conda) or the manylinux tag, or compile against the older sysroot.",
    ),
    Wording(
        "F02",
        ERROR,
        "A library needs a newer libstdc++ than the package claims.",
        "Raise the lower bound of `libstdcxx` in `requirements.run`, or compile with the older compiler.",
    ),
    Wording(
        "C01",
        ERROR,
        "A library needs another CUDA major version than the package's requirements allow.",
        "Build with the CUDA of `cuda_compiler_version`; require `cuda-version` of the same major.",
    ),
    Wording(
        "C02",
        WARNING,
        "A library is tied to one CUDA major version, and no requirement says so.",
        "Require `cuda-version` (wheels: `nvidia-cuda-runtime`) of that major, or link cudart statically.",
    ),
    Wording(
        "C03",
        ERROR,
        "The package uses CUDA, and accepts a torch without CUDA or a machine without a driver.",
        "Add `pytorch * [build=cuda*]` and `__cuda` to `requirements.run`.",
    ),
    Wording(
        "C04",
        ERROR,
        "A declared GPU architecture has no code in a library.",
        "Pass the declared list to the compiler (`CMAKE_CUDA_ARCHITECTURES`), or shorten the declared list.",
    ),
    Wording(
        "C05",
        WARNING,
        "A library has no PTX for its newest architecture, so no later GPU can run it.",
        "Add `+PTX` to the last architecture of the list.",
    ),
    Wording(
        "C06",
        ERROR,
        "The package is labelled as a CUDA build and holds no GPU code.",
        "Check that the `.cu` files are compiled: `if(CMAKE_CUDA_COMPILER)` may have skipped them.",
    ),
    Wording(
        "C07",
        ERROR,
        "The package is labelled as a CPU build and holds GPU code or needs CUDA libraries.",
        "Give the CPU variant its own build directory, and no CUDA compiler.",
    ),
    Wording(
        "C08",
        WARNING,
        "NVIDIA's cuobjdump sees other GPU code than the headers of the fat binaries state.",
        "Compare `cuobjdump --list-elf --list-ptx` with this report, and rebuild the library.",
    ),
    Wording(
        "T01",
        ERROR,
        "A library uses functions of torch that the oldest torch allowed by the requirement lacks.",
        "Raise the lower bound on torch, or compile with `TORCH_TARGET_VERSION` of that oldest torch.",
    ),
    Wording(
        "T02",
        ERROR,
        "A library uses torch's C++ ABI, which changes with each minor release; more than one is allowed.",
        "Require one minor release (`pytorch 2.N.*`), or port the library to torch's stable ABI.",
    ),
    Wording(
        "T03",
        WARNING,
        "A library needs a library of torch of which it uses nothing.",
        "Link `libtorch_cpu` alone; drop `libtorch_python`, `libc10` and `libc10_cuda` from the link line.",
    ),
    Wording(
        "T04",
        ERROR,
        "A library calls an operator by name that the oldest torch allowed by the requirement lacks.",
        "Raise the lower bound on torch, or call an operator that the oldest torch has.",
    ),
    Wording(
        "T05",
        ERROR,
        "A library uses torch, and the package does not require it.",
        "Add `pytorch` (conda: also for `libtorch`) to the run requirements.",
    ),
    Wording(
        "T06",
        ERROR,
        "A library needs a CUDA library of torch, and the requirements accept a torch without CUDA.",
        "Put CUDA code into a library that is loaded only when torch has CUDA, or require a CUDA torch.",
    ),
    Wording(
        "P01",
        ERROR,
        "A library uses Python functions outside the limited API, and the package claims any Python.",
        "Define `Py_LIMITED_API`, or give the package the tag of one Python (conda: let `python` pin it).",
    ),
    Wording(
        "P02",
        ERROR,
        "A library uses limited-API functions that are younger than the oldest Python the package claims.",
        "Set `Py_LIMITED_API` to the oldest Python claimed, or raise that Python.",
    ),
    Wording(
        "P03",
        ERROR,
        "A file's suffix names another Python or platform than the package.",
        "Build with the Python of the host environment; pass its `SOABI` when cross compiling.",
    ),
    Wording(
        "P04",
        WARNING,
        "The package is tied to one Python, and no library in it uses Python.",
        "Tag it `py3-none` (conda: `build.python.version_independent: true`).",
    ),
    Wording(
        "P05",
        WARNING,
        "An extension module needs libpython, which an interpreter with its own copy does not load.",
        "Link `Python::Module` instead of `Python::Python`.",
    ),
    Wording(
        "H01",
        WARNING,
        "A binary names directories of the build machine, and no installer replaces them.",
        "Compile with `-ffile-prefix-map=$SRC_DIR=.` and the same for the build prefixes.",
    ),
    Wording(
        "H02",
        ERROR,
        "A library asks for an executable stack; current systems refuse to load it.",
        "Link with `-Wl,-z,noexecstack`, and give assembler files a `.note.GNU-stack` section.",
    ),
    Wording(
        "H03",
        WARNING,
        "A library has text relocations: its code is patched, and not shared, at every load.",
        "Compile all objects with `-fPIC`.",
    ),
    Wording(
        "H04",
        WARNING,
        "A library has no read-only relocations (RELRO).",
        "Link with `-Wl,-z,relro`.",
    ),
    Wording(
        "H05",
        ERROR,
        "A file is writable by everybody, or runs with another user's rights.",
        "Install with modes 644 and 755.",
    ),
    Wording(
        "H06",
        ERROR,
        "A symlink leaves the package, or leads to nothing in it.",
        "Make it relative and point it at a file of the package or of a requirement.",
    ),
    Wording(
        "H07",
        WARNING,
        "A Python module exports more than its initialisation function; other libraries may bind to it.",
        "Compile with `-fvisibility=hidden`, and link static libraries with `-Wl,--exclude-libs,ALL`.",
    ),
    Wording(
        "H08",
        WARNING,
        "A file that looks like a library cannot be read as one.",
        "Open it with `readelf -dW`; rebuild it.",
    ),
)
