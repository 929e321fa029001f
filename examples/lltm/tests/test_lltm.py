"""The compiled cell against its definition in plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from lltm import LLTM, lltm, reference
from torch import Tensor

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SHAPES = [(1, 1, 1), (2, 3, 5), (7, 16, 33), (64, 32, 128), (300, 1, 17), (0, 4, 6), (3, 0, 4), (3, 4, 0)]

pytestmark = pytest.mark.parametrize("device", DEVICES)


def draw(
    shape: tuple[int, int, int], device: str, dtype: torch.dtype = torch.float64, grad: bool = True
) -> list[Tensor]:
    """Return input, weights, bias, hidden and cell for ``(batch, features, state)``."""
    batch, features, state = shape
    sizes = [(batch, features), (3 * state, state + features), (3 * state,), (batch, state), (batch, state)]
    generator = torch.Generator().manual_seed(sum(shape))
    drawn = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    return [tensor.to(device, dtype).requires_grad_(grad) for tensor in drawn]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_reference(device: str, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    arguments = draw(shape, device, dtype)
    result, expected = lltm(*arguments), reference(*arguments)
    torch.testing.assert_close(result, expected)
    directions = [torch.randn_like(tensor) for tensor in expected]
    gradients = torch.autograd.grad(result, arguments, directions)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, arguments, directions))


@pytest.mark.parametrize("output", [0, 1], ids=["hidden", "cell"])
def test_gradient_of_one_output_alone(device: str, output: int) -> None:
    arguments = draw((4, 3, 5), device)
    gradients = torch.autograd.grad(lltm(*arguments)[output].sum(), arguments)
    torch.testing.assert_close(gradients, torch.autograd.grad(reference(*arguments)[output].sum(), arguments))


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 4)], ids=str)
def test_gradient_by_differences(device: str, shape: tuple[int, int, int]) -> None:
    assert torch.autograd.gradcheck(lltm, draw(shape, device))


def test_strided_arguments(device: str) -> None:
    arguments = [tensor.detach() for tensor in draw((6, 4, 3), device)]
    strided = [torch.stack([tensor, tensor], dim=-1)[..., 0] for tensor in arguments]
    assert not strided[0].is_contiguous()
    torch.testing.assert_close(lltm(*strided), lltm(*arguments))


def test_large_gates_stay_finite(device: str) -> None:
    arguments = draw((4, 3, 5), device)
    arguments[2] = torch.linspace(-900, 900, 15, dtype=torch.float64, device=device).requires_grad_()
    result, expected = lltm(*arguments), reference(*arguments)
    torch.testing.assert_close(result, expected)
    total = sum(tensor.sum() for tensor in result)
    gradients = torch.autograd.grad(total, arguments)
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_number_of_threads_changes_no_bit(device: str) -> None:
    arguments = draw((300, 1, 17), device)
    threads = torch.get_num_threads()
    many = torch.autograd.grad(lltm(*arguments)[0].sum(), arguments[4])
    try:
        torch.set_num_threads(1)
        one = torch.autograd.grad(lltm(*arguments)[0].sum(), arguments[4])
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(one, many, rtol=0, atol=0)


def test_layer_over_a_sequence(device: str) -> None:
    """Gradients flow back through all steps, as in plain PyTorch."""
    layer = LLTM(features=3, state=5).to(device, torch.float64)
    sequence = torch.randn(6, 4, 3, dtype=torch.float64, device=device)
    state, expected = None, (sequence.new_zeros(4, 5), sequence.new_zeros(4, 5))
    for step in sequence:
        state = layer(step, state)
        expected = reference(step, layer.weights, layer.bias, *expected)
    assert state is not None
    torch.testing.assert_close(state, expected)
    parameters = list(layer.parameters())
    gradients = torch.autograd.grad(state[0].sum(), parameters)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected[0].sum(), parameters))


WRONG = {
    "input of one dimension": (0, lambda t: t[0], r"input must be \[batch, features\], got \[3\]"),
    "hidden of one dimension": (3, lambda t: t[0], r"hidden must be \[batch, state\], got \[5\]"),
    "other batch": (3, lambda t: t[:1], r"hidden must be \[batch, state\] = \[4, 5\], got \[1, 5\]"),
    "other cell": (4, lambda t: t[:, :2], r"cell must be \[batch, state\] = \[4, 5\], got \[4, 2\]"),
    "weights turned": (
        1,
        lambda t: t.t(),
        r"weights must be \[3 \* state, state \+ features\] = \[15, 8\], got \[8, 15\]",
    ),
    "short bias": (2, lambda t: t[:5], r"bias must be \[3 \* state\] = \[15\], got \[5\]"),
    "half precision": (0, lambda t: t.half(), "input must be float32 or float64, got Half"),
    "mixed dtypes": (1, lambda t: t.float(), "weights must have the dtype of input, Double, got Float"),
    "other device": (2, lambda t: t.to("meta"), "bias must be on the device of input, .*, got meta"),
}


@pytest.mark.parametrize(("place", "change", "message"), WRONG.values(), ids=WRONG.keys())
def test_refused(device: str, place: int, change: object, message: str) -> None:
    arguments = draw((4, 3, 5), device, grad=False)
    arguments[place] = change(arguments[place])  # type: ignore[operator]
    with pytest.raises(RuntimeError, match=message):
        lltm(*arguments)
