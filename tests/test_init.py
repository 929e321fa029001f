"""Importing the package: what it costs, and what it says when the library is missing or unusable."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
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


# ---- the CUDA library


@pytest.mark.parametrize(
    ("built_for", "torch_cuda", "said"),
    [
        (None, None, "this build of torch-sparse-ops is for the CPU only: install its CUDA build"),
        (None, "13.0", "this build of torch-sparse-ops is for the CPU only: install its CUDA build"),
        ("13.0", None, "has no CUDA: install a CUDA build of torch"),
        (
            "13.0",
            "12.9",
            "is for CUDA 13.0, torch {version} for CUDA 12.9: install the build for the same major",
        ),
    ],
)
def test_a_cuda_library_that_does_not_fit_is_explained(
    built_for: str | None, torch_cuda: str | None, said: str
) -> None:
    reason = torch_sparse_ops._missing_cuda(built_for, torch_cuda)
    assert reason is not None
    assert said.format(version=torch.__version__) in reason


@pytest.mark.parametrize("torch_cuda", ["13.0", "13.2"])
def test_a_cuda_library_fits_its_major_version(torch_cuda: str) -> None:
    assert torch_sparse_ops._missing_cuda("13.0", torch_cuda) is None


@pytest.mark.parametrize(("op", "tensors"), [("ffi_forward", 3), ("ffi_backward", 4)])
def test_tensors_on_a_gpu_are_refused_without_the_cuda_library(op: str, tensors: int) -> None:
    if torch_sparse_ops._missing is None:
        pytest.skip("the CUDA library is loaded")
    kernel = getattr(torch.ops.torch_sparse_ops, op).default
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    rest = (None,) if op == "ffi_forward" else ([True, True, True],)
    with pytest.raises(RuntimeError, match=f"{op}: received tensors on a CUDA device, but this .*: install"):
        kernel.redispatch(keys, *[torch.ones(1, 1)] * tensors, *rest)
