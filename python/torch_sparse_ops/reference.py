"""The operators in plain PyTorch: what the kernels are tested against. Clear, slow, and hungry for memory.

Sums are kept in float32 for float32 and narrower types and in float64 for float64, as in the kernels.
"""

import math

import torch
from torch import Tensor

__all__ = ["ffi_backward", "ffi_forward"]


def _accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def ffi_forward(features: Tensor, weights: Tensor, locations: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute what :func:`torch_sparse_ops.ops.ffi_forward` does, through ``[..., out_features, fan_in]``."""
    dtype = _accumulate_dtype(features.dtype)
    gathered = features.to(dtype)[..., locations.long()]
    result = (gathered * weights.to(dtype)).sum(dim=-1)
    if bias is not None:
        result = result + bias.to(dtype)
    return result.to(features.dtype)


def ffi_backward(
    grad_output: Tensor, features: Tensor, weights: Tensor, locations: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute what :func:`torch_sparse_ops.ops.ffi_backward` does, all three gradients."""
    dtype = _accumulate_dtype(features.dtype)
    batch = math.prod(features.shape[:-1])
    grads = grad_output.to(dtype).reshape(batch, weights.shape[0])
    rows = features.to(dtype).reshape(batch, features.shape[-1])
    spread = grads.unsqueeze(-1) * weights.to(dtype)
    grad_features = torch.zeros_like(rows).index_add_(
        1, locations.long().flatten(), spread.flatten(start_dim=1)
    )
    grad_weights = (grads.unsqueeze(-1) * rows[:, locations.long()]).sum(dim=0)
    grad_bias = grads.sum(dim=0)
    return (
        grad_features.reshape(features.shape).to(features.dtype),
        grad_weights.to(features.dtype),
        grad_bias.to(features.dtype),
    )
