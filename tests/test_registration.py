"""What the dispatcher learned: schemas, shapes, compilation, export and autocast."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_sparse_ops import nn, ops

DrawLayer = Callable[..., tuple[Tensor, ...]]
FORWARD = torch.ops.torch_sparse_ops.ffi_forward.default
BACKWARD = torch.ops.torch_sparse_ops.ffi_backward.default
ALL = (True, True, True)


# ---- the whole registration, as torch checks it


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_opcheck_forward(
    draw_layer: DrawLayer, leading: tuple[int, ...], with_bias: bool, requires_grad: bool
) -> None:
    features, weights, locations, bias = draw_layer(leading, torch.float32, requires_grad)
    torch.library.opcheck(FORWARD, (features, weights, locations, bias if with_bias else None))


@pytest.mark.parametrize("mask", [ALL, (False, True, False), (True, False, True)])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_opcheck_backward(draw_layer: DrawLayer, mask: tuple[bool, bool, bool], requires_grad: bool) -> None:
    features, weights, locations, _ = draw_layer((2, 3), torch.float32, requires_grad)
    grad_output = torch.randn(2, 3, 5, requires_grad=requires_grad)
    torch.library.opcheck(BACKWARD, (grad_output, features, weights, locations, list(mask)))


def test_schemas() -> None:
    assert str(FORWARD._schema) == (
        "torch_sparse_ops::ffi_forward(Tensor features, Tensor weights, Tensor locations, Tensor? bias=None) "
        "-> Tensor"
    )
    assert str(BACKWARD._schema) == (
        "torch_sparse_ops::ffi_backward(Tensor grad_output, Tensor features, Tensor weights, "
        "Tensor locations, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
    )


# ---- shapes


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            {"features": torch.empty((), device="meta")},
            r"features: received shape \[\], accepted is shape \[\.\.\., in",
        ),
        (
            {"weights": torch.empty(5, device="meta")},
            r"weights: received shape \[5\], accepted is shape \[out",
        ),
        (
            {"locations": torch.zeros(5, 3, dtype=torch.int32)},
            "locations: received device cpu, accepted is device meta",
        ),
        ({"bias": torch.zeros(5)}, "bias: received device cpu, accepted is device meta, as features"),
    ],
    ids=["features", "weights", "locations", "bias"],
)
def test_shape_function_refuses(draw_layer: DrawLayer, bad: dict[str, Tensor], message: str) -> None:
    names = ("features", "weights", "locations", "bias")
    arguments = dict(zip(names, (t.to("meta") for t in draw_layer()), strict=True))
    with pytest.raises(RuntimeError, match=f"ffi_forward: {message}"):
        ops.ffi_forward(**{**arguments, **bad})


# ---- compilation


@pytest.mark.usefixtures("compiler")
def test_one_graph_serves_every_batch_size() -> None:
    graphs = 0

    def count(module: Any, example_inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return module.forward

    layer = nn.FixedFanInLinear(7, 5, 3)
    compiled = torch.compile(layer, backend=count, fullgraph=True, dynamic=True)
    for batch in (2, 3, 17, 100):
        features = torch.randn(batch, 7)
        torch.testing.assert_close(compiled(features), layer(features))
    assert graphs == 1


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_compiled_training_step_matches_eager() -> None:
    layer = nn.FixedFanInLinear(7, 5, 3)
    compiled = torch.compile(lambda x: layer(torch.relu(x)).square().sum(), fullgraph=True)
    for batch in (4, 9):
        features = torch.randn(batch, 7)
        expected = torch.autograd.grad(layer(torch.relu(features)).square().sum(), list(layer.parameters()))
        actual = torch.autograd.grad(compiled(features), list(layer.parameters()))
        torch.testing.assert_close(actual, expected)


@pytest.mark.usefixtures("compiler")
def test_export_keeps_the_batch_open() -> None:
    layer = nn.FixedFanInLinear(7, 5, 3)
    batch = torch.export.Dim("batch", min=1, max=1000)
    program = torch.export.export(layer, (torch.randn(4, 7),), dynamic_shapes={"features": {0: batch}})
    features = torch.randn(33, 7)
    torch.testing.assert_close(program.module()(features), layer(features))
    assert any(node.target is FORWARD for node in program.graph.nodes)


# ---- autocast


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_its_dtype(dtype: torch.dtype) -> None:
    layer = nn.FixedFanInLinear(7, 5, 3)
    features = torch.randn(4, 7)
    with torch.autocast("cpu", dtype=dtype):
        result = layer(features)
    assert result.dtype == dtype
    torch.testing.assert_close(result, copy_to(layer, dtype)(features.to(dtype)))


def copy_to(layer: nn.FixedFanInLinear, dtype: torch.dtype) -> nn.FixedFanInLinear:
    return copy.deepcopy(layer).to(dtype)


def test_autocast_leaves_gradients_in_the_parameters_dtype() -> None:
    layer = nn.FixedFanInLinear(7, 5, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(torch.randn(4, 7)).float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())


def test_autocast_leaves_float64_alone(draw_layer: DrawLayer) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.ffi_forward(*draw_layer()).dtype == torch.float64


@pytest.mark.usefixtures("compiler")
def test_autocast_inside_a_compiled_function() -> None:
    layer = nn.FixedFanInLinear(7, 5, 3)

    def function(features: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer.forward(features)

    features = torch.randn(4, 7)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(features), function(features))
