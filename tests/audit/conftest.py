"""Fixtures that make packages for the tests of the audit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from forging import CUDA, CUDA_DEPENDS, STABLE, Compiler, Library, Spec, WheelSpec


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "wheels: fetches released wheels from the package index")
    config.addinivalue_line("markers", "nvcc: needs NVIDIA's compiler")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "wheels" in str(config.getoption("markexpr")):
        return
    skip = pytest.mark.skip(reason="fetches released wheels; run with -m wheels")
    for item in items:
        if item.get_closest_marker("wheels"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc on PATH: the fixtures are real libraries")
    return Compiler(tmp_path_factory.mktemp("libraries"))


Maker = Callable[..., Spec]


@pytest.fixture(scope="session")
def cpu_package(compiled: Compiler) -> Maker:
    """A conda package with one stable-ABI library; arguments replace what the library or the package is."""

    def make(library: Library = STABLE, path: str = "lib/libthing.so", **changes: Any) -> Spec:
        files = {path: compiled(library)} | dict(changes.pop("more", {}))
        return Spec(files=files, **changes)

    return make


@pytest.fixture(scope="session")
def cuda_package(compiled: Compiler) -> Maker:
    """A conda package with one CUDA library."""

    def make(library: Library = CUDA, path: str = "lib/libthing.so", **changes: Any) -> Spec:
        defaults: dict[str, Any] = {"build": "cuda130_0", "depends": CUDA_DEPENDS}
        files = {path: compiled(library)} | dict(changes.pop("more", {}))
        return Spec(files=files, **(defaults | changes))

    return make


@pytest.fixture(scope="session")
def wheel_package(compiled: Compiler) -> Callable[..., WheelSpec]:
    """A wheel with one library."""

    def make(library: Library = STABLE, path: str = "thing/libthing.so", **changes: Any) -> WheelSpec:
        return WheelSpec(files={path: compiled(library)}, **changes)

    return make
