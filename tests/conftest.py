"""Fixtures that several test modules share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def source_root() -> Path:
    """The checkout: what the doors to the sources are tried on."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def library_path() -> Path:
    """The operator library of the package under test."""
    import torch_sparse_ops

    (path,) = (
        candidate
        for directory in torch_sparse_ops.__path__
        if (candidate := Path(directory) / torch_sparse_ops.LIBRARY_NAME).exists()
    )
    return path
