"""What the dispatcher learns from Python: shapes, derivatives, transforms and autocast of the operators.

The kernels are registered by the library. Shapes are not: a shape function in C++ would turn symbolic sizes
into numbers.
"""

from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor

from torch_sparse_ops import _derivatives

NAMESPACE = "torch_sparse_ops"
OUTPUT_MASK = tuple[bool, bool, bool]
TRANSFORMS = "FuncTorchDynamicLayerFrontMode"  # on while any transform of torch.func is

_library = torch.library.Library(NAMESPACE, "IMPL")


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

    _library.impl("ffi_forward", ffi_forward_autocast, key)


def register() -> None:
    """Register all of the above; the library must be loaded."""
    torch.library.register_fake(f"{NAMESPACE}::ffi_forward", _ffi_forward_fake)
    torch.library.register_fake(f"{NAMESPACE}::ffi_backward", _ffi_backward_fake)
    _library.impl("ffi_forward", _derivatives.ffi_forward_autograd, "Autograd", with_keyset=True)
    _library.impl("ffi_backward", _derivatives.ffi_backward_autograd, "Autograd", with_keyset=True)
    _library.impl("ffi_forward", _derivatives.ffi_forward_transformed, TRANSFORMS)
    _library.impl("ffi_backward", _derivatives.ffi_backward_transformed, TRANSFORMS)
    _register_autocast("cpu", "AutocastCPU")
    _register_autocast("cuda", "AutocastCUDA")


def refuse_cuda(reason: str) -> None:
    """Let the operators answer tensors on a GPU with a reason, where no CUDA library is loaded."""

    def make_refusal(op: str) -> Callable[..., NoReturn]:
        def refuse(*arguments: object) -> NoReturn:
            raise RuntimeError(f"{op}: received tensors on a CUDA device, but {reason}")

        return refuse

    for op in ("ffi_forward", "ffi_backward"):
        _library.impl(op, make_refusal(op), "CUDA")
