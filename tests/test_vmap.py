"""Mapped operators against loops."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch_sparse_ops import ops
from torch_sparse_ops._vmap import _shift

DrawLayer = Callable[..., tuple[Tensor, ...]]
ALL = (True, True, True)


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
def test_vmap_forward_is_a_loop(
    draw_layer: DrawLayer, leading: tuple[int, ...], in_dims: tuple[int | None, ...]
) -> None:
    arguments = tuple(stack(t, d) for t, d in zip(draw_layer(leading), in_dims, strict=True))
    actual = torch.vmap(ops.ffi_forward, in_dims)(*arguments)
    torch.testing.assert_close(actual, loop_over(ops.ffi_forward, in_dims, arguments))


def test_vmap_without_a_bias_or_leading_dimensions(draw_layer: DrawLayer) -> None:
    features, weights, locations, _ = draw_layer(())
    arguments = (stack(features, 0), stack(weights, 0), locations)
    actual = torch.vmap(ops.ffi_forward, (0, 0, None))(*arguments)
    torch.testing.assert_close(actual, loop_over(ops.ffi_forward, (0, 0, None), arguments))


@pytest.mark.parametrize("mask", [ALL, (False, True, False)])
@pytest.mark.parametrize(
    "in_dims", [(0, None, None, None), (None, 0, None, None), (None, None, 1, 1), (1, 1, 0, 0)]
)
def test_vmap_backward_is_a_loop(
    draw_layer: DrawLayer, in_dims: tuple[int | None, ...], mask: tuple[bool, bool, bool]
) -> None:
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


def test_a_batch_of_output_gradients_is_a_loop(draw_layer: DrawLayer) -> None:
    features, weights, locations, bias = draw_layer(requires_grad=True)
    leaves = (features, weights, bias)
    result = ops.ffi_forward(features, weights, locations, bias)
    directions = torch.randn(4, *result.shape, dtype=result.dtype)
    actual = torch.autograd.grad(result, leaves, directions, is_grads_batched=True, retain_graph=True)
    single = [torch.autograd.grad(result, leaves, d, retain_graph=True) for d in directions]
    torch.testing.assert_close(actual, tuple(torch.stack(parts) for parts in zip(*single, strict=True)))
