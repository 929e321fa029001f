"""The choice of the instruction set, and every kernel of every instruction set that this machine can run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch_sparse_ops
from torch_sparse_ops import CPU_CAPABILITIES

VARIABLE = "TORCH_SPARSE_OPS_CPU_CAPABILITY"
CHECK = "TORCH_SPARSE_OPS_CHECK_LOCATIONS"
QUESTION = "import torch_sparse_ops; print(torch_sparse_ops.cpu_capability())"


def run_python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    caps = (VARIABLE, "ATEN_CPU_CAPABILITY")
    kept = {name: value for name, value in os.environ.items() if name not in caps}
    return subprocess.run(
        [sys.executable, *arguments], env={**kept, **variables}, capture_output=True, text=True, check=False
    )


def ask_capability(**variables: str) -> str:
    answer = run_python("-c", QUESTION, **variables)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def list_available() -> tuple[str, ...]:
    """Every capability up to the machine's own."""
    return CPU_CAPABILITIES[: CPU_CAPABILITIES.index(ask_capability()) + 1]


def test_it_is_one_of_those_built() -> None:
    assert torch_sparse_ops.cpu_capability() in CPU_CAPABILITIES


@pytest.mark.parametrize("name", CPU_CAPABILITIES)
def test_the_variable_is_a_cap(name: str) -> None:
    available = list_available()
    assert ask_capability(**{VARIABLE: name}) == (name if name in available else available[-1])


@pytest.mark.parametrize(
    ("name", "expected"), [("default", "baseline"), ("avx2", "avx2"), ("avx512", "avx512_bf16")]
)
def test_the_variable_of_torch_is_a_cap_too(name: str, expected: str) -> None:
    available = list_available()
    assert ask_capability(ATEN_CPU_CAPABILITY=name) == (expected if expected in available else available[-1])


def test_the_lower_cap_wins() -> None:
    assert ask_capability(**{VARIABLE: "avx512"}, ATEN_CPU_CAPABILITY="default") == "baseline"
    assert ask_capability(**{VARIABLE: "baseline"}, ATEN_CPU_CAPABILITY="avx512") == "baseline"


def test_an_empty_variable_is_no_cap() -> None:
    assert ask_capability(**{VARIABLE: ""}) == ask_capability()


def test_an_unknown_name_is_refused() -> None:
    answer = run_python("-c", QUESTION, **{VARIABLE: "sse9"})
    assert answer.returncode != 0
    assert f"{VARIABLE}: received sse9, accepted is baseline, avx2, avx512 or avx512_bf16" in answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", CPU_CAPABILITIES)
def test_every_kernel_computes_what_the_reference_does(name: str) -> None:
    if name not in list_available():
        pytest.skip(f"this machine has no {name}")
    tests = str(Path(__file__).with_name("test_ops.py"))
    # All that the instruction set has an influence on: values, special values, bits, locations found.
    suite = run_python("-m", "pytest", "-q", "-x", tests, "-k", "not refuses", **{VARIABLE: name})
    assert suite.returncode == 0, suite.stdout


@pytest.mark.parametrize(
    ("value", "expected"),
    [("0", "9.0"), ("1", "locations[0, 0]: received 2"), ("yes", f"{CHECK}: received yes, accepted is 1")],
)
def test_the_check_of_locations_can_be_waived(value: str, expected: str) -> None:
    program = (
        "import torch, torch_sparse_ops.ops as ops\n"
        "features = torch.tensor([5.0, 7.0, 9.0])[:2]\n"  # where location 2 is memory that may be read
        "locations = torch.tensor([[2]], dtype=torch.int32)\n"
        "print(ops.ffi_forward(features, torch.ones(1, 1), locations).item())\n"
    )
    answer = run_python("-c", program, **{CHECK: value})
    assert expected in answer.stdout + answer.stderr
