"""Fixed fan-in sparse operators for PyTorch: every output is connected to the same number of inputs.

``torch_sparse_ops.ops`` holds the operators, ``torch_sparse_ops.nn`` the layer, and
``torch_sparse_ops.reference`` the same operators in plain PyTorch. Importing the package loads the operator
library into torch's dispatcher.
"""

from pathlib import Path

import torch

from torch_sparse_ops import _registration, nn, ops, reference
from torch_sparse_ops._version import __version__

__all__ = ["LIBRARY_NAME", "__version__", "cpu_capability", "nn", "ops", "reference"]

LIBRARY_NAME = "libtorch_sparse_ops.so"
CPU_CAPABILITIES = ("baseline", "avx2", "avx512", "avx512_bf16")  # as csrc/cpu/capability.h counts them


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


def cpu_capability() -> str:
    """Return the instruction set of the CPU kernels in this process: ``baseline``, ``avx2``, ``avx512`` or
    ``avx512_bf16``.

    It is the best that the machine supports, unless ``TORCH_SPARSE_OPS_CPU_CAPABILITY`` or torch's own
    ``ATEN_CPU_CAPABILITY`` name a lower one. Decided once, at first use.

    Raises:
        RuntimeError: ``TORCH_SPARSE_OPS_CPU_CAPABILITY`` holds anything else.
    """
    return CPU_CAPABILITIES[torch.ops.torch_sparse_ops._cpu_capability()]


_load_library(_find_library(list(__path__)))
_registration.register()
