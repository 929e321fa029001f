"""Losses without the logits, against torch's on the logits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import (
    IGNORED,
    INPUTS,
    OUTPUTS,
    draw_factors,
    draw_features,
    draw_labels,
    draw_layer,
    draw_target,
    make_dense,
    refusal,
)
from torch import Tensor
from torch.nn import functional as F
from torch_sparse_ops import losses
from torch_sparse_ops._chunks import sum_dtype
from torch_sparse_ops.nn import FixedFanInLinear

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
# Relative to the largest value; what is compared with is rounded itself.
TOLERANCES = {torch.float32: 2e-6, torch.float64: 1e-14, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def assert_equal_losses(
    features: Tensor,
    layer: FixedFanInLinear,
    loss: Callable[[], Tensor],
    expected: Callable[[Tensor], Tensor],
) -> None:
    """Compare values and all gradients with those of a loss on the logits."""
    inputs = [features, *layer.parameters()]
    actual, exact = loss(), expected(layer(features))
    assert actual.dtype == sum_dtype(layer.weight.dtype)
    assert actual.shape == exact.shape
    cotangent = torch.linspace(1, 2, actual.numel(), dtype=actual.dtype).reshape(actual.shape)
    gradients = torch.autograd.grad(actual, inputs, cotangent)
    exact_gradients = torch.autograd.grad(exact, inputs, cotangent.to(exact.dtype))
    for one, other in zip((actual, *gradients), (exact, *exact_gradients), strict=True):
        assert one.shape == other.shape
        largest = max(other.double().abs().flatten().tolist(), default=0.0)
        assert bool(((one.double() - other.double()).abs() <= TOLERANCES[layer.weight.dtype] * largest).all())


# ---- cross-entropy


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_is_torchs(
    reduction: str, smoothing: float, weighted: bool, dtype: torch.dtype
) -> None:
    layer, features, target = draw_layer(dtype), draw_features((11,), dtype), draw_target((11,))
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
    options["weight"] = draw_factors(dtype) if weighted else None
    assert_equal_losses(
        features,
        layer,
        lambda: losses.linear_cross_entropy(features, layer, target, **options),
        lambda logits: F.cross_entropy(logits, target, **options),
    )


@pytest.mark.parametrize("leading", [(), (1,), (2, 3), (4, 1, 2), (0,)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_features_may_have_any_leading_dimensions(leading: tuple[int, ...], bias: bool) -> None:
    layer, features, target = (
        draw_layer(torch.float64, bias=bias),
        draw_features(leading, torch.float64),
        draw_target(leading),
    )
    flat = target.flatten()
    assert_equal_losses(
        features,
        layer,
        lambda: losses.linear_cross_entropy(features, layer, target, reduction="none"),
        lambda logits: F.cross_entropy(logits.reshape(-1, OUTPUTS), flat, reduction="none").reshape(leading),
    )


def test_any_class_may_be_ignored() -> None:
    layer, features = draw_layer(), draw_features((4,))
    target = torch.tensor([3, 7, 3, 9])
    loss = losses.linear_cross_entropy(features, layer, target, ignore_index=3)
    torch.testing.assert_close(loss, F.cross_entropy(layer(features), target, ignore_index=3))
    nothing = losses.linear_cross_entropy(features, layer, torch.full((4,), IGNORED))
    assert nothing.isnan()  # a mean over nothing, as torch's


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("scale", [1e4, 1e38])
def test_large_logits_do_not_overflow(scale: float) -> None:
    layer, features, target = draw_layer(), draw_features((5,)), draw_target((5,))
    large = (features.detach() * scale).requires_grad_()
    loss = losses.linear_cross_entropy(large, layer, target, reduction="none")
    expected = F.cross_entropy(layer(large), target, reduction="none")
    torch.testing.assert_close(loss, expected)
    assert bool(torch.autograd.grad(loss.sum(), large)[0].isfinite().all())


@pytest.mark.usefixtures("blocks")
def test_classes_may_be_masked_by_a_bias_of_minus_infinity() -> None:
    layer, features, target = draw_layer(), draw_features((5,)), torch.arange(5)
    with torch.no_grad():
        layer.get_parameter("bias")[5:] = -torch.inf  # all of most blocks
    assert_equal_losses(
        features,
        layer,
        lambda: losses.linear_cross_entropy(features, layer, target),
        lambda logits: F.cross_entropy(logits, target),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_certain_class_costs_nothing_and_never_less(dtype: torch.dtype) -> None:
    layer, features = draw_layer(dtype), draw_features((8,), dtype)
    with torch.no_grad():
        layer.get_parameter("bias")[17] += 200
    loss = losses.linear_cross_entropy(features, layer, torch.full((8,), 17), reduction="none")
    assert loss.tolist() == [0] * 8


# ---- binary cross-entropy


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_binary_cross_entropy_is_torchs(reduction: str, weighted: bool, dtype: torch.dtype) -> None:
    layer, features, labels = draw_layer(dtype), draw_features((11,), dtype), draw_labels(11)
    options: dict[str, Any] = {
        "reduction": reduction,
        "pos_weight": draw_factors(dtype) if weighted else None,
    }
    dense = make_dense(labels, dtype)
    assert_equal_losses(
        features,
        layer,
        lambda: losses.linear_binary_cross_entropy_with_logits(features, layer, labels, **options),
        lambda logits: F.binary_cross_entropy_with_logits(logits, dense, **options),
    )


@pytest.mark.parametrize("leading", [(), (2, 3), (0,)], ids=str)
def test_labels_have_the_leading_dimensions_of_features(leading: tuple[int, ...]) -> None:
    layer, features = draw_layer(), draw_features(leading)
    labels = draw_labels(features[..., 0].numel())
    expected = F.binary_cross_entropy_with_logits(
        layer(features).reshape(-1, OUTPUTS), make_dense(labels, torch.float32), reduction="sum"
    )
    labels = labels.reshape(*leading, 6)
    loss = losses.linear_binary_cross_entropy_with_logits(features, layer, labels, reduction="sum")
    torch.testing.assert_close(loss, expected)


def test_there_may_be_no_label_at_all() -> None:
    layer, features = draw_layer(), draw_features((3,))
    loss = losses.linear_binary_cross_entropy_with_logits(
        features, layer, torch.empty(3, 0, dtype=torch.int64)
    )
    torch.testing.assert_close(loss, F.softplus(layer(features)).mean())


def test_a_sparse_matrix_becomes_padded_lists() -> None:
    labels = draw_labels(9)
    matrix = make_dense(labels, torch.float32).to_sparse_csr()
    padded = losses.pad_labels(matrix)
    assert padded.shape == (9, int((labels >= 0).sum(dim=1).max()))
    torch.testing.assert_close(make_dense(padded, torch.float32), matrix.to_dense())
    assert losses.pad_labels(torch.zeros(3, 5).to_sparse_csr()).shape == (3, 0)


# ---- modules


def test_modules_are_the_functions() -> None:
    layer, features, target, labels = draw_layer(), draw_features((6,)), draw_target((6,)), draw_labels(6)
    weight = draw_factors(torch.float32)
    cross_entropy = losses.LinearCrossEntropyLoss(
        layer, weight=weight, ignore_index=IGNORED, reduction="sum", label_smoothing=0.1
    )
    expected = F.cross_entropy(layer(features), target, weight, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(cross_entropy(features, target), expected)
    binary = losses.LinearBCEWithLogitsLoss(layer, pos_weight=weight, reduction="sum")
    dense = make_dense(labels, torch.float32)
    expected = F.binary_cross_entropy_with_logits(layer(features), dense, pos_weight=weight, reduction="sum")
    torch.testing.assert_close(binary(features, labels), expected)
    for module in (cross_entropy, binary):
        assert torch.equal(module.topk(features, 3).indices, layer(features).topk(3).indices)


def test_a_module_holds_its_layer_and_factors() -> None:
    module = losses.LinearCrossEntropyLoss(draw_layer(), weight=draw_factors(torch.float32))
    assert list(module.state_dict()) == ["weight", "layer.weight", "layer.bias", "layer.locations"]
    assert [name for name, _ in module.named_parameters()] == ["layer.weight", "layer.bias"]
    assert module.to(torch.float64).get_buffer("weight").dtype == torch.float64


# ---- in PyTorch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_as_the_layer_and_keeps_parameters(dtype: torch.dtype) -> None:
    layer, features, target = draw_layer(), draw_features((11,)), draw_target((11,))
    with torch.autocast("cpu", dtype=dtype):
        loss = losses.linear_cross_entropy(features, layer, target, label_smoothing=0.1)
        expected = F.cross_entropy(layer(features), target, label_smoothing=0.1)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected.float(), rtol=1e-5, atol=0)
    inputs = (features, *layer.parameters())
    gradients = torch.autograd.grad(loss, inputs)
    for gradient, other in zip(gradients, torch.autograd.grad(expected, inputs), strict=True):
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, other, rtol=0.02, atol=0.02 * other.abs().max().item())


def test_one_graph_serves_every_batch_size() -> None:
    torch._dynamo.reset()
    module, graphs = losses.LinearCrossEntropyLoss(draw_layer(), label_smoothing=0.1), 0

    def count(graph: Any, example_inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    compiled = torch.compile(module, backend=count, fullgraph=True, dynamic=True)
    for rows in (3, 5, 17):
        features, target = draw_features((rows,)), draw_target((rows,))
        torch.testing.assert_close(compiled(features, target), module(features, target))
    assert graphs == 1


def test_compiled_losses_and_gradients_are_the_same() -> None:
    torch._dynamo.reset()
    module = losses.LinearBCEWithLogitsLoss(draw_layer())
    compiled = torch.compile(module, fullgraph=True)
    features, labels = draw_features((5,)), draw_labels(5)
    inputs = (features, *module.parameters())
    actual = torch.autograd.grad(compiled(features, labels), inputs)
    torch.testing.assert_close(actual, torch.autograd.grad(module(features, labels), inputs))


def test_export_with_a_dynamic_batch() -> None:
    module = losses.LinearCrossEntropyLoss(draw_layer())
    shapes = ({0: torch.export.Dim("rows")}, {0: torch.export.Dim("rows")})
    exported = torch.export.export(
        module, (draw_features((3,)).detach(), draw_target((3,))), dynamic_shapes=shapes
    )
    features, target = draw_features((8,)).detach(), draw_target((8,))
    torch.testing.assert_close(exported.module()(features, target), module(features, target))


# ---- messages

CROSS_ENTROPY_REFUSALS: dict[str, dict[str, Any]] = {
    "features: received shape [5, 31], accepted is shape [..., 30]": {"features": torch.ones(5, 31)},
    "features: received torch.float64, accepted is torch.float32, as the layer's weights; convert one of "
    "them, or use torch.autocast": {"features": torch.ones(5, 30, dtype=torch.float64)},
    "target: received torch.float32, accepted is torch.int64; for class probabilities apply torch's "
    "cross_entropy to layer(features)": {"target": torch.ones(5, OUTPUTS)},
    "target: received torch.int32, accepted is torch.int64, as from target.long()": {
        "target": torch.ones(5, dtype=torch.int32)
    },
    "target: received shape [6], accepted is shape [5], that of features without the last dimension": {
        "target": torch.zeros(6, dtype=torch.int64)
    },
    "weight: received shape [7], accepted is shape [1003]": {"weight": torch.ones(7)},
    "reduction: received 'median', accepted is 'none' or 'mean' or 'sum'": {"reduction": "median"},
    "label_smoothing: received 1.5, accepted is 0 to 1": {"label_smoothing": 1.5},
}
BINARY_REFUSALS: dict[str, dict[str, Any]] = {
    "features: received shape [], accepted is shape [..., 30]": {"features": torch.tensor(1.0)},
    "labels: received torch.strided torch.float32, accepted is torch.strided torch.int64; pad_labels makes "
    "them from a sparse CSR matrix": {"labels": torch.ones(5, OUTPUTS)},
    "labels: received torch.sparse_csr torch.int64, accepted is torch.strided torch.int64; pad_labels makes "
    "them from a sparse CSR matrix": {"labels": torch.eye(5, dtype=torch.int64).to_sparse_csr()},
    "labels: received shape [4, 2], accepted is shape [5, labels]": {
        "labels": torch.zeros(4, 2, dtype=torch.int64)
    },
    "labels: received shape [5], accepted is shape [5, labels]": {
        "labels": torch.zeros(5, dtype=torch.int64)
    },
    "pos_weight: received shape [1], accepted is shape [1003]": {"pos_weight": torch.ones(1)},
    "reduction: received 'none', accepted is 'mean' or 'sum'; the losses of single outputs would take the "
    "memory of the logits": {"reduction": "none"},
}


@pytest.mark.parametrize("message", CROSS_ENTROPY_REFUSALS)
def test_cross_entropy_refuses(message: str) -> None:
    arguments = {"features": torch.ones(5, INPUTS), "layer": draw_layer(), "target": draw_target((5,))}
    with refusal(f"linear_cross_entropy: {message}"):
        losses.linear_cross_entropy(**{**arguments, **CROSS_ENTROPY_REFUSALS[message]})


@pytest.mark.parametrize("message", BINARY_REFUSALS)
def test_binary_cross_entropy_refuses(message: str) -> None:
    arguments = {"features": torch.ones(5, INPUTS), "layer": draw_layer(), "labels": draw_labels(5)}
    with refusal(f"linear_binary_cross_entropy_with_logits: {message}"):
        losses.linear_binary_cross_entropy_with_logits(**{**arguments, **BINARY_REFUSALS[message]})


@pytest.mark.parametrize("target", [-1, OUTPUTS, -(2**63) + 1])
def test_a_target_out_of_range_is_refused(target: int) -> None:
    targets = torch.tensor([3, IGNORED, target])
    with refusal(f"row 2: received {target}, accepted is 0 to 1002 (out_features - 1)", RuntimeError):
        losses.linear_cross_entropy(torch.ones(3, INPUTS), draw_layer(), targets)


def test_no_target_is_valid_without_outputs() -> None:
    with refusal("row 0: received 0, accepted is none, of 0 outputs", RuntimeError):
        losses.linear_cross_entropy(torch.ones(1, INPUTS), draw_layer(outputs=0), torch.tensor([0]))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[3, -1], [-1, OUTPUTS]], f"row 1: received {OUTPUTS}, accepted is 0 to 1002 (out_features - 1)"),
        ([[3, -2], [-1, 0]], "row 0: received -2, accepted is 0 to 1002 (out_features - 1)"),
        ([[-1, -1, -1], [4, 0, 4]], "row 1: received 4 twice, accepted are distinct ones"),
    ],
)
def test_invalid_labels_are_refused(labels: list[list[int]], message: str) -> None:
    features = torch.ones(2, INPUTS)
    with refusal(message, RuntimeError):
        losses.linear_binary_cross_entropy_with_logits(features, draw_layer(), torch.tensor(labels))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            torch.eye(3),
            "received 2-dimensional torch.strided, accepted is a 2-dimensional torch.sparse_csr, as from",
        ),
        (torch.eye(3).to_sparse(), "received 2-dimensional torch.sparse_coo, accepted is a 2-dimensional"),
        (
            (torch.eye(3) / 2).to_sparse_csr(),
            "received values other than 1, accepted is 1 for each label; for label",
        ),
    ],
    ids=["dense", "coo", "probabilities"],
)
def test_other_sparse_labels_are_refused(labels: Tensor, message: str) -> None:
    with refusal(f"pad_labels: labels: {message}"):
        losses.pad_labels(labels)
