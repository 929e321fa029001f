"""Losses and predictions of a fixed fan-in layer that never hold its outputs.

A million logits for each row of a batch take more memory than the layer. These functions compute them in
blocks, forward and backward, and keep one number a row; the result is that of torch's function on
``layer(features)``. Each is a function of features, layer and labels, and a module that owns its layer:

    loss = LinearCrossEntropyLoss(FixedFanInLinear(512, 2_000_000, 32))
    loss(features, target).backward()
    loss.topk(features, 5).indices

Results are float32 for 16-bit layers, as under autocast. Under autocast, blocks of weights are cast as they
are used: there is no cast copy of the layer. First derivatives only. The operators behind it are defined when
this module is imported.
"""

from collections.abc import Callable
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from torch_sparse_ops import _reduction, _topk
from torch_sparse_ops._reduction import NO_COLUMN, Problem, observe_grad_output
from torch_sparse_ops.nn import FixedFanInLinear

__all__ = [
    "LinearBCEWithLogitsLoss",
    "LinearCrossEntropyLoss",
    "linear_binary_cross_entropy_with_logits",
    "linear_cross_entropy",
    "linear_topk",
    "pad_labels",
]

NO_LABEL = -1  # pads rows with fewer labels than others

_reduction.register()
_topk.register()


def _refuse(function: str, argument: str, received: object, accepted: str) -> NoReturn:
    raise ValueError(f"{function}: {argument}: received {received}, accepted is {accepted}")


def _check_features(function: str, features: Tensor, layer: FixedFanInLinear) -> None:
    if features.dim() < 1 or features.shape[-1] != layer.in_features:
        _refuse(function, "features", f"shape {list(features.shape)}", f"shape [..., {layer.in_features}]")


def _check_per_output(function: str, argument: str, tensor: Tensor | None, layer: FixedFanInLinear) -> None:
    if tensor is not None and tensor.shape != (layer.out_features,):
        _refuse(function, argument, f"shape {list(tensor.shape)}", f"shape [{layer.out_features}]")


def choose_dtype(function: str, features: Tensor, layer: FixedFanInLinear) -> torch.dtype:
    """Return the dtype to compute products in: that of the layer, or autocast's, as ``ffi_forward`` does."""
    device, dtype = features.device.type, layer.weight.dtype
    if torch.float64 not in (features.dtype, dtype) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    if features.dtype != dtype:
        accepted = f"{dtype}, as the layer's weights; convert one of them, or use torch.autocast"
        _refuse(function, "features", features.dtype, accepted)
    return dtype


def is_sharded(layer: FixedFanInLinear) -> bool:
    """Return whether the parameters are DTensors, without loading the module that defines them."""
    return hasattr(layer.weight, "device_mesh")


def _reduce(
    function: str,
    features: Tensor,
    layer: FixedFanInLinear,
    columns: Tensor,
    scales: Tensor | None,
    reduction: str,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = choose_dtype(function, features, layer)
    rows = features.unsqueeze(0).flatten(0, -2)
    if is_sharded(layer):
        from torch_sparse_ops import distributed

        return distributed.reduce(rows, layer, columns, scales, reduction, dtype)
    problem = Problem(
        *(rows, layer.weight, layer.locations, layer.bias, columns, scales),
        *(reduction, dtype, 0, layer.out_features),
    )
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.torch_sparse_ops.ffi_reduce(*problem)
    if layer.grad_output_observer is not None and result[0].requires_grad:
        observe_grad_output(problem, result, layer.grad_output_observer)
    return result


# ---- cross-entropy

#: From the losses of all rows and the weights of their targets, to the result.
_REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "none": lambda losses, weights: losses,
    "mean": lambda losses, weights: losses.sum() / weights.sum(),
    "sum": lambda losses, weights: losses.sum(),
}


def _check_cross_entropy(
    features: Tensor, layer: FixedFanInLinear, target: Tensor, reduction: str, label_smoothing: float
) -> None:
    function = "linear_cross_entropy"
    _check_features(function, features, layer)
    if target.is_floating_point():
        accepted = "torch.int64; for class probabilities apply torch's cross_entropy to layer(features)"
        _refuse(function, "target", target.dtype, accepted)
    if target.dtype != torch.int64:
        _refuse(function, "target", target.dtype, "torch.int64, as from target.long()")
    if target.shape != features.shape[:-1]:
        accepted = f"shape {list(features.shape[:-1])}, that of features without the last dimension"
        _refuse(function, "target", f"shape {list(target.shape)}", accepted)
    if reduction not in _REDUCTIONS:
        _refuse(function, "reduction", repr(reduction), " or ".join(map(repr, _REDUCTIONS)))
    if not 0 <= label_smoothing <= 1:
        _refuse(function, "label_smoothing", label_smoothing, "0 to 1")


