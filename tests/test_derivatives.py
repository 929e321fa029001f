"""Derivatives of any order in both modes, as autograd and torch.func take them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, func
from torch_sparse_ops import nn, ops, reference

DrawLayer = Callable[..., tuple[Tensor, ...]]
ALL = (True, True, True)

IN_MODES: dict[str, Callable[..., Any]] = {
    "grad": lambda f: func.grad(f, (0, 1, 2)),
    "vjp": lambda f: lambda *x: func.vjp(f, *x)[1](torch.tensor(2.0, dtype=torch.float64)),
    "jvp": lambda f: lambda *x: func.jvp(f, x, tuple(t * 2 + 1 for t in x)),
    "jvp of the features": lambda f: lambda x, *rest: func.jvp(lambda x: f(x, *rest), (x,), (x + 1,)),
    "linearize": lambda f: lambda *x: func.linearize(f, *x)[1](*x),
    "vmap of grad": lambda f: func.vmap(func.grad(f, (0, 1, 2)), (0, None, None)),
    "grad of vmap": lambda f: func.grad(lambda *x: func.vmap(f, (0, None, None))(*x).sum(), (0, 1, 2)),
    "vmap of jvp": lambda f: func.vmap(lambda *x: func.jvp(f, x, x), (0, None, None)),
    "grad of grad": lambda f: func.grad(lambda *x: func.grad(f, 0)(*x).pow(2).sum(), (0, 1, 2)),
    "forward over reverse": lambda f: func.jacfwd(func.jacrev(f, (0, 1, 2)), (0, 1, 2)),
    "forward over forward": lambda f: func.jacfwd(func.jacfwd(f, (0, 1, 2)), (0, 1, 2)),
    "reverse over forward": lambda f: func.jacrev(func.jacfwd(f, (0, 1, 2)), (0, 1, 2)),
    "reverse over reverse": lambda f: func.jacrev(func.jacrev(f, (0, 1, 2)), (0, 1, 2)),
    "vmap of vmap of grad": lambda f: func.vmap(
        func.vmap(func.grad(f), (0, None, None)), (None, None, 0), out_dims=1
    ),
}


# ---- autograd


@pytest.mark.parametrize("leading", [(), (3,), (2, 2)])
def test_first_and_second_derivatives(draw_layer: DrawLayer, leading: tuple[int, ...]) -> None:
    features, weights, locations, bias = draw_layer(leading, requires_grad=True)

    def function(features: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        return ops.ffi_forward(features, weights, locations, bias)

    leaves = (features, weights, bias)
    assert torch.autograd.gradcheck(function, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, leaves, check_fwd_over_rev=True)


def test_derivatives_without_a_bias(draw_layer: DrawLayer) -> None:
    features, weights, locations, _ = draw_layer(requires_grad=True)
    assert torch.autograd.gradcheck(lambda f, w: ops.ffi_forward(f, w, locations), (features, weights))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gradients_match_the_reference(draw_layer: DrawLayer, dtype: torch.dtype) -> None:
    features, weights, locations, bias = draw_layer((40,), dtype, requires_grad=True)
    grad_output = torch.randn(40, 5).to(dtype)
    actual = torch.autograd.grad(
        ops.ffi_forward(features, weights, locations, bias), (features, weights, bias), grad_output
    )
    with torch.no_grad():
        expected = reference.ffi_backward(grad_output, features, weights, locations)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("index", [0, 1, 3])
def test_only_needed_gradients_are_computed(draw_layer: DrawLayer, index: int) -> None:
    layer = list(draw_layer())
    layer[index].requires_grad_()
    with torch.profiler.profile(record_shapes=True) as profile:
        ops.ffi_forward(*layer).sum().backward()
    (event,) = (e for e in profile.events() if e.name == "torch_sparse_ops::ffi_backward")
    asked = tuple(i == index for i in (0, 1, 3))
    assert event.concrete_inputs[4] == list(asked)
    assert layer[index].grad is not None


@pytest.mark.parametrize("mask", [ALL, (True, False, True), (False, True, False)])
def test_derivatives_of_the_backward_operator(draw_layer: DrawLayer, mask: tuple[bool, bool, bool]) -> None:
    features, weights, locations, _ = draw_layer((2, 2), requires_grad=True)
    grad_output = torch.randn(2, 2, 5, dtype=torch.float64, requires_grad=True)

    def function(grad_output: Tensor, features: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        gradients = ops.ffi_backward(grad_output, features, weights, locations, mask)
        return tuple(gradient for gradient, asked in zip(gradients, mask, strict=True) if asked)

    arguments = (grad_output, features, weights)
    assert torch.autograd.gradcheck(function, arguments, check_forward_ad=True, check_batched_grad=True)


# ---- torch.func


def sine(features: Tensor, weights: Tensor, locations: Tensor, bias: Tensor, operator: Any) -> Tensor:
    """A function with derivatives of any order in all arguments."""
    result: Tensor = operator(features, weights, locations, bias).sin().sum()
    return result


@pytest.mark.parametrize("mode", IN_MODES)
def test_transforms_see_the_operator_as_they_see_the_reference(draw_layer: DrawLayer, mode: str) -> None:
    features, weights, locations, bias = draw_layer((3,))
    if mode == "vmap of vmap of grad":
        bias = torch.stack([bias, -bias])
    actual, expected = (
        IN_MODES[mode](lambda f, w, b, operator=operator: sine(f, w, locations, b, operator))(
            features, weights, bias
        )
        for operator in (ops.ffi_forward, reference.ffi_forward)
    )
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_gradients_of_single_examples_are_those_of_a_loop(dtype: torch.dtype) -> None:
    layer = nn.FixedFanInLinear(7, 5, 3, dtype=dtype)
    parameters, buffers = dict(layer.named_parameters()), dict(layer.named_buffers())

    def measure(parameters: Any, features: Tensor) -> Tensor:
        result: Tensor = func.functional_call(layer, (parameters, buffers), (features,)).square().sum()
        return result

    features = torch.randn(6, 7).to(dtype)
    actual = func.vmap(func.grad(measure), (None, 0))(parameters, features)
    for i in range(6):
        expected = torch.autograd.grad(measure(parameters, features[i]), list(parameters.values()))
        torch.testing.assert_close([actual[name][i] for name in parameters], list(expected))


def test_an_ensemble_is_a_loop() -> None:
    layers = [nn.FixedFanInLinear(7, 5, 3) for _ in range(3)]
    parameters, buffers = func.stack_module_state(layers)
    features = torch.randn(4, 7)

    def call(parameters: Any, buffers: Any) -> Any:
        return func.functional_call(layers[0], (parameters, buffers), (features,))

    expected = torch.stack([layer(features) for layer in layers])
    torch.testing.assert_close(func.vmap(call)(parameters, buffers), expected)


def test_functionalize(draw_layer: DrawLayer) -> None:
    features, weights, locations, bias = draw_layer()

    def function(features: Tensor) -> Tensor:
        return ops.ffi_forward(features.clone().add_(1), weights, locations, bias)

    actual = func.functionalize(function)(features)
    torch.testing.assert_close(actual, ops.ffi_forward(features + 1, weights, locations, bias))


@pytest.mark.usefixtures("compiler")
def test_gradients_of_single_examples_compile(draw_layer: DrawLayer) -> None:
    features, weights, locations, bias = draw_layer()

    def function(features: Tensor, weights: Tensor) -> Tensor:
        gradient = func.vmap(func.grad(sine, 1), (0, None, None, None, None))
        result: Tensor = gradient(features, weights, locations, bias, ops.ffi_forward)
        return result

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(features, weights), function(features, weights))
