"""The CUDA 13.0 packages of the bootstrap channel: NVIDIA's wheels in conda-forge's names, layout and run_exports,
and a torch that uses them.

What a compiler reads lies under ``targets/x86_64-linux`` and belongs to the package that ends in ``_linux-64``; the
package without the ending adds links in ``lib``. A wheel names each library by its soname alone, so the real file is
``libcudart.so.13``. What a library needs of other packages is read from its wheel (:mod:`~extforge.channel.nvidia`).
They are large and made only when asked for.
"""

from __future__ import annotations

from typing import NamedTuple

from extforge.channel.assembled import AssembledRow
from extforge.channel.catalogue import DROP_REST, Row, Rule, torch_rows

VERSION = "13.0"
TARGET = "targets/x86_64-linux"
WHEEL = "nvidia/cu13"

NVCC, CUDART, CCCL, NVTX = "13.0.88", "13.0.96", "13.0.85", "13.0.85"
THIS_CUDA = "cuda-version >=13.0,<13.1.0a0"
NEXT_MAJOR = "<14.0a0"

NVCC_PROJECT, NVVM_PROJECT = "nvidia-cuda-nvcc", "nvidia-nvvm"
RUNTIME_PROJECT = "nvidia-cuda-runtime"


def files(*rules: tuple[str, str]) -> tuple[Rule, ...]:
    """Return rules that move (pattern of the wheel, directory of the prefix) and leave out the rest."""
    return (*(Rule(f"{WHEEL}/{pattern}", to) for pattern, to in rules), DROP_REST)


def in_target(*names: str) -> tuple[tuple[str, str], ...]:
    """Return a link in ``lib`` for each library of the target."""
    return tuple((f"lib/{name}", f"{TARGET}/lib/{name}") for name in names)


def unversioned(name: str, soname: str) -> tuple[tuple[str, str], ...]:
    """Return the names by which a linker asks for a library, in the target and in ``lib``."""
    return ((f"{TARGET}/lib/{name}", f"{TARGET}/lib/{soname}"), (f"lib/{name}", f"{TARGET}/lib/{soname}"))


class Library(NamedTuple):
    """Libraries of one wheel. Those of the target are linked from ``lib`` by their ``sonames``.

    ``home`` is their directory in the wheel, ``place`` the one in the prefix; ``developed`` asks for
    conda-forge's ``-dev`` package besides the one of the runtime.
    """

    name: str
    version: str
    project: str
    sonames: tuple[str, ...] = ()
    developed: bool = True
    home: str = WHEEL
    place: str = f"{TARGET}/lib"


LIBRARIES: tuple[Library, ...] = (
    Library("cuda-nvrtc", NVCC, "nvidia-cuda-nvrtc", ("libnvrtc.so.13", "libnvrtc-builtins.so.13.0")),
    Library("cuda-nvtx", NVTX, "nvidia-nvtx", ("libnvtx3interop.so.1",)),
    Library("libcublas", "13.1.1.3", "nvidia-cublas", ("libcublas.so.13", "libcublasLt.so.13", "libnvblas.so.13")),
    Library("libcufft", "12.0.0.61", "nvidia-cufft", ("libcufft.so.12", "libcufftw.so.12")),
    Library("libcurand", "10.4.0.35", "nvidia-curand", ("libcurand.so.10",)),
    Library("libnvjitlink", "13.4.92", "nvidia-nvjitlink", ("libnvJitLink.so.13",)),
    Library("libcusparse", "12.6.3.3", "nvidia-cusparse", ("libcusparse.so.12",)),
    Library("libcusolver", "12.0.4.66", "nvidia-cusolver", ("libcusolver.so.12", "libcusolverMg.so.12")),
    # torch links them; nothing here is compiled against them
    Library("cuda-cupti", "13.0.85", "nvidia-cuda-cupti", ("libcupti.so.13",), developed=False),
    Library("libcufile", "1.15.1.6", "nvidia-cufile", ("libcufile.so.0", "libcufile_rdma.so.1"), developed=False),
    Library("libcudnn", "9.24.0.43", "nvidia-cudnn-cu13", developed=False, home="nvidia/cudnn", place="lib"),
    Library("cusparselt", "0.8.1", "nvidia-cusparselt-cu13", developed=False, home="nvidia/cusparselt", place="lib"),
    Library("nccl", "2.30.7", "nvidia-nccl-cu13", developed=False, home="nvidia/nccl", place="lib"),
    Library("libnvshmem3", "3.4.5", "nvidia-nvshmem-cu13", developed=False, home="nvidia/nvshmem", place="lib"),
)


