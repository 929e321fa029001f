"""Fixed fan-in sparse operators for PyTorch: every output is connected to the same number of inputs.

``torch_sparse_ops.ops`` holds the operators, ``torch_sparse_ops.nn`` the layer, and
``torch_sparse_ops.reference`` the same operators in plain PyTorch. Importing the package loads the operator
library into torch's dispatcher.
"""

from pathlib import Path

import torch

from torch_sparse_ops import _registration, nn, ops, reference
from torch_sparse_ops._version import __version__

__all__ = ["LIBRARY_NAME", "__version__", "nn", "ops", "reference"]

LIBRARY_NAME = "libtorch_sparse_ops.so"


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


_load_library(_find_library(list(__path__)))
_registration.register()
