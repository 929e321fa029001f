"""The reference against an independent formula, a dense matrix, and against autograd."""

import pytest
import torch
from torch import Tensor
from torch_sparse_ops import reference

LEADING = [(), (1,), (3,), (2, 3), (0,)]


def draw(leading: tuple[int, ...], repeated: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """features, weights, locations and bias of a layer of 6 inputs, 5 outputs and fan-in 3."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(*leading, 6, generator=generator, dtype=torch.float64)
    weights = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    bias = torch.randn(5, generator=generator, dtype=torch.float64)
    locations = torch.tensor([[0, 1, 2], [5, 4, 3], [0, 2, 4], [1, 3, 5], [2, 3, 4]], dtype=torch.int32)
    return features, weights, locations * 0 + 4 if repeated else locations, bias


def make_dense(weights: Tensor, locations: Tensor, in_features: int) -> Tensor:
    dense = torch.zeros(weights.shape[0], in_features, dtype=weights.dtype)
    for o in range(weights.shape[0]):
        for k in range(weights.shape[1]):
            dense[o, locations[o, k]] += weights[o, k]
    return dense


@pytest.mark.parametrize("leading", LEADING)
@pytest.mark.parametrize("repeated", [False, True])
def test_forward_is_a_product_with_a_dense_matrix(leading: tuple[int, ...], repeated: bool) -> None:
    features, weights, locations, bias = draw(leading, repeated)
    expected = torch.nn.functional.linear(features, make_dense(weights, locations, 6), bias)
    torch.testing.assert_close(reference.ffi_forward(features, weights, locations, bias), expected)


@pytest.mark.parametrize("leading", LEADING)
@pytest.mark.parametrize("repeated", [False, True])
def test_backward_is_what_autograd_makes_of_forward(leading: tuple[int, ...], repeated: bool) -> None:
    features, weights, locations, bias = draw(leading, repeated)
    leaves = [tensor.requires_grad_() for tensor in (features, weights, bias)]
    result = reference.ffi_forward(features, weights, locations, bias)
    grad_output = torch.randn(result.shape, generator=torch.Generator().manual_seed(1), dtype=result.dtype)
    expected = torch.autograd.grad(result, leaves, grad_output)
    actual = reference.ffi_backward(grad_output, features.detach(), weights.detach(), locations)
    torch.testing.assert_close(actual, expected)


def test_low_precision_is_rounded_once() -> None:
    features = torch.ones(1, 300, dtype=torch.bfloat16)
    weights = torch.ones(1, 300, dtype=torch.bfloat16)
    locations = torch.arange(300).reshape(1, 300)
    result = reference.ffi_forward(features, weights, locations)  # bfloat16 sums would stop at 256
    assert result.item() == torch.tensor(300.0).bfloat16().item()
