"""The package's CUDA kernels, run without a GPU: every type, every regime, watched and under sanitizers."""

import platform
import re
from pathlib import Path

import pytest
from programs import build, require, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="fibers for x86-64 Linux only"
    ),
]


@pytest.fixture(scope="module")
def programs(source_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("cmake", "addr2line")
    target = tmp_path_factory.mktemp("cuda_kernels")
    build(source_root / "tests/cuda_kernels", target)
    return target


@pytest.mark.parametrize("value", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["watched", "sanitized"])
def test_kernels_compute_what_plain_loops_do(programs: Path, value: str, kind: str) -> None:
    said = run(programs / f"fixed_fan_in_{value}_{kind}")
    assert re.fullmatch(r"\d+ passed, 0 failed\n", said)


@pytest.mark.parametrize("order", ["reverse", "1"])
def test_results_do_not_depend_on_the_order_of_threads(programs: Path, order: str) -> None:
    said = run(
        programs / "fixed_fan_in_float32_watched", "--order", order, "computes_forward", "computes_backward"
    )
    assert said == "2 passed, 0 failed\n"


def test_gpus_that_the_library_runs_on(programs: Path) -> None:
    assert run(programs / "architectures") == "0 failed\n"