def runtime_row(library: Library) -> Row:
    return Row(library.name, library.version, library.project, plain=True, depends=(THIS_CUDA,),
               rules=(Rule(f"{library.home}/lib/*.so.*", library.place), DROP_REST),
               links=in_target(*library.sonames))  # fmt: skip


def development_row(library: Library) -> Row:
    major = int(library.version.partition(".")[0])
    return Row(f"{library.name}-dev", library.version, library.project, files(("include/*", f"{TARGET}/include")),
               plain=True, depends=(THIS_CUDA, f"{library.name} {library.version}"),
               run_exports=(f"{library.name} >={library.version},<{major + 1}.0a0",),
               links=tuple(link for soname in library.sonames
                           for link in unversioned(f"{soname.partition('.so')[0]}.so", soname)))  # fmt: skip


#: What a wheel calls NVIDIA's libraries when it requires them, and their packages here.
PACKAGES = {library.project: library.name for library in LIBRARIES} | {RUNTIME_PROJECT: "cuda-cudart"}
#: A wheel without files: each of its extras requires the wheels of one library.
TOOLKIT_PROJECT, TOOLKIT = "cuda-toolkit", "13.0.3.0"

#: A build of torch for this CUDA, as the package index has it; where a driver is present, solvers prefer it.
TORCH = "2.14.1"
LIBTORCH, PYTORCH = torch_rows(TORCH, f"cuda{VERSION.replace('.', '')}_generic_")
TORCH_ROWS = (
    LIBTORCH._replace(
        number=200, depends=(*LIBTORCH.depends, f"cuda-version >={VERSION},<14"),
        texts=tuple((f"etc/conda/{verb}.d/libtorch_{verb}.sh", f"cuda/{verb}-libtorch.sh")
                    for verb in ("activate", "deactivate"))),
    PYTORCH._replace(number=200, depends=(*PYTORCH.depends, "__cuda"), not_python=(TOOLKIT_PROJECT, *PACKAGES)),
    Row("triton", "3.8.0"),
    Row("cuda-bindings", "13.5.0"),
)  # fmt: skip

#: Repacked from wheels.
ROWS: tuple[Row, ...] = (
    # the compiler; its profile is replaced by one for this layout
    Row("cuda-nvcc-tools", NVCC, NVCC_PROJECT,
        (Rule(f"{WHEEL}/bin/nvcc.profile", None), Rule(f"{WHEEL}/bin/crt/*", None), *files(("bin/*", "bin"))), plain=True,
        depends=(THIS_CUDA, f"cuda-crt-tools {NVCC}", f"cuda-nvvm-tools {NVCC}"),
        texts=(("bin/nvcc.profile", "cuda/nvcc.profile"),)),
    Row("cuda-crt-tools", NVCC, NVCC_PROJECT, files(("bin/crt/*", "bin/crt")), plain=True, depends=(THIS_CUDA,)),
    Row("cuda-nvvm-tools", NVCC, NVVM_PROJECT, files(("nvvm/*", "nvvm")), plain=True, depends=(THIS_CUDA,)),
    Row("cuda-nvvm-impl", NVCC, NVVM_PROJECT, files(("include/*", "nvvm/include"), ("lib/*", "nvvm/lib64")), plain=True,
        depends=(THIS_CUDA,), links=(("nvvm/lib64/libnvvm.so", "nvvm/lib64/libnvvm.so.4"),)),
    Row("cuda-nvcc-dev_linux-64", NVCC, NVCC_PROJECT, files(("include/*", f"{TARGET}/include")), plain=True,
        depends=(THIS_CUDA, f"cuda-crt-dev_linux-64 {NVCC}", f"cuda-nvvm-dev_linux-64 {NVCC}"),
        links=((f"{TARGET}/bin/nvcc", "bin/nvcc"), (f"{TARGET}/lib64", f"{TARGET}/lib"))),
    Row("cuda-crt-dev_linux-64", NVCC, "nvidia-cuda-crt", files(("include/*", f"{TARGET}/include")), plain=True,
        depends=(THIS_CUDA,)),
    # the runtime
    Row("cuda-cudart_linux-64", CUDART, RUNTIME_PROJECT, files(("lib/*.so.*", f"{TARGET}/lib")), plain=True,
        depends=(THIS_CUDA,)),
    Row("cuda-cudart-static_linux-64", CUDART, RUNTIME_PROJECT, files(("lib/*.a", f"{TARGET}/lib")), plain=True,
        depends=(THIS_CUDA,)),
    Row("cuda-cudart-dev_linux-64", CUDART, RUNTIME_PROJECT, files(("include/*", f"{TARGET}/include")), plain=True,
        depends=(THIS_CUDA, "cuda-cccl_linux-64", f"cuda-cudart_linux-64 {CUDART}",
                 f"cuda-cudart-static_linux-64 {CUDART}"),
        links=((f"{TARGET}/lib/libcudart.so", f"{TARGET}/lib/libcudart.so.13"),)),
    Row("cuda-cccl_linux-64", CCCL, "nvidia-cuda-cccl",
        files(("include/*", f"{TARGET}/include"), ("lib/*", f"{TARGET}/lib")), plain=True, depends=(THIS_CUDA,)),
    Row("cuda-profiler-api", CCCL, "nvidia-cuda-profiler-api", files(("include/*", f"{TARGET}/include")), plain=True,
        depends=(THIS_CUDA,)),
    # later than the rest, because there is no wheel of it for 13.0
    Row("cuda-cuobjdump", "13.5.37", "nvidia-cuda-cuobjdump", files(("bin/*", "bin")), plain=True,
        depends=("cuda-nvdisasm",)),
    Row("cuda-nvdisasm", "13.5.37", "nvidia-cuda-nvdisasm", files(("bin/*", "bin")), plain=True),
    *map(runtime_row, LIBRARIES),
    *(development_row(library) for library in LIBRARIES if library.developed),
    *TORCH_ROWS,
)  # fmt: skip

