"""The operators on a GPU: values, streams, devices, threads, graphs, compilation, determinism, messages."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_sparse_ops
from test_ops import (
    DTYPES,
    EMPTY_SHAPES,
    INDEX_DTYPES,
    SHAPES,
    Shape,
    assert_near,
    draw_arguments,
    draw_grad_output,
    widen,
)
from torch import Tensor
from torch_sparse_ops import _transposed, nn, ops, reference

pytestmark = pytest.mark.gpu

#: Beyond those of the CPU: widths of tiles, tiles too large for shared memory, many steps.
GPU_SHAPES: list[Shape] = [
    ((3,), 1000, 700, 50),
    ((8,), 768, 3000, 32),
    ((32,), 512, 5000, 33),
    ((40,), 20000, 300, 64),
    ((129,), 768, 2000, 64),
    ((1,), 100000, 500, 200),
]
#: Location 5 is memory that may be read: the features are a view of more.
OUT_OF_RANGE = """
import torch
from torch_sparse_ops import ops
features, weights = torch.ones(8, device="cuda")[:5], torch.ones(3, 2, device="cuda")
ops.ffi_forward(features, weights, torch.full((3, 2), 5, device="cuda"))
torch.cuda.synchronize()
"""


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if torch_sparse_ops.CUDA_VERSION is None:
        pytest.skip("this build of torch-sparse-ops has no CUDA library")
    if not torch.cuda.is_available():
        pytest.skip("no GPU: torch.cuda.is_available() is false")


@pytest.fixture
def second_device() -> torch.device:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    return torch.device("cuda", 1)


@pytest.fixture
def atomics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_transposed.ATOMICS, "1")


@pytest.fixture
def compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def upload(arguments: dict[str, Any], device: torch.device | str = "cuda") -> dict[str, Any]:
    return {name: tensor.to(device) for name, tensor in arguments.items()}


def check_forward(arguments: dict[str, Any], device: torch.device | str = "cuda") -> None:
    exact, magnitude = (reference.ffi_forward(**widen(arguments, m)) for m in (False, True))
    actual = ops.ffi_forward(**upload(arguments, device))
    assert actual.dtype == arguments["features"].dtype
    assert_near(actual.cpu(), exact, magnitude)


def check_backward(arguments: dict[str, Any], device: torch.device | str = "cuda") -> None:
    arguments = {"grad_output": draw_grad_output(arguments), **arguments}
    arguments.pop("bias", None)
    exact, magnitude = (reference.ffi_backward(**widen(arguments, m)) for m in (False, True))
    actual = ops.ffi_backward(**upload(arguments, device))
    for gradient, *bounds in zip(actual, exact, magnitude, strict=True):
        assert_near(gradient.cpu(), *bounds)


def make_layer(batch: int = 40) -> tuple[nn.FixedFanInLinear, Tensor]:
    layer = nn.FixedFanInLinear(300, 500, 20, device="cuda")
    return layer, torch.randn(batch, 300, device="cuda", requires_grad=True)


def train(layer: nn.FixedFanInLinear, features: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(layer(features).square().sum(), (features, *layer.parameters()))


# ---- values


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES + EMPTY_SHAPES, ids=str)
def test_values_match_the_reference(shape: Shape, dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    arguments = draw_arguments(*shape, dtype, index_dtype)
    check_forward(arguments)
    check_backward(arguments)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", GPU_SHAPES, ids=str)
def test_values_of_large_layers_match_the_reference(shape: Shape, dtype: torch.dtype) -> None:
    arguments = draw_arguments(*shape, dtype)
    check_forward(arguments)
    check_backward(arguments)


@pytest.mark.usefixtures("atomics")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", GPU_SHAPES, ids=str)
def test_atomic_sums_match_the_reference(shape: Shape, dtype: torch.dtype) -> None:
    check_backward(draw_arguments(*shape, dtype))


def test_strided_and_shifted_arguments() -> None:
    arguments = upload(draw_arguments((6,), 50, 80, 9))
    expected = ops.ffi_forward(**arguments)
    strided = {name: tensor.repeat_interleave(2, -1)[..., ::2] for name, tensor in arguments.items()}
    torch.testing.assert_close(ops.ffi_forward(**strided), expected, rtol=0, atol=0)
    layer = {name: tensor[3:] for name, tensor in arguments.items() if name != "features"}
    shifted = ops.ffi_forward(arguments["features"], **layer)  # rows of 36 bytes: not at multiples of 16
    torch.testing.assert_close(shifted, expected[:, 3:])


@pytest.mark.slow
def test_more_elements_than_32_bits_count() -> None:
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("needs 40 GiB of free memory")
    batch, out_features = 2**16, 2**16 + 8
    features = torch.randn(batch, 4, device="cuda", dtype=torch.bfloat16)
    locations = torch.randint(4, (out_features, 1), device="cuda", dtype=torch.int32)
    weights = torch.ones(out_features, 1, device="cuda", dtype=torch.bfloat16)
    result = ops.ffi_forward(features, weights, locations)
    assert result.numel() > 2**32
    torch.testing.assert_close(result[-1], features[-1][locations[:, 0].long()])
    grad_features, grad_weights, _ = ops.ffi_backward(result, features, weights, locations)
    expected = (result[:, -1].float() * features[:, locations[-1, 0].long()].float()).sum()
    torch.testing.assert_close(grad_weights[-1, 0].float(), expected, rtol=2e-2, atol=0)
    counts = torch.bincount(locations[:, 0].long(), minlength=4)
    torch.testing.assert_close(grad_features[-1].float(), features[-1].float() * counts, rtol=2e-2, atol=1e-2)


# ---- streams, devices, threads, graphs


def test_work_goes_to_the_current_stream() -> None:
    layer, features = make_layer()
    expected = layer(features)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        doubled = features.detach() * 2
        result = layer(doubled)
    assert not stream.query(), "the call waited for the device"
    stream.synchronize()
    torch.testing.assert_close(result - layer.bias, 2 * (expected - layer.bias))


def test_kept_connections_serve_another_stream() -> None:
    layer, features = make_layer()
    expected = train(layer, features)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        actual = train(layer, features)
    stream.synchronize()
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_a_second_device(second_device: torch.device) -> None:
    arguments = draw_arguments((33,), 60, 90, 7)
    check_forward(arguments, second_device)
    check_backward(arguments, second_device)
    assert torch.cuda.current_device() == 0


def test_threads_of_autograd() -> None:
    layer, features = make_layer()
    expected = train(layer, features)
    actual: list[tuple[Tensor, ...]] = []
    threads = [threading.Thread(target=lambda: actual.append(train(layer, features))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(actual) == 4
    for gradients in actual:
        torch.testing.assert_close(gradients, expected, rtol=0, atol=0)


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "captured"])
def test_a_graph_is_captured_and_replayed(keeps: bool) -> None:
    layer, features = make_layer()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            train(layer, features)
    torch.cuda.synchronize()
    if not keeps:
        _transposed._kept.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradients = train(layer, features)
    with torch.no_grad():
        features.copy_(torch.randn_like(features))
    graph.replay()
    torch.testing.assert_close(gradients, train(layer, features), rtol=0, atol=0)


# ---- autograd, compilation, autocast


def test_first_and_second_derivatives() -> None:
    arguments = upload(draw_arguments((3,), 7, 5, 3, torch.float64))
    locations = arguments.pop("locations")
    leaves = tuple(tensor.requires_grad_() for tensor in arguments.values())

    def function(features: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        return ops.ffi_forward(features, weights, locations, bias)

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_opcheck() -> None:
    arguments = upload(draw_arguments((3,), 7, 5, 3))
    torch.library.opcheck(torch.ops.torch_sparse_ops.ffi_forward.default, tuple(arguments.values()))


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_a_compiled_training_step_matches_eager(mode: str | None) -> None:
    layer, features = make_layer()
    compiled = torch.compile(layer, fullgraph=True, mode=mode)
    for _ in range(4):  # warm up, capture, replay
        actual = torch.autograd.grad(compiled(features).square().sum(), (features, *layer.parameters()))
        actual = tuple(gradient.clone() for gradient in actual)
    torch.testing.assert_close(actual, train(layer, features))


def test_rewired_locations_are_seen() -> None:
    layer, features = make_layer()
    train(layer, features)
    with torch.no_grad():
        layer.locations.copy_(layer.locations.flip(0))
    actual = train(layer, features)[0]
    grads = layer(features).detach() * 2
    expected = ops.ffi_backward(grads.cpu(), features.cpu(), layer.weight.cpu(), layer.locations.cpu())[0]
    torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_its_dtype(dtype: torch.dtype) -> None:
    layer, features = make_layer()
    with torch.autocast("cuda", dtype=dtype):
        result = layer(features)
    assert result.dtype == dtype
    torch.testing.assert_close(result.float(), layer(features), rtol=2e-2, atol=2e-2)


# ---- determinism


@pytest.mark.parametrize("batch", [1, 7, 40, 200])
def test_the_same_input_gives_the_same_bits(batch: int) -> None:
    layer, features = make_layer(batch)
    first = (layer(features), *train(layer, features))
    for _ in range(5):
        torch.testing.assert_close((layer(features), *train(layer, features)), first, rtol=0, atol=0)


# ---- messages


def test_tensors_on_two_devices_are_refused() -> None:
    arguments = upload(draw_arguments((3,), 7, 5, 3))
    arguments["locations"] = arguments["locations"].cpu()
    with pytest.raises(RuntimeError, match="locations: received device cpu, accepted is device cuda:0"):
        ops.ffi_forward(**arguments)


@pytest.mark.parametrize(("value", "fails"), [("1", True), ("0", False)])
def test_a_location_out_of_range_is_told_by_the_device(value: str, fails: bool) -> None:
    environ = {**os.environ, "TORCH_SPARSE_OPS_CHECK_LOCATIONS": value}
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_RANGE], capture_output=True, text=True, env=environ, check=False
    )
    assert (done.returncode != 0) == fails, done.stderr
    assert ("locations: accepted is 0 to in_features - 1" in done.stderr) == fails
