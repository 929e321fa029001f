"""What the dispatcher learns from Python: shapes, derivatives, vmap and autocast rules of the operators.

The kernels are registered by the library. Shapes are not: a shape function in C++ would turn symbolic sizes
into numbers.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

NAMESPACE = "torch_sparse_ops"
OUTPUT_MASK = tuple[bool, bool, bool]

_autocast = torch.library.Library(NAMESPACE, "IMPL")
_refusals = torch.library.Library(NAMESPACE, "IMPL")


class VmapInfo(Protocol):
    """What ``torch.vmap`` tells a rule."""

    batch_size: int


# ---- shapes


def _refuse(op: str, argument: str, received: str, accepted: str) -> NoReturn:
    raise RuntimeError(f"{op}: {argument}: received {received}, accepted is {accepted}")


def _check_fake(op: str, features: Tensor, weights: Tensor, others: dict[str, Tensor | None]) -> None:
    """Check what the result's shape and device are read from; the kernels check the rest."""
    if features.dim() < 1:
        _refuse(op, "features", f"shape {list(features.shape)}", "shape [..., in_features]")
    if weights.dim() != 2:
        _refuse(op, "weights", f"shape {list(weights.shape)}", "shape [out_features, fan_in]")
    for name, tensor in {"weights": weights, **others}.items():
        if tensor is not None and tensor.device != features.device:
            _refuse(op, name, f"device {tensor.device}", f"device {features.device}, as features")


def _ffi_forward_fake(
    features: Tensor, weights: Tensor, locations: Tensor, bias: Tensor | None = None
) -> Tensor:
    _check_fake("ffi_forward", features, weights, {"locations": locations, "bias": bias})
    return features.new_empty((*features.shape[:-1], weights.shape[0]))


def _ffi_backward_fake(
    grad_output: Tensor, features: Tensor, weights: Tensor, locations: Tensor, output_mask: OUTPUT_MASK
) -> tuple[Tensor, Tensor, Tensor]:
    _check_fake("ffi_backward", features, weights, {"locations": locations, "grad_output": grad_output})
    grad_features, grad_weights, grad_bias = (
        features.new_empty(shape if wanted else (0,))
        for shape, wanted in zip((features.shape, weights.shape, weights.shape[:1]), output_mask, strict=True)
    )
    return grad_features, grad_weights, grad_bias


# ---- derivatives


def _ffi_forward_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    features, weights, locations, _bias = inputs
    ctx.save_for_backward(features, weights, locations)


def _ffi_forward_backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    op = torch.ops.torch_sparse_ops.ffi_backward
    features, weights, _, *bias = ctx.needs_input_grad  # an absent bias may be absent here, too
    wanted = (features, weights, any(bias))
    gradients = op(grad_output, *ctx.saved_tensors, wanted)
    grad_features, grad_weights, grad_bias = (
        gradient if want else None for gradient, want in zip(gradients, wanted, strict=True)
    )
    return grad_features, grad_weights, None, grad_bias


def _ffi_backward_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.output_mask = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def _ffi_backward_backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
    """Differentiate ffi_backward, linear in each of grad_output, features and weights, by the operators."""
    forward, backward = torch.ops.torch_sparse_ops.ffi_forward, torch.ops.torch_sparse_ops.ffi_backward
    grad_output, features, weights, locations = ctx.saved_tensors
    to_features, to_weights, to_bias = (
        cotangent if asked else None for cotangent, asked in zip(cotangents, ctx.output_mask, strict=True)
    )
    wants_grad_output, wants_features, wants_weights, *_ = ctx.needs_input_grad
    terms = []
    if wants_grad_output and to_features is not None:
        terms.append(forward(to_features, weights, locations))
    if wants_grad_output and to_weights is not None:
        terms.append(forward(features, to_weights, locations))
    if wants_grad_output and to_bias is not None:
        terms.append(to_bias.expand_as(grad_output))
    grad_features = grad_weights = None
    if wants_features and to_weights is not None:
        grad_features = backward(grad_output, features, to_weights, locations, (True, False, False))[0]
    if wants_weights and to_features is not None:
        grad_weights = backward(grad_output, to_features, weights, locations, (False, True, False))[1]
    return sum(terms) if terms else None, grad_features, grad_weights, None, None


# ---- vmap
#
# The mapped dimension V is folded into the features: V layers side by side are one layer with V * in_features
# inputs and V * out_features outputs, in which layer v reads from input v * in_features on.


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


def _ffi_forward_vmap(
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


def _ffi_backward_vmap(
    info: VmapInfo,
    in_dims: Sequence[Any],
    grad_output: Tensor,
    features: Tensor,
    weights: Tensor,
    locations: Tensor,
    output_mask: OUTPUT_MASK,
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


# ---- autocast


def _register_autocast(device_type: str, key: str) -> None:
    """Cast as ``torch.nn.functional.linear`` does: to autocast's present dtype; float64 stays as it is."""

    def cast(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or not tensor.is_floating_point() or tensor.dtype == torch.float64:
            return tensor
        return tensor.to(torch.get_autocast_dtype(device_type))

    def ffi_forward_autocast(
        features: Tensor, weights: Tensor, locations: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        values = cast(features), cast(weights), locations, cast(bias)
        with torch.autocast(device_type, enabled=False):
            result: Tensor = torch.ops.torch_sparse_ops.ffi_forward(*values)
        return result

    _autocast.impl("ffi_forward", ffi_forward_autocast, key)


def register() -> None:
    """Register all of the above; the library must be loaded."""
    library = torch.library
    forward, backward = f"{NAMESPACE}::ffi_forward", f"{NAMESPACE}::ffi_backward"
    library.register_fake(forward, _ffi_forward_fake)
    library.register_fake(backward, _ffi_backward_fake)
    library.register_autograd(forward, _ffi_forward_backward, setup_context=_ffi_forward_setup)
    library.register_autograd(backward, _ffi_backward_backward, setup_context=_ffi_backward_setup)
    library.register_vmap(forward, _ffi_forward_vmap)
    library.register_vmap(backward, _ffi_backward_vmap)
    _register_autocast("cpu", "AutocastCPU")
    _register_autocast("cuda", "AutocastCUDA")


def refuse_cuda(reason: str) -> None:
    """Let the operators answer tensors on a GPU with a reason, where no CUDA library is loaded."""

    def make_refusal(op: str) -> Callable[..., NoReturn]:
        def refuse(*arguments: object) -> NoReturn:
            raise RuntimeError(f"{op}: received tensors on a CUDA device, but {reason}")

        return refuse

    for op in ("ffi_forward", "ffi_backward"):
        _refusals.impl(op, make_refusal(op), "CUDA")
