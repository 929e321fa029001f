"""What the dispatcher learned: shapes, derivatives, compilation, export, vmap and autocast."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_sparse_ops import nn, ops, reference
from torch_sparse_ops._registration import _shift

FORWARD = torch.ops.torch_sparse_ops.ffi_forward.default
BACKWARD = torch.ops.torch_sparse_ops.ffi_backward.default
ALL = (True, True, True)


def draw_layer(
    leading: tuple[int, ...] = (3,), dtype: torch.dtype = torch.float64, requires_grad: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """features, weights, locations and bias of a layer of 7 inputs, 5 outputs and fan-in 3."""
    generator = torch.Generator().manual_seed(1)
    features, weights, bias = (
        torch.randn(size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(requires_grad)
        for size in ((*leading, 7), (5, 3), (5,))
    )
    return features, weights, nn.draw_locations(7, 5, 3, generator=generator), bias


@pytest.fixture
def compiler() -> Iterator[None]:
    """Forget what was compiled before and after."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# ---- the whole registration, as torch checks it


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_opcheck_forward(leading: tuple[int, ...], with_bias: bool, requires_grad: bool) -> None:
    features, weights, locations, bias = draw_layer(leading, torch.float32, requires_grad)
    torch.library.opcheck(FORWARD, (features, weights, locations, bias if with_bias else None))


@pytest.mark.parametrize("mask", [ALL, (False, True, False), (True, False, True)])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_opcheck_backward(mask: tuple[bool, bool, bool], requires_grad: bool) -> None:
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
def test_shape_function_refuses(bad: dict[str, Tensor], message: str) -> None:
    names = ("features", "weights", "locations", "bias")
    arguments = dict(zip(names, (t.to("meta") for t in draw_layer()), strict=True))
    with pytest.raises(RuntimeError, match=f"ffi_forward: {message}"):
        ops.ffi_forward(**{**arguments, **bad})


# ---- derivatives


