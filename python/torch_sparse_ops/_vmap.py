"""Rules of ``torch.vmap`` for the operators.

The mapped dimension V is folded into the features: V layers side by side are one layer with V * in_features
inputs and V * out_features outputs, in which layer v reads from input v * in_features on.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class VmapInfo(Protocol):
    """What ``torch.vmap`` tells a rule."""

    batch_size: int


def _lead(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """Return the tensor with its mapped dimension first, repeated (without a copy) if it has none."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _fold_last(tensor: Tensor) -> Tensor:
    """``[V, ..., n]`` to ``[..., V * n]``."""
    return tensor.movedim(0, -2).flatten(-2)


def _unfold_last(tensor: Tensor, size: int) -> Tensor:
    """``[..., V * n]`` to ``[V, ..., n]``."""
    unfolded: Tensor = tensor.unflatten(-1, (size, tensor.shape[-1] // size))
    return unfolded.movedim(-2, 0)


def _shift(locations: Tensor, in_features: int) -> Tensor:
    """Let layer v of ``locations [V, out_features, fan_in]`` read from input ``v * in_features`` on."""
    size = locations.shape[0]
    if size * in_features > torch.iinfo(locations.dtype).max or locations.dtype == torch.uint16:
        locations = locations.long()  # torch has no arithmetic on uint16
    first = torch.arange(size, dtype=locations.dtype, device=locations.device) * in_features
    return locations + first[:, None, None]


def ffi_forward_vmap(
    info: VmapInfo,
    in_dims: Sequence[int | None],
    features: Tensor,
    weights: Tensor,
    locations: Tensor,
    bias: Tensor | None = None,
) -> tuple[Tensor, int]:
    op = torch.ops.torch_sparse_ops.ffi_forward
    size = info.batch_size
    features_dim, *layer_dims = in_dims
    if features_dim is not None and not any(dim is not None for dim in layer_dims):
        return op(features.movedim(features_dim, 0), weights, locations, bias), 0
    weights = _lead(weights, in_dims[1], size)
    locations = _lead(locations, in_dims[2], size)
    if bias is not None:
        bias = _lead(bias, in_dims[3], size).flatten()
    if features_dim is not None:
        locations = _shift(locations, features.movedim(features_dim, 0).shape[-1])
        features = _fold_last(features.movedim(features_dim, 0))
    result = op(features, weights.flatten(0, 1), locations.flatten(0, 1), bias)
    return _unfold_last(result, size), 0


def ffi_backward_vmap(
    info: VmapInfo,
    in_dims: Sequence[Any],
    grad_output: Tensor,
    features: Tensor,
    weights: Tensor,
    locations: Tensor,
    output_mask: tuple[bool, bool, bool],
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int | None, int | None, int | None]]:
    size = info.batch_size
    tensors = (grad_output, features, weights, locations)
    grad_output, features, weights, locations = (
        _lead(tensor, dim, size) for tensor, dim in zip(tensors, in_dims, strict=False)
    )
    grad_features, grad_weights, grad_bias = torch.ops.torch_sparse_ops.ffi_backward(
        _fold_last(grad_output),
        _fold_last(features),
        weights.flatten(0, 1),
        _shift(locations, features.shape[-1]).flatten(0, 1),
        output_mask,
    )
    if output_mask[0]:
        grad_features = _unfold_last(grad_features, size)
    if output_mask[1]:
        grad_weights = grad_weights.unflatten(0, (size, weights.shape[1]))
    if output_mask[2]:
        grad_bias = grad_bias.unflatten(0, (size, weights.shape[1]))
    first, second, third = (0 if asked else None for asked in output_mask)
    return (grad_features, grad_weights, grad_bias), (first, second, third)
