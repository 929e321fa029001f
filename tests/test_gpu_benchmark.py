"""What the benchmark for GPUs says where it cannot run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_sparse_ops


def start(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "which package? gpu.sh PACKAGE"),
        (["no/such/place"], "no/such/place is no directory; unpack the package and name where"),
        (["EMPTY"], "no torch_sparse_ops/libtorch_sparse_ops_cuda.so under"),
        (["PACKAGE", "no-such-python"], "no-such-python is no program"),
    ],
    ids=["nothing", "nowhere", "empty", "python"],
)
def test_the_script_says_what_is_missing(
    source_root: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    package = tmp_path / "package" / "torch_sparse_ops"
    package.mkdir(parents=True)
    (package / "libtorch_sparse_ops_cuda.so").touch()
    (tmp_path / "empty").mkdir()
    places = {"EMPTY": str(tmp_path / "empty"), "PACKAGE": str(tmp_path / "package")}
    done = start(source_root / "benchmarks/gpu.sh", *(places.get(word, word) for word in words))
    assert done.returncode == 2
    assert f"gpu.sh: {said}" in done.stderr


def test_nothing_is_measured_without_a_gpu(source_root: Path) -> None:
    if torch_sparse_ops.CUDA_VERSION is not None and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = start(sys.executable, source_root / "benchmarks/gpu.py")
    reasons = ("is a build for the CPU", "has no CUDA", "finds no GPU")
    assert done.returncode == 1
    assert done.stderr.startswith("gpu.py: ")
    assert any(reason in done.stderr for reason in reasons), done.stderr
    assert done.stdout == ""


def test_the_script_is_executable(source_root: Path) -> None:
    assert os.access(source_root / "benchmarks/gpu.sh", os.X_OK)