@pytest.mark.parametrize("leading", [(), (3,), (2, 2)])
def test_first_and_second_derivatives(leading: tuple[int, ...]) -> None:
    features, weights, locations, bias = draw_layer(leading, requires_grad=True)

    def function(features: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        return ops.ffi_forward(features, weights, locations, bias)

    assert torch.autograd.gradcheck(function, (features, weights, bias))
    assert torch.autograd.gradgradcheck(function, (features, weights, bias))


def test_derivatives_without_a_bias() -> None:
    features, weights, locations, _ = draw_layer(requires_grad=True)
    assert torch.autograd.gradcheck(lambda f, w: ops.ffi_forward(f, w, locations), (features, weights))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gradients_match_the_reference(dtype: torch.dtype) -> None:
    features, weights, locations, bias = draw_layer((40,), dtype, requires_grad=True)
    grad_output = torch.randn(40, 5).to(dtype)
    actual = torch.autograd.grad(
        ops.ffi_forward(features, weights, locations, bias), (features, weights, bias), grad_output
    )
    with torch.no_grad():
        expected = reference.ffi_backward(grad_output, features, weights, locations)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("index", [0, 1, 3])
def test_only_needed_gradients_are_computed(index: int) -> None:
    layer = list(draw_layer())
    layer[index].requires_grad_()
    with torch.profiler.profile(record_shapes=True) as profile:
        ops.ffi_forward(*layer).sum().backward()
    (event,) = (e for e in profile.events() if e.name == "torch_sparse_ops::ffi_backward")
    asked = tuple(i == index for i in (0, 1, 3))
    assert event.concrete_inputs[4] == list(asked)
    assert layer[index].grad is not None


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


# ---- vmap


def loop_over(
    function: Callable[..., Tensor], in_dims: tuple[int | None, ...], arguments: tuple[Tensor, ...]
) -> Tensor:
    size = next(a.shape[d] for a, d in zip(arguments, in_dims, strict=True) if d is not None)
    return torch.stack(
        [
            function(*(a if d is None else a.select(d, v) for a, d in zip(arguments, in_dims, strict=True)))
            for v in range(size)
        ]
    )


def stack(tensor: Tensor, dim: int | None, size: int = 4) -> Tensor:
    """``size`` different tensors along ``dim``; locations are rotated, values scaled."""
    if dim is None:
        return tensor
    if tensor.is_floating_point():
        return torch.stack([tensor * (v + 1) for v in range(size)], dim)
    return torch.stack([(tensor + v) % 7 for v in range(size)], dim)


IN_DIMS = [
    (0, None, None, None),
    (1, None, None, None),
    (None, 0, None, None),
    (None, None, 2, None),
    (None, None, None, 0),
    (0, 1, None, None),
    (1, 0, 1, 1),
    (-1, 2, 0, 0),
]


@pytest.mark.parametrize("in_dims", IN_DIMS, ids=str)
@pytest.mark.parametrize("leading", [(3,), (2, 3)])
def test_vmap_forward_is_a_loop(leading: tuple[int, ...], in_dims: tuple[int | None, ...]) -> None:
    arguments = tuple(stack(t, d) for t, d in zip(draw_layer(leading), in_dims, strict=True))
    actual = torch.vmap(ops.ffi_forward, in_dims)(*arguments)
    torch.testing.assert_close(actual, loop_over(ops.ffi_forward, in_dims, arguments))


def test_vmap_without_a_bias_or_leading_dimensions() -> None:
    features, weights, locations, _ = draw_layer(())
    arguments = (stack(features, 0), stack(weights, 0), locations)
    actual = torch.vmap(ops.ffi_forward, (0, 0, None))(*arguments)
    torch.testing.assert_close(actual, loop_over(ops.ffi_forward, (0, 0, None), arguments))


@pytest.mark.parametrize("mask", [ALL, (False, True, False)])
@pytest.mark.parametrize(
    "in_dims", [(0, None, None, None), (None, 0, None, None), (None, None, 1, 1), (1, 1, 0, 0)]
)
def test_vmap_backward_is_a_loop(in_dims: tuple[int | None, ...], mask: tuple[bool, bool, bool]) -> None:
    features, weights, locations, _ = draw_layer((2, 3))
    tensors = (torch.randn(2, 3, 5, dtype=torch.float64), features, weights, locations)
    arguments = tuple(stack(t, d) for t, d in zip(tensors, in_dims, strict=True))
    for which in (i for i, asked in enumerate(mask) if asked):

        def function(*tensors: Tensor, which: int = which) -> Tensor:
            grad_output, features, weights, locations = tensors
            return ops.ffi_backward(grad_output, features, weights, locations, mask)[which]

        actual = torch.vmap(function, in_dims)(*arguments)
        torch.testing.assert_close(actual, loop_over(function, in_dims, arguments))


def test_vmap_widens_locations_that_would_overflow() -> None:
    layers, in_features = 3, 2**30
    features = torch.zeros(layers, 1, dtype=torch.float16).expand(layers, in_features)
    locations = torch.full((layers, 1, 1), in_features - 1, dtype=torch.int32)
    shifted = _shift(locations, features.shape[-1])
    assert shifted.flatten().tolist() == [(v + 1) * in_features - 1 for v in range(layers)]


def test_a_batch_of_output_gradients_is_a_loop() -> None:
    features, weights, locations, bias = draw_layer(requires_grad=True)
    leaves = (features, weights, bias)
    result = ops.ffi_forward(features, weights, locations, bias)
    directions = torch.randn(4, *result.shape, dtype=result.dtype)
    actual = torch.autograd.grad(result, leaves, directions, is_grads_batched=True, retain_graph=True)
    single = [torch.autograd.grad(result, leaves, d, retain_graph=True) for d in directions]
    torch.testing.assert_close(actual, tuple(torch.stack(parts) for parts in zip(*single, strict=True)))


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


def test_autocast_leaves_float64_alone() -> None:
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
