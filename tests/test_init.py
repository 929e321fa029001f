"""Importing the package: what it costs, and what it says when the library is missing or unusable."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch_sparse_ops

MEASURE = """
import time, torch
begin = time.process_time()
import torch_sparse_ops
print(time.process_time() - begin)
"""


@pytest.fixture
def bare_package(tmp_path: Path, source_root: Path) -> Path:
    """A directory to import the package from, without its library."""
    package = tmp_path / "torch_sparse_ops"
    package.mkdir()
    for source in (source_root / "python" / "torch_sparse_ops").glob("*.py"):
        (package / source.name).write_bytes(source.read_bytes())
    (package / "_version.py").write_text('__version__ = "0"\nCUDA_VERSION = None\n')
    return package


def import_from(directory: Path, code: str = "import torch_sparse_ops") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(directory)!r})\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_version_is_that_of_the_sources(source_root: Path) -> None:
    assert f'version = "{torch_sparse_ops.__version__}"' in (source_root / "pyproject.toml").read_text()


def test_public_names_exist() -> None:
    assert all(hasattr(torch_sparse_ops, name) for name in torch_sparse_ops.__all__)


def test_import_after_torch_takes_ten_milliseconds() -> None:
    runs = [
        subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
        for _ in "123"
    ]
    assert min(float(run.stdout) for run in runs) < 0.010


def test_a_missing_library_is_explained(bare_package: Path) -> None:
    run = import_from(bare_package.parent)
    assert run.returncode == 1
    assert "ImportError: torch_sparse_ops: the operator library does not exist; looked for" in run.stderr
    assert str(bare_package / torch_sparse_ops.LIBRARY_NAME) in run.stderr
    assert "pip install ." in run.stderr


def test_an_unusable_library_is_explained(bare_package: Path) -> None:
    library = bare_package / torch_sparse_ops.LIBRARY_NAME
    library.write_bytes(b"not a library")
    run = import_from(bare_package.parent)
    assert run.returncode == 1
    assert f"ImportError: torch_sparse_ops: {library} cannot be loaded into torch" in run.stderr
    assert "It needs torch 2.10 or newer" in run.stderr