ACTIVATION = tuple(
    (f"etc/conda/{verb}.d/~cuda-nvcc_{verb}.sh", f"cuda/{verb}-nvcc.sh") for verb in ("activate", "deactivate")
)

#: Made of links and texts alone.
ASSEMBLED: tuple[AssembledRow, ...] = (
    AssembledRow("cuda-version", VERSION, "Says which CUDA an environment holds", constrains=("__cuda >=13",)),
    AssembledRow("cuda-nvvm-dev_linux-64", NVCC, "The compiler's back end in the place of its target",
                 depends=(THIS_CUDA, f"cuda-nvvm-impl {NVCC}"), links=((f"{TARGET}/nvvm", "nvvm"),)),
    AssembledRow("cuda-nvcc-impl", NVCC, "The CUDA compiler and what it needs of its target",
                 depends=(THIS_CUDA, f"cuda-nvcc-tools {NVCC}", f"cuda-nvcc-dev_linux-64 {NVCC}",
                          "cuda-cudart-dev >=13.0,<13.1.0a0")),
    AssembledRow("cuda-nvcc_linux-64", NVCC, "The CUDA compiler with its activation",
                 depends=(THIS_CUDA, f"cuda-nvcc-impl {NVCC}", "cuda-driver-dev_linux-64 >=13.0,<13.1.0a0",
                          "sysroot_linux-64 >=2.17,<3.0a0"),
                 exports=(("strong", f"cuda-version >={VERSION},<14"),), texts=ACTIVATION),
    AssembledRow("cuda-nvcc", NVCC, "The CUDA compiler and a host compiler for it",
                 depends=(f"cuda-nvcc_linux-64 {NVCC}", "gcc_linux-64", "gxx_linux-64")),
    AssembledRow("cuda-cudart", CUDART, "The CUDA runtime library",
                 depends=(THIS_CUDA, f"cuda-cudart_linux-64 {CUDART}"), links=in_target("libcudart.so.13")),
    AssembledRow("cuda-cudart-static", CUDART, "The CUDA runtime as archives",
                 depends=(THIS_CUDA, f"cuda-cudart-static_linux-64 {CUDART}"),
                 links=in_target("libcudart_static.a", "libcudadevrt.a")),
    AssembledRow("cuda-cudart-dev", CUDART, "Headers and link names of the CUDA runtime",
                 depends=(THIS_CUDA, f"cuda-cudart {CUDART}", f"cuda-cudart-dev_linux-64 {CUDART}",
                          f"cuda-cudart-static {CUDART}"),
                 exports=(("weak", f"cuda-cudart >={CUDART},{NEXT_MAJOR}"),),
                 links=(("lib/libcudart.so", f"{TARGET}/lib/libcudart.so.13"),)),
    AssembledRow("cuda-cccl", CCCL, "CUDA's C++ library", depends=(THIS_CUDA, f"cuda-cccl_linux-64 {CCCL}")),
    AssembledRow("cuda-driver-dev", CUDART, "The driver's stub where linkers look",
                 depends=(THIS_CUDA, f"cuda-driver-dev_linux-64 {CUDART}"),
                 links=(("lib/stubs/libcuda.so", f"{TARGET}/lib/stubs/libcuda.so"),)),
)  # fmt: skip
