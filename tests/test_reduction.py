"""The sums that losses are made of: derivatives, memory, messages."""

import re
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from drawn import INPUTS, OUTPUTS, draw_factors, draw_features, draw_labels, draw_layer, draw_target, refusal
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch_sparse_ops import _chunks, _reduction, _topk, losses

OPERATORS = torch.ops.torch_sparse_ops


@pytest.mark.parametrize("reduction", ["log_sum_exp", "softplus"])
@pytest.mark.parametrize("scaled", [True, False])
def test_opcheck(reduction: str, scaled: bool) -> None:
    layer, features = draw_layer(), draw_features((3,))
    scales = draw_factors(torch.float32) if scaled else None
    columns = draw_labels(3).where(draw_labels(3) >= 0, torch.iinfo(torch.int64).min)
    tensors = (features, layer.weight, layer.locations, layer.bias, columns, scales)
    problem = (*tensors, reduction, torch.float32, 0, OUTPUTS)
    torch.library.opcheck(OPERATORS.ffi_reduce.default, problem)
    plain = [value.detach() if isinstance(value, Tensor) else value for value in problem]
    results = [result.detach() for result in OPERATORS.ffi_reduce(*plain)]
    for mask in product([True, False], repeat=3):
        arguments = (results[0], *results, *plain, list(mask))
        torch.library.opcheck(OPERATORS.ffi_reduce_backward.default, arguments)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("reduction", ["log_sum_exp", "softplus"])
def test_derivatives_are_those_of_differences(reduction: str) -> None:
    layer = draw_layer(torch.float64, outputs=23)
    scales = draw_factors(torch.float64)[:23]

    def reduce(features: Tensor, weights: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        tensors = (features, weights, layer.locations, bias, torch.tensor([[3, 22], [0, 5]]), scales)
        results: tuple[Tensor, ...] = OPERATORS.ffi_reduce(*tensors, reduction, torch.float64, 0, 23)
        return results

    features = draw_features((2,), torch.float64)
    assert torch.autograd.gradcheck(reduce, (features, *layer.parameters()))


@pytest.mark.parametrize("index", range(3))
def test_only_gradients_that_are_needed_are_computed(index: int) -> None:
    layer, features = draw_layer(), draw_features((4,))
    tensors = [features, *layer.parameters()]
    for number, tensor in enumerate(tensors):
        tensor.requires_grad_(number == index)
    with torch.profiler.profile(record_shapes=True) as profile:
        losses.linear_cross_entropy(features, layer, draw_target((4,))).backward()
    events = [event for event in profile.events() if event.name == "torch_sparse_ops::ffi_backward"]
    assert [event.concrete_inputs[4] for event in events] == [[number == index for number in range(3)]]
    assert [tensor.grad is not None for tensor in tensors] == [number == index for number in range(3)]


@pytest.mark.usefixtures("blocks")
def test_a_location_out_of_range_is_refused() -> None:
    layer = draw_layer()
    layer.locations[1002, 1] = INPUTS
    with refusal("]: received 30, accepted is 0 to 29 (in_features - 1)", RuntimeError) as caught:
        losses.linear_cross_entropy(torch.ones(1, INPUTS), layer, torch.tensor([0]))
    first, row = re.findall(r"outputs (\d+) to .*locations\[(\d+), 1\]", str(caught.value))[0]
    assert int(first) + int(row) == 1002


def test_second_derivatives_are_refused() -> None:
    features = draw_features((3,))
    loss = losses.linear_cross_entropy(features, draw_layer(), draw_target((3,)))
    (gradient,) = torch.autograd.grad(loss, features, create_graph=True)
    with refusal(
        "have first derivatives only; for second ones apply torch's loss to the logits", RuntimeError
    ):
        gradient.sum().backward()


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Any]]] = {
    "vmap": torch.vmap,
    "grad": torch.func.grad,
    "jacrev": torch.func.jacrev,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_refused(name: str) -> None:
    layer, target = draw_layer(), torch.zeros((), dtype=torch.int64)
    transformed = TRANSFORMS[name](lambda features: losses.linear_cross_entropy(features, layer, target))
    with refusal("inside of those apply torch's loss to layer(features), which does", RuntimeError):
        transformed(torch.ones(3, INPUTS) if name == "vmap" else torch.ones(INPUTS))


# ---- memory


class LargestTensor(TorchDispatchMode):
    """Watches every tensor that is made, inside of the losses' operators too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numel = 0
        self.kernels: dict[Any, Callable[..., Any]] = {
            OPERATORS.ffi_reduce.default: _reduction._ffi_reduce,
            OPERATORS.ffi_reduce_backward.default: _reduction._ffi_reduce_backward,
            OPERATORS.ffi_topk.default: _topk._ffi_topk,
        }

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: dict[str, Any] | None = None
    ) -> Any:
        if function in self.kernels:
            with self:
                return self.kernels[function](*arguments)
        result = function(*arguments, **(options or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


def test_no_more_than_a_block_of_logits_is_ever_held() -> None:
    rows, outputs = 48, 50_000
    layer, features = draw_layer(outputs=outputs), draw_features((rows,))
    target, labels = torch.arange(rows), torch.arange(2 * rows).reshape(rows, 2)
    with LargestTensor() as mode:
        losses.linear_cross_entropy(features, layer, target, label_smoothing=0.1).backward()
        losses.linear_binary_cross_entropy_with_logits(features, layer, labels).backward()
        losses.linear_topk(features, layer, 5)
    assert layer.weight.numel() < mode.numel <= _chunks.BLOCKS["cpu"].logits < rows * outputs
    with LargestTensor() as mode:
        F.cross_entropy(layer(features), target)
    assert mode.numel == rows * outputs  # it does see logits
