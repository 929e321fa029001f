"""The operators, as typed functions over ``torch.ops.torch_sparse_ops``."""

import torch
from torch import Tensor

__all__ = ["ffi_backward", "ffi_forward"]


def ffi_forward(features: Tensor, weights: Tensor, locations: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply features with a matrix that has the same number of non-zero entries in every row.

    ``result[..., o] = bias[o] + sum_k weights[o, k] * features[..., locations[o, k]]``

    Args:
        features: ``[..., in_features]``, any number of leading dimensions, none included; float32, float64,
            float16 or bfloat16.
        weights: ``[out_features, fan_in]``, dtype and device of ``features``.
        locations: ``[out_features, fan_in]``, int16, uint16, int32 or int64, each in ``[0, in_features)``. An
            input may occur more than once in a row.
        bias: ``[out_features]``, dtype and device of ``features``; None adds nothing.

    Returns:
        ``[..., out_features]``, dtype and device of ``features``. Sums are kept in float32 (float64 for
        float64) and rounded once; the bits do not depend on the number of threads.

    Raises:
        RuntimeError: an argument has a wrong rank, shape, dtype or device, or a location is out of range. The
            message names the operator and the argument, what was received and what is accepted.
    """
    result: Tensor = torch.ops.torch_sparse_ops.ffi_forward(features, weights, locations, bias)
    return result


def ffi_backward(
    grad_output: Tensor,
    features: Tensor,
    weights: Tensor,
    locations: Tensor,
    output_mask: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of :func:`ffi_forward` with respect to features, weights and bias.

    Autograd calls this; it is differentiable itself.

    Args:
        grad_output: ``[..., out_features]``, the gradient of the result.
        features: ``[..., in_features]``, as for :func:`ffi_forward`.
        weights: ``[out_features, fan_in]``, as for :func:`ffi_forward`.
        locations: ``[out_features, fan_in]``, as for :func:`ffi_forward`.
        output_mask: which of the three gradients to compute.

    Returns:
        ``grad_features [..., in_features]``, ``grad_weights [out_features, fan_in]`` and
        ``grad_bias [out_features]``. What was not asked for costs nothing and has shape ``[0]``.

    Raises:
        RuntimeError: as for :func:`ffi_forward`.
    """
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.torch_sparse_ops.ffi_backward(
        grad_output, features, weights, locations, output_mask
    )
    return gradients
