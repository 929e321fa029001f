"""Fixtures that several test modules share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch

CUDA_PACKAGES = [
    *("python", "pip", "pytorch", "libtorch", "cxx-compiler", "cmake", "ninja", "pybind11", "extforge"),
    *("cuda-nvcc", "cuda-cudart-dev", "cuda-driver-dev", "cuda-cuobjdump"),
]

Extforge = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--matrix-python",
        action="append",
        default=[],
        metavar="PYTHON",
        help="an interpreter with some torch, under which the built package file is tried; repeatable",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "matrix_python" in metafunc.fixturenames:
        metafunc.parametrize("matrix_python", metafunc.config.getoption("matrix_python"))


@pytest.fixture(scope="session")
def test_channels() -> list[str]:
    """The channels that the packages under test came from, the built packages' first."""
    if "TEST_CHANNELS" not in os.environ:
        pytest.skip("TEST_CHANNELS is not set; `python3 build-locally.py test` sets it")
    return os.environ["TEST_CHANNELS"].splitlines()


@pytest.fixture(scope="session")
def row() -> str:
    """The row of the variant table that the package under test is from, such as ``cpu`` or ``cuda130``."""
    (record,) = Path(sys.prefix, "conda-meta").glob("torch-sparse-ops-*.json")
    return str(json.loads(record.read_text())["build"]).partition("_")[0]


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


@pytest.fixture(scope="session")
def draw_layer() -> Callable[..., tuple[torch.Tensor, ...]]:
    """A function that draws features, weights, locations and bias: 7 inputs, 5 outputs, fan-in 3."""
    import torch
    from torch_sparse_ops import nn

    def draw(
        leading: tuple[int, ...] = (3,), dtype: torch.dtype = torch.float64, requires_grad: bool = False
    ) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(1)
        features, weights, bias = (
            torch.randn(size, generator=generator, dtype=torch.float64)
            .to(dtype)
            .requires_grad_(requires_grad)
            for size in ((*leading, 7), (5, 3), (5,))
        )
        return features, weights, nn.draw_locations(7, 5, 3, generator=generator), bias

    return draw


@pytest.fixture
def compiler() -> Iterator[Any]:
    """Torch's compiler, which forgets before and after what it has compiled."""
    import torch

    torch._dynamo.reset()
    yield torch._dynamo
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def extforge(tmp_path_factory: pytest.TempPathFactory) -> Extforge:
    """Run ``extforge`` as a shell does, with a package cache of the tests."""
    cache = str(tmp_path_factory.mktemp("rattler-cache"))

    def run(
        *arguments: object, cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "extforge", *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, "RATTLER_CACHE_DIR": cache, **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.fixture(scope="session")
def cuda_channel() -> Path:
    """A bootstrap channel that holds the packages of CUDA."""
    if "TEST_CUDA_CHANNEL" not in os.environ:
        pytest.skip(
            "TEST_CUDA_CHANNEL is not set; make one with `extforge channel DIRECTORY --cuda 13.0` and name it"
        )
    return Path(os.environ["TEST_CUDA_CHANNEL"]).resolve()


@pytest.fixture(scope="session")
def cuda_prefix(
    cuda_channel: Path, test_channels: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An environment with nvcc, torch for the CPU and extforge; a blank in its path; never activated."""
    prefix = tmp_path_factory.mktemp("cuda") / "my env"
    channels = (test_channels[0], str(cuda_channel))
    options = [word for channel in channels for word in ("--channel", channel)]
    command = [sys.executable, "-m", "extforge", "install", "--prefix", str(prefix), *CUDA_PACKAGES, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return prefix


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut logits into blocks of which the last ones are smaller, or not at all."""
    from torch_sparse_ops import _chunks

    if request.param == "many blocks":
        for device in _chunks.BLOCKS:
            monkeypatch.setitem(_chunks.BLOCKS, device, _chunks.Block(logits=1000, rows=4))