def linear_cross_entropy(
    features: Tensor,
    layer: FixedFanInLinear,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute ``torch.nn.functional.cross_entropy(layer(features), target, ...)`` without the logits.

    Args:
        features: ``[..., in_features]``.
        layer: whose outputs are the classes.
        target: ``[...]``, int64 classes; a row whose target is ``ignore_index`` counts for nothing.
        weight: ``[out_features]``, a factor for the loss of each class.
        ignore_index: see ``target``.
        reduction: ``"mean"`` (over the weights of the targets), ``"sum"`` or ``"none"``.
        label_smoothing: share of the uniform distribution that is mixed into the target, 0 to 1.

    Returns:
        A scalar, or ``[...]`` for ``"none"``; float64 for float64, float32 otherwise.

    Raises:
        ValueError: an argument has a wrong shape, dtype or value.
        RuntimeError: a target is neither a class nor ``ignore_index``. A GPU reports it later, as a failed
            assertion: nothing waits for the check.
    """
    _check_cross_entropy(features, layer, target, reduction, label_smoothing)
    _check_per_output("linear_cross_entropy", "weight", weight, layer)
    kept = target.flatten() != ignore_index
    columns = target.flatten().where(kept, NO_COLUMN)
    scales = None
    if label_smoothing > 0:
        ones = torch.ones(1, device=features.device).expand(layer.out_features)
        scales = ones if weight is None else weight
    function = "linear_cross_entropy"
    log_sum_exp, scaled, picked = _reduce(function, features, layer, columns[:, None], scales, "log_sum_exp")
    weights = kept.to(picked.dtype)
    if weight is not None:
        weights = weights * weight.to(weights.dtype)[columns.clamp(0)]
    losses = weights * (log_sum_exp - picked[:, 0])
    if scales is not None:
        smooth = (log_sum_exp * scales.sum(dtype=picked.dtype) - scaled) / layer.out_features
        losses = (1 - label_smoothing) * losses + label_smoothing * smooth
    losses = losses.where(kept, 0)
    return _REDUCTIONS[reduction](losses.reshape(target.shape), weights)


# ---- binary cross-entropy


def pad_labels(labels: Tensor) -> Tensor:
    """Return the columns of the ones in a sparse CSR matrix ``[rows, out_features]`` as padded lists.

    To be used where batches are made: it waits for the matrix's device.

    Returns:
        ``[rows, most labels of a row]``, int64; shorter rows end in -1.

    Raises:
        ValueError: the layout is another, or a value is not 1.
    """
    if labels.layout != torch.sparse_csr or labels.dim() != 2:
        accepted = "a 2-dimensional torch.sparse_csr, as from labels.to_sparse_csr()"
        _refuse("pad_labels", "labels", f"{labels.dim()}-dimensional {labels.layout}", accepted)
    if bool((labels.values() != 1).any()):
        accepted = "1 for each label; for label probabilities use torch's loss on layer(features)"
        _refuse("pad_labels", "labels", "values other than 1", accepted)
    counts = labels.crow_indices().diff()
    padded = torch.full((labels.shape[0], int(counts.max())), NO_LABEL, device=labels.device)
    places = torch.arange(padded.shape[1], device=labels.device)
    padded[places < counts[:, None]] = labels.col_indices().long()
    return padded


def linear_binary_cross_entropy_with_logits(
    features: Tensor,
    layer: FixedFanInLinear,
    labels: Tensor,
    *,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Compute ``binary_cross_entropy_with_logits(layer(features), ...)`` with few labels, without the logits.

    Args:
        features: ``[..., in_features]``.
        layer: whose outputs are the classes.
        labels: ``[..., labels]``, int64: the classes that are 1 for each row, distinct; shorter rows are
            padded with -1. :func:`pad_labels` makes them from a sparse matrix.
        pos_weight: ``[out_features]``, a factor for the loss of each class where it is 1.
        reduction: ``"mean"`` over rows and outputs, or ``"sum"``.

    Returns:
        A scalar; float64 for float64, float32 otherwise.

    Raises:
        ValueError: an argument has a wrong shape, dtype or value.
        RuntimeError: a label is neither a class nor -1, or occurs twice in a row. A GPU reports it later, as
            a failed assertion: nothing waits for the check.
    """
    function = "linear_binary_cross_entropy_with_logits"
    _check_binary_cross_entropy(function, features, layer, labels, reduction)
    _check_per_output(function, "pos_weight", pos_weight, layer)
    labels = labels.unsqueeze(0).flatten(0, -2)
    present = labels != NO_LABEL
    columns = labels.where(present, NO_COLUMN)
    softplus, _, picked = _reduce(function, features, layer, columns, None, "softplus")
    # Each output counts as a zero in the sum, log(1 + exp(x)); where it is a one, that is log(1 + exp(-x)).
    zero, one = -nn.functional.logsigmoid(-picked), -nn.functional.logsigmoid(picked)
    if pos_weight is not None:
        one = one * pos_weight.to(one.dtype)[columns.clamp(0)]
    total = softplus.sum() + (one - zero).where(present, 0).sum()
    return total if reduction == "sum" else total / (softplus.numel() * layer.out_features)


def _check_binary_cross_entropy(
    function: str, features: Tensor, layer: FixedFanInLinear, labels: Tensor, reduction: str
) -> None:
    _check_features(function, features, layer)
    if labels.layout != torch.strided or labels.dtype != torch.int64:
        accepted = "torch.strided torch.int64; pad_labels makes them from a sparse CSR matrix"
        _refuse(function, "labels", f"{labels.layout} {labels.dtype}", accepted)
    if labels.shape[:-1] != features.shape[:-1] or labels.dim() != features.dim():
        accepted = f"shape {[*features.shape[:-1], 'labels']}"
        _refuse(function, "labels", f"shape {list(labels.shape)}", accepted.replace("'", ""))
    if reduction not in ("mean", "sum"):
        accepted = "'mean' or 'sum'; the losses of single outputs would take the memory of the logits"
        _refuse(function, "reduction", repr(reduction), accepted)


# ---- prediction


class TopK(NamedTuple):
    """Outputs of a layer, largest first, as ``torch.topk`` returns them."""

    values: Tensor
    indices: Tensor


@torch.no_grad()
def linear_topk(features: Tensor, layer: FixedFanInLinear, k: int) -> TopK:
    """Compute ``torch.topk(layer(features), k)`` without the logits and without a gradient.

    Equal values are ordered by index, the lowest first, so that the result is one and the same for any number
    of processes. ``torch.topk`` leaves open which of them it returns.

    Args:
        features: ``[..., in_features]``.
        layer: whose outputs are asked for.
        k: how many, at most ``out_features``.

    Returns:
        ``values [..., k]`` in the dtype of the logits, and ``indices [..., k]``, int64.

    Raises:
        ValueError: an argument has a wrong shape, dtype or value.
    """
    _check_features("linear_topk", features, layer)
    if not 0 <= k <= layer.out_features:
        _refuse("linear_topk", "k", k, f"0 to {layer.out_features} (out_features)")
    dtype = choose_dtype("linear_topk", features, layer)
    rows = features.unsqueeze(0).flatten(0, -2)
    if is_sharded(layer):
        from torch_sparse_ops import distributed

        values, indices = distributed.topk(rows, layer, k, dtype)
    else:
        tensors = (rows, layer.weight, layer.locations, layer.bias)
        values, indices = torch.ops.torch_sparse_ops.ffi_topk(*tensors, k, dtype)
    size = (*features.shape[:-1], k)
    return TopK(values.reshape(size), indices.reshape(size))


# ---- modules


class _LayerLoss(nn.Module):
    """A loss that owns its layer."""

    def __init__(self, layer: FixedFanInLinear, reduction: str) -> None:
        super().__init__()
        self.layer = layer
        self.reduction = reduction

    def topk(self, features: Tensor, k: int) -> TopK:
        """Return the ``k`` largest outputs for ``features [..., in_features]``, as :func:`linear_topk`."""
        return linear_topk(features, self.layer, k)


class LinearCrossEntropyLoss(_LayerLoss):
    """A fixed fan-in layer with its cross-entropy: :func:`linear_cross_entropy` as a module.

    Args:
        layer: whose outputs are the classes; owned, so its parameters are this module's.
        weight: as of :func:`linear_cross_entropy`; a buffer.
        ignore_index: as of :func:`linear_cross_entropy`.
        reduction: as of :func:`linear_cross_entropy`.
        label_smoothing: as of :func:`linear_cross_entropy`.
    """

    weight: Tensor | None

    def __init__(
        self,
        layer: FixedFanInLinear,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(layer, reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, features: Tensor, target: Tensor) -> Tensor:
        """Return the loss of ``features [..., in_features]`` for classes ``target [...]``."""
        return linear_cross_entropy(
            features,
            self.layer,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class LinearBCEWithLogitsLoss(_LayerLoss):
    """A fixed fan-in layer with the binary cross-entropy of each of its outputs.

    :func:`linear_binary_cross_entropy_with_logits` as a module.

    Args:
        layer: whose outputs are the classes; owned, so its parameters are this module's.
        pos_weight: as of :func:`linear_binary_cross_entropy_with_logits`; a buffer.
        reduction: as of :func:`linear_binary_cross_entropy_with_logits`.
    """

    pos_weight: Tensor | None

    def __init__(
        self, layer: FixedFanInLinear, *, pos_weight: Tensor | None = None, reduction: str = "mean"
    ) -> None:
        super().__init__(layer, reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of ``features [..., in_features]`` for padded ``labels [..., labels]``."""
        return linear_binary_cross_entropy_with_logits(
            features, self.layer, labels, pos_weight=self.pos_weight, reduction=self.reduction
        )
