"""Fixtures that several test modules share."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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
