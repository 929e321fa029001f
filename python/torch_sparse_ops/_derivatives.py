"""Derivatives of the operators: backward and forward mode, of any order, for autograd and ``torch.func``.

The operators' kernels for the dispatch key ``Autograd`` are here. Each applies a ``torch.autograd.Function``
whose forward pass goes on to the kernel of the device. ``torch.library.register_autograd`` would make the
same, but nothing for ``torch.func`` and nothing for forward mode.

Both operators are linear in each argument on its own, so every derivative is a sum of these operators again.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._subclasses.functional_tensor import FunctorchFunctionalizeAPI
from torch.autograd import Function, forward_ad

from torch_sparse_ops import _vmap


def _call_below(keyset: torch._C.DispatchKeySet | None, operator: Any, *arguments: Any) -> Any:
    """Call an operator without the rules of this module, on from the keys by which it got here if known."""
    with torch._C._AutoDispatchBelowAutograd():
        if keyset is None:
            return operator(*arguments)
        return operator.default.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)


def _differentiate(function: Any, operator: Any, keyset: torch._C.DispatchKeySet, *arguments: Any) -> Any:
    """Apply a function, which takes a keyset first, for its operator if a derivative may be asked for."""
    recorded = torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments)
    if recorded or forward_ad._current_level >= 0:
        return super(Function, function).apply(keyset, *arguments)  # spares a search for defaults: 20 us
    return _call_below(keyset, operator, *arguments)


def _add(terms: list[Tensor]) -> Tensor | None:
    """Return the sum, or None if there is nothing to add."""
    return sum(terms[1:], start=terms[0]) if terms else None


def _transform(function: type[Function], operator: Any, *arguments: Any) -> Any:
    """Apply a function in place of its operator where transforms of ``torch.func`` are active."""
    interpreter: Any = retrieve_current_functorch_interpreter()
    if interpreter.key() != TransformType.Functionalize:
        return function.apply(None, *arguments)
    wrapper = FunctorchFunctionalizeAPI(interpreter)  # functions have no rule for it, operators need none
    plain = wrapper.unwrap_tensors(arguments)
    with wrapper.redispatch_to_next():
        result = operator(*plain)
    return wrapper.wrap_tensors(result)


def _primals(ctx: Any) -> tuple[Tensor, ...]:
    """Return what was saved, without its tangents of this level.

    Torch switches forward mode off inside of ``jvp`` because of those; but the levels around need it on.
    """
    return tuple(forward_ad.unpack_dual(tensor).primal for tensor in ctx.saved_tensors)


def _without_keyset(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule of ``vmap`` for an operator as one for the function."""
    return lambda info, in_dims, _keyset, *arguments: rule(info, in_dims[1:], *arguments)


class _Forward(Function):
    """``ffi_forward``."""

    @staticmethod
    def forward(keyset: torch._C.DispatchKeySet | None, *arguments: Any) -> Any:
        return _call_below(keyset, torch.ops.torch_sparse_ops.ffi_forward, *arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _keyset, features, weights, locations, _bias = inputs
        ctx.save_for_backward(features, weights, locations)
        ctx.save_for_forward(features, weights, locations)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_output is None:
            return (None,) * 5
        _keyset, features, weights, _locations, bias = ctx.needs_input_grad
        wanted = (features, weights, bias)
        gradients = torch.ops.torch_sparse_ops.ffi_backward(grad_output, *ctx.saved_tensors, wanted)
        grad_features, grad_weights, grad_bias = (
            gradient if want else None for gradient, want in zip(gradients, wanted, strict=True)
        )
        return None, grad_features, grad_weights, None, grad_bias

    @staticmethod
    def jvp(
        ctx: Any,
        _keyset: None,
        to_features: Tensor | None,
        to_weights: Tensor | None,
        _locations: None,
        to_bias: Tensor | None,
    ) -> Tensor | None:
        forward = torch.ops.torch_sparse_ops.ffi_forward
        features, weights, locations = _primals(ctx)
        terms = []
        with forward_ad._set_fwd_grad_enabled(True):
            if to_features is not None:
                terms.append(forward(to_features, weights, locations))
            if to_weights is not None:
                terms.append(forward(features, to_weights, locations))
            if to_bias is not None:
                terms.append(to_bias.expand(*features.shape[:-1], -1))
            return _add(terms)

    vmap = staticmethod(_without_keyset(_vmap.ffi_forward_vmap))


class _Backward(Function):
    """``ffi_backward``."""

    @staticmethod
    def forward(keyset: torch._C.DispatchKeySet | None, *arguments: Any) -> Any:
        return _call_below(keyset, torch.ops.torch_sparse_ops.ffi_backward, *arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _keyset, *tensors, ctx.output_mask = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        forward, backward = torch.ops.torch_sparse_ops.ffi_forward, torch.ops.torch_sparse_ops.ffi_backward
        grad_output, features, weights, locations = ctx.saved_tensors
        to_features, to_weights, to_bias = (
            cotangent if asked else None for cotangent, asked in zip(cotangents, ctx.output_mask, strict=True)
        )
        _keyset, wants_grad_output, wants_features, wants_weights, *_ = ctx.needs_input_grad
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
        return None, _add(terms), grad_features, grad_weights, None, None

    @staticmethod
    def jvp(
        ctx: Any,
        _keyset: None,
        to_grad_output: Tensor | None,
        to_features: Tensor | None,
        to_weights: Tensor | None,
        *_others: None,
    ) -> tuple[Tensor, ...]:
        backward = torch.ops.torch_sparse_ops.ffi_backward
        wants_features, wants_weights, _ = ctx.output_mask
        grad_output, features, weights, locations = _primals(ctx)
        with forward_ad._set_fwd_grad_enabled(True):
            if to_grad_output is None:
                to_grad_output = torch.zeros_like(grad_output)
            terms = list(backward(to_grad_output, features, weights, locations, ctx.output_mask))
            if wants_features and to_weights is not None:
                along = backward(grad_output, features, to_weights, locations, (True, False, False))
                terms[0] = terms[0] + along[0]
            if wants_weights and to_features is not None:
                along = backward(grad_output, to_features, weights, locations, (False, True, False))
                terms[1] = terms[1] + along[1]
        return tuple(terms)

    vmap = staticmethod(_without_keyset(_vmap.ffi_backward_vmap))


def ffi_forward_autograd(
    keyset: torch._C.DispatchKeySet,
    features: Tensor,
    weights: Tensor,
    locations: Tensor,
    bias: Tensor | None = None,
) -> Any:
    """Compute ``ffi_forward``, differentiably."""
    operator = torch.ops.torch_sparse_ops.ffi_forward
    return _differentiate(_Forward, operator, keyset, features, weights, locations, bias)


def ffi_backward_autograd(keyset: torch._C.DispatchKeySet, *arguments: Any) -> Any:
    """Compute ``ffi_backward``, differentiably."""
    return _differentiate(_Backward, torch.ops.torch_sparse_ops.ffi_backward, keyset, *arguments)


def ffi_forward_transformed(
    features: Tensor, weights: Tensor, locations: Tensor, bias: Tensor | None = None
) -> Any:
    """Compute ``ffi_forward`` inside of transforms of ``torch.func``."""
    return _transform(_Forward, torch.ops.torch_sparse_ops.ffi_forward, features, weights, locations, bias)


def ffi_backward_transformed(*arguments: Any) -> Any:
    """Compute ``ffi_backward`` inside of transforms of ``torch.func``."""
    return _transform(_Backward, torch.ops.torch_sparse_ops.ffi_backward, *arguments)
