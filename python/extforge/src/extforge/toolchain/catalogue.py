"""What the resolver looks for and where: tables only.

A new part is one row of :data:`CUDA_PARTS`, a new kind of toolkit one row of :data:`LAYOUTS`, a new
place of the driver one row of :data:`DRIVER_PLACES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Part(NamedTuple):
    """``role`` names the places of a root to look in; ``names`` are glob patterns, best first."""

    name: str
    role: str
    names: tuple[str, ...]
    kind: str  # program, library, file; directory: the place itself that holds a file of that name


CUDA_PARTS = (
    Part("nvcc", "bin", ("nvcc",), "program"),
    Part("ptxas", "bin", ("ptxas",), "program"),
    Part("cuobjdump", "bin", ("cuobjdump",), "program"),
    Part("nvdisasm", "bin", ("nvdisasm",), "program"),
    Part("cuda_include", "include", ("cuda_runtime.h",), "directory"),
    Part("cudart", "lib", ("libcudart.so", "libcudart.so.[0-9]*"), "library"),
    Part("libdevice", "nvvm", ("libdevice/libdevice.10.bc",), "file"),
    Part("libcuda", "stubs", ("libcuda.so", "libcuda.so.1"), "library"),
)
# A directory counts as a toolkit when it holds one of these.
EVIDENCE = ("nvcc", "ptxas", "cuda_include", "cudart")

HOST_PARTS = ("cc", "cxx", "python_include", "libpython", "torch", "ninja", "cmake", "libcuda_runtime")
PART_NAMES = (*HOST_PARTS[:2], *(part.name for part in CUDA_PARTS), *HOST_PARTS[2:])
TOOL_NAMES = ("cc", "cxx", "nvcc", "ptxas", "cuobjdump", "nvdisasm", "ninja", "cmake")

Layout = Mapping[str, tuple[str, ...]]

# Kind of root -> role -> directories below it. {target}, {multiarch}, {leaf} (the root's own last
# name) are filled in; what does not exist is skipped. The star stands for the components of split
# wheels; a name that ends in a digit (cu13) is a toolkit of its own.
LAYOUTS: Mapping[str, Layout] = {
    "conda": {
        "bin": ("bin",),
        "include": ("targets/{target}/include",),
        "lib": ("targets/{target}/lib",),
        "stubs": ("targets/{target}/lib/stubs", "lib/stubs"),
        "nvvm": ("nvvm",),
    },
    "wheel": {
        "bin": ("bin",),
        "include": ("include",),
        "lib": ("lib",),
        "stubs": ("lib/stubs",),
        "nvvm": ("nvvm",),
    },
    "wheels": {
        "bin": ("cuda_nvcc/bin", "cuda_cuobjdump/bin", "cuda_nvdisasm/bin"),
        "include": ("cuda_runtime/include", "cuda_nvcc/include", "cuda_cccl/include", "*[!0-9]/include"),
        "lib": ("cuda_runtime/lib", "*[!0-9]/lib"),
        "stubs": ("cuda_runtime/lib/stubs",),
        "nvvm": ("cuda_nvcc/nvvm",),
    },
    "ctk": {
        "bin": ("bin",),
        "include": ("targets/{target}/include", "include"),
        "lib": ("targets/{target}/lib", "lib64", "lib"),
        "stubs": ("targets/{target}/lib/stubs", "lib64/stubs", "lib/stubs"),
        "nvvm": ("nvvm",),
    },
    "nvhpc": {
        "bin": ("bin",),
        "include": ("include", "../math_libs/include", "../../math_libs/{leaf}/include"),
        "lib": ("lib64", "../math_libs/lib64", "../../math_libs/{leaf}/lib64"),
        "stubs": ("lib64/stubs",),
        "nvvm": ("nvvm",),
    },
    "split": {
        "bin": ("lib/nvidia-cuda-toolkit/bin", "bin"),
        "include": ("include",),
        "lib": ("lib/{multiarch}",),
        "stubs": ("lib/{multiarch}/stubs",),
        "nvvm": ("lib/nvidia-cuda-toolkit", "lib/nvidia-cuda-toolkit/nvvm"),
    },
    "triton": {"bin": ("bin",), "nvvm": ("lib",)},
}

# The components of split wheels whose version is the toolkit's; the others count for themselves.
WHEEL_COMPONENTS = ("cuda_nvcc", "cuda_runtime", "cuda_cccl", "cuda_nvrtc", "cuda_cupti", "nvjitlink")

# Machine -> target directories that may serve it. Two names for one machine differ in the platform
# (server or Tegra), which only the content or a record can tell.
TARGETS: Mapping[str, tuple[str, ...]] = {
    "x86_64": ("x86_64-linux",),
    "aarch64": ("sbsa-linux", "aarch64-linux"),
    "ppc64le": ("ppc64le-linux",),
}
CONDA_PLATFORMS = {"linux-64": "x86_64", "linux-aarch64": "aarch64", "linux-ppc64le": "ppc64le"}
MULTIARCH = "{machine}-linux-gnu"

SYSTEM_ROOT = "/usr/local/cuda"
SYSTEM_ROOTS = "/usr/local/cuda-*.*"

COMPILERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "cc": ("CC", ("cc", "gcc", "clang")),
    "cxx": ("CXX", ("c++", "g++", "clang++")),
}
COMPILER_LAUNCHERS = ("ccache", "sccache", "distcc", "buildcache", "icecc")

# Where a driver lies that the loader may not know; the first two need the Debian name of the machine.
DRIVER_PLACES = (
    "/usr/lib/{multiarch}",
    "/lib/{multiarch}",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/run/opengl-driver/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/{multiarch}/nvidia",
    "/usr/lib/{multiarch}/tegra",
)
WSL_DRIVER = "/usr/lib/wsl/lib"

# How a program is asked for its version, and what the version looks like in the answer.
CUDA_VERSION = r"\bV(\d+\.\d+\.\d+)"
VERSION_PATTERNS: Mapping[str, str] = {
    "nvcc": CUDA_VERSION,
    "ptxas": CUDA_VERSION,
    "cuobjdump": CUDA_VERSION,
    "nvdisasm": CUDA_VERSION,
    "cc": r"clang version (\d+\.\d+\.\d+)|\A[^\n]* (\d+\.\d+\.\d+)",
    "cxx": r"clang version (\d+\.\d+\.\d+)|\A[^\n]* (\d+\.\d+\.\d+)",
    "ninja": r"(\d+(?:\.\d+)+)",
    "cmake": r"cmake version (\d+(?:\.\d+)+)",
}

# Part -> what provides it: conda package, wheel (of CUDA 13), Debian package. {cuda} is the root's
# or torch's major.minor, {python} the interpreter's.
PROVIDERS: Mapping[str, tuple[str, str, str]] = {
    "cc": ("c-compiler", "", "gcc"),
    "cxx": ("cxx-compiler", "", "g++"),
    "nvcc": ("cuda-nvcc={cuda}", "nvidia-cuda-nvcc=={cuda}.*", "nvidia-cuda-toolkit"),
    "ptxas": ("cuda-nvcc-tools={cuda}", "nvidia-cuda-nvcc=={cuda}.*", "nvidia-cuda-toolkit"),
    "cuobjdump": ("cuda-cuobjdump={cuda}", "nvidia-cuda-cuobjdump=={cuda}.*", "nvidia-cuda-toolkit"),
    "nvdisasm": ("cuda-nvdisasm={cuda}", "nvidia-cuda-nvdisasm=={cuda}.*", "nvidia-cuda-toolkit"),
    "cuda_include": ("cuda-cudart-dev={cuda}", "nvidia-cuda-runtime=={cuda}.*", "nvidia-cuda-dev"),
    "cudart": ("cuda-cudart-dev={cuda}", "nvidia-cuda-runtime=={cuda}.*", "nvidia-cuda-dev"),
    "libdevice": ("cuda-nvvm-tools={cuda}", "nvidia-nvvm=={cuda}.*", "nvidia-cuda-toolkit"),
    "libcuda": ("cuda-driver-dev={cuda}", "", "nvidia-cuda-dev"),
    "python_include": ("python={python}", "", "python{python}-dev"),
    "libpython": ("python={python}", "", "libpython{python}-dev"),
    "torch": ("pytorch", "torch", ""),
    "ninja": ("ninja", "ninja", "ninja-build"),
    "cmake": ("cmake", "cmake", "cmake"),
}

# What a view holds of a directory that it shares with the rest of a system.
CUDA_PROGRAMS = (
    "__nvcc_device_query", "bin2c", "compute-sanitizer", "crt", "cu++filt", "cudafe++", "cuobjdump",
    "fatbinary", "nvdisasm", "nvlink", "nvprune", "ptxas",
)  # fmt: skip
CUDA_LIBRARIES = (
    "cmake", "libOpenCL*", "libcublas*", "libcudadevrt*", "libcudart*", "libcufft*", "libcufile*",
    "libculibos*", "libcupti*", "libcurand*", "libcusolver*", "libcusparse*", "libnpp*", "libnvJitLink*",
    "libnvToolsExt*", "libnvblas*", "libnvfatbin*", "libnvjpeg*", "libnvptxcompiler*", "libnvrtc*",
    "libnvtx3*", "libnvvm.*",
)  # fmt: skip
CUDA_HEADERS = (
    "CL", "builtin_types.h", "channel_descriptor.h", "common_functions.h", "cooperative_groups*", "crt",
    "cu[A-Z]*.h", "cub", "cublas*", "cuda*", "cufft*", "cufile.h", "cupti*", "curand*", "cusolver*",
    "cusparse*", "device_*", "driver_*", "fatbinary*", "generated_*", "host_*", "library_types.h", "math_*",
    "mma.h", "npp*", "nv", "nvJitLink.h", "nvToolsExt*", "nvblas.h", "nvfunctional", "nvjpeg.h", "nvml.h",
    "nvrtc.h", "nvtx3", "sm_*", "surface_*", "texture_*", "thrust", "vector_*",
)  # fmt: skip
