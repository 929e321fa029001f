"""Fixed fan-in sparse operators for PyTorch: every output is connected to the same number of inputs.

``torch_sparse_ops.ops`` holds the operators, ``torch_sparse_ops.nn`` the layer, ``torch_sparse_ops.losses``
losses that never hold its outputs, ``torch_sparse_ops.sparsity`` training of its connections,
``torch_sparse_ops.conversion`` conversion of models and matrices, ``torch_sparse_ops.distributed`` layers
over several processes, and ``torch_sparse_ops.reference`` the operators in plain PyTorch. Importing the
package loads the operator library into torch's dispatcher; what not every program needs is imported at first
use.
"""

import importlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from torch_sparse_ops import _registration, _transposed, nn, ops
from torch_sparse_ops._version import CUDA_VERSION, __version__

if TYPE_CHECKING:
    from torch_sparse_ops import conversion, distributed, losses, reference, sparsity

__all__ = [
    "CUDA_VERSION",
    "LIBRARY_NAME",
    "__version__",
    "conversion",
    "cpu_capability",
    "distributed",
    "losses",
    "nn",
    "ops",
    "reference",
    "sparsity",
]

LIBRARY_NAME = "libtorch_sparse_ops.so"
CUDA_LIBRARY_NAME = "libtorch_sparse_ops_cuda.so"
CPU_CAPABILITIES = ("baseline", "avx2", "avx512", "avx512_bf16")  # as csrc/cpu/capability.h counts them

IMPORTED_LATER = ("conversion", "distributed", "losses", "reference", "sparsity")


def __getattr__(name: str) -> ModuleType:
    if name in IMPORTED_LATER:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _find_library(directories: list[str]) -> Path:
    candidates = [Path(directory) / LIBRARY_NAME for directory in directories]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    looked_at = "\n".join(f"  {candidate}" for candidate in candidates)
    raise ImportError(
        f"torch_sparse_ops: the operator library does not exist; looked for\n{looked_at}\n"
        "Python may have picked up the source directory: install the package (pip install .), or put "
        "build/python of a CMake build on PYTHONPATH."
    )


def _load_library(library: Path) -> None:
    try:
        torch.ops.load_library(library)
    except OSError as error:
        raise ImportError(
            f"torch_sparse_ops: {library} cannot be loaded into torch {torch.__version__}: {error}\n"
            "It needs torch 2.10 or newer: upgrade torch, or build the package again for this environment."
        ) from error


def _missing_cuda(built_for: str | None, torch_cuda: str | None) -> str | None:
    """Say why the CUDA library is not for this torch; None where it is."""
    if built_for is None:
        return "this build of torch-sparse-ops is for the CPU only: install its CUDA build (cuda*)"
    if torch_cuda is None:
        return f"this torch {torch.__version__} has no CUDA: install a CUDA build of torch"
    if built_for.partition(".")[0] != torch_cuda.partition(".")[0]:
        return (
            f"this build of torch-sparse-ops is for CUDA {built_for}, torch {torch.__version__} for CUDA "
            f"{torch_cuda}: install the build for the same major version"
        )
    return None


def cpu_capability() -> str:
    """Return the instruction set of the CPU kernels in this process: ``baseline``, ``avx2``, ``avx512`` or
    ``avx512_bf16``.

    It is the best that the machine supports, unless ``TORCH_SPARSE_OPS_CPU_CAPABILITY`` or torch's own
    ``ATEN_CPU_CAPABILITY`` name a lower one. Decided once, at first use.

    Raises:
        RuntimeError: ``TORCH_SPARSE_OPS_CPU_CAPABILITY`` holds anything else.
    """
    return CPU_CAPABILITIES[torch.ops.torch_sparse_ops._cpu_capability()]


_library = _find_library(list(__path__))
_load_library(_library)
_registration.register()
_transposed.register()
_missing = _missing_cuda(CUDA_VERSION, torch.version.cuda)
if _missing is None:
    _load_library(_library.with_name(CUDA_LIBRARY_NAME))
else:
    _registration.refuse_cuda(_missing)
