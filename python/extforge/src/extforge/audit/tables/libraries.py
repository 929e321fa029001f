"""Which libraries every system has, and which packages provide the libraries that torch extensions need."""

from __future__ import annotations

import re
from typing import NamedTuple

from extforge.audit.model import Format

# glibc's own libraries and the loader: part of every Linux system on which conda or a manylinux wheel runs.
SYSTEM = re.compile(
    r"(ld-linux[\w-]*|ld64|ld-musl-[\w]+|lib(c|m|mvec|dl|rt|pthread|util|resolv|anl|nsl|crypt|thread_db|BrokenLocale"
    r"|c\.musl-\w+))\.so(\.\d+)*"
)

# What a manylinux wheel may also expect (PEP 600 and auditwheel's policy): not part of glibc, but everywhere.
WHEEL_SYSTEM = frozenset(
    [
        "libgcc_s.so.1",
        "libstdc++.so.6",
        "libatomic.so.1",
        "libX11.so.6",
        "libXext.so.6",
        "libXrender.so.1",
        "libICE.so.6",
        "libSM.so.6",
        "libGL.so.1",
        "libgobject-2.0.so.0",
        "libgthread-2.0.so.0",
        "libglib-2.0.so.0",
        "libexpat.so.1",
        "libz.so.1",
    ]
)


class Known(NamedTuple):
    """Libraries by SONAME pattern, the packages that bring them, and what they are called in messages.

    ``bundling`` says that a copy of it beside the provided one does harm: two runtimes with separate state.
    ``marker`` is a symbol by which a renamed copy is recognised.
    """

    noun: str
    soname: re.Pattern[str]
    conda: tuple[str, ...]
    wheel: tuple[str, ...]
    bundling: bool = True
    marker: str = ""


def _cuda(
    noun: str, soname: str, conda: str, wheel: str, marker: str = "", through_torch: bool = True
) -> Known:
    """A CUDA component: in wheels named plainly or with ``-cuNN``, and mostly required by torch's wheel."""
    names = tuple(f"nvidia-{wheel}{suffix}" for suffix in ("", "-cu11", "-cu12", "-cu13"))
    carriers = ("torch", "cuda-toolkit") if through_torch else ("cuda-toolkit",)
    return Known(noun, re.compile(soname), (conda, f"{conda}_linux-64"), (*names, *carriers), marker=marker)


KNOWN: tuple[Known, ...] = (
    Known(
        "torch",
        re.compile(
            r"lib(torch(_cpu|_cuda|_cuda_linalg|_global_deps|_xpu|_hip)?|c10(_cuda|_xpu|_hip)?|shm)\.so"
        ),
        ("libtorch", "pytorch"),
        ("torch",),
        marker="aoti_torch_abi_version",
    ),
    Known("torch's Python part", re.compile(r"libtorch_python\.so"), ("pytorch",), ("torch",)),
    _cuda("the CUDA runtime", r"libcudart\.so\.\d+", "cuda-cudart", "cuda-runtime", "cudaRuntimeGetVersion"),
    _cuda("NVRTC", r"libnvrtc(-builtins)?\.so\.[\d.]+", "cuda-nvrtc", "cuda-nvrtc", "nvrtcCreateProgram"),
    _cuda("cuBLAS", r"lib(cublas(Lt)?|nvblas)\.so\.\d+", "libcublas", "cublas", "cublasLtCreate"),
    _cuda("cuSPARSE", r"libcusparse\.so\.\d+", "libcusparse", "cusparse", "cusparseCreate"),
    _cuda("cuSOLVER", r"libcusolver(Mg)?\.so\.\d+", "libcusolver", "cusolver", "cusolverDnCreate"),
    _cuda("cuFFT", r"libcufft(w)?\.so\.\d+", "libcufft", "cufft", "cufftCreate"),
    _cuda("cuRAND", r"libcurand\.so\.\d+", "libcurand", "curand", "curandCreateGenerator"),
    _cuda("nvJitLink", r"libnvJitLink\.so\.\d+", "libnvjitlink", "nvjitlink"),
    _cuda("cuDNN", r"libcudnn(_\w+)?\.so\.\d+", "cudnn", "cudnn", "cudnnCreate"),
    _cuda("NCCL", r"libnccl\.so\.\d+", "nccl", "nccl", "ncclCommInitRank"),
    _cuda("cuFile", r"libcufile(_rdma)?\.so\.\d+", "libcufile", "cufile"),
    _cuda("nvJPEG", r"libnvjpeg\.so\.\d+", "libnvjpeg", "nvjpeg", through_torch=False),
    Known(
        "libstdc++",
        re.compile(r"libstdc\+\+\.so\.6"),
        ("libstdcxx", "libstdcxx-ng"),
        (),
        marker="__cxa_rethrow",
    ),
    Known(
        "libgcc", re.compile(r"libgcc_s\.so\.1"), ("libgcc", "libgcc-ng"), (), marker="_Unwind_RaiseException"
    ),
    Known(
        "an OpenMP runtime",
        re.compile(r"lib(gomp|omp|iomp5)\.so(\.\d+)?"),
        ("libgomp", "_openmp_mutex", "llvm-openmp", "intel-openmp"),
        ("torch", "intel-openmp"),
        marker="omp_get_num_threads",
    ),
    Known(
        "libpython",
        re.compile(r"libpython3(\.\d+t?)?\.so(\.1\.0)?"),
        ("python", "libpython"),
        (),
        bundling=False,
    ),
)

# CUDA libraries whose number is CUDA's own major version.
CUDA_MAJOR = re.compile(r"lib(?:cudart|nvrtc|cublas|cublasLt|nvJitLink)\.so\.(\d+)")
DRIVER = re.compile(r"lib(cuda|nvidia-ml|nvcuvid|nvidia-encode)\.so\.1")
CUDA_RUNTIME = re.compile(r"libcudart\.so\.[\d.]+")
# auditwheel renames a grafted library: libNAME-HASH.so.N, or, in later releases, libNAME.HASH.so.N.
GRAFT = re.compile(r"(?P<stem>lib[\w+.-]*?)[-.][0-9a-f]{8}(?P<rest>(\.so)[\d.]*)$")


def plain_name(soname: str) -> str:
    """``libcudart.3eda8113.so.13`` as ``libcudart.so.13``: the name before auditwheel's renaming."""
    match = GRAFT.fullmatch(soname)
    return match["stem"] + match["rest"] if match else soname


def known_library(soname: str) -> Known | None:
    """The row of the table whose pattern fits."""
    return next((k for k in KNOWN if k.soname.fullmatch(plain_name(soname))), None)


def usual_providers(known: Known, package_format: Format) -> tuple[str, ...]:
    """Names of packages that bring the library."""
    return known.conda if package_format is Format.CONDA else known.wheel


def is_system(soname: str, package_format: Format) -> bool:
    """Whether every system that may install the package has this library."""
    if SYSTEM.fullmatch(soname):
        return True
    return package_format is Format.WHEEL and soname in WHEEL_SYSTEM
