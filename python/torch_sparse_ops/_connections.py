"""Connections of a layer: checked, ranked, and exchanged together with what belongs to them."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from torch_sparse_ops.nn import FixedFanInLinear

CHUNK_ENTRIES = 2**20  # numbers that are held at a time: of gradients of absent connections, or of weights


def iterate_rows(rows: slice, width: int) -> Iterator[slice]:
    """Yield consecutive parts of some rows that hold at most ``CHUNK_ENTRIES`` numbers."""
    step = max(1, CHUNK_ENTRIES // max(1, width))
    for first in range(rows.start, rows.stop, step):
        yield slice(first, min(first + step, rows.stop))


def all_rows(layer: FixedFanInLinear) -> slice:
    return slice(0, layer.out_features)


def check_connections(layer: FixedFanInLinear) -> None:
    """Check that every output is connected to ``fan_in`` distinct inputs.

    Raises:
        ValueError: the locations have another shape, or a row an input twice or one that does not exist. The
            message names the row.
    """
    accepted = [layer.out_features, layer.fan_in]
    if list(layer.locations.shape) != accepted:
        raise ValueError(f"locations: received shape {list(layer.locations.shape)}, accepted is {accepted}")
    for rows in iterate_rows(all_rows(layer), layer.fan_in):
        ordered = layer.locations[rows].long().sort(dim=1).values
        outside = (ordered < 0) | (ordered >= layer.in_features)
        accepted_range = f"0 to {layer.in_features - 1} (in_features - 1)"
        _refuse_first(rows, ordered, outside, "", accepted_range)
        _refuse_first(rows, ordered[:, 1:], ordered[:, 1:] == ordered[:, :-1], " twice", "distinct inputs")


def _refuse_first(rows: slice, ordered: Tensor, wrong: Tensor, how: str, accepted: str) -> None:
    if bool(wrong.any()):
        row, place = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"locations of row {rows.start + row}: received {int(ordered[row, place])}{how}, "
            f"accepted is {accepted}"
        )


def find_strongest(weights: Tensor, count: int) -> Tensor:
    """Return the slots of the largest magnitudes of every row, ``[rows, count]``."""
    return weights.abs().topk(count, dim=1, sorted=False).indices


def find_aligned(name: str, weight: nn.Parameter, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return what an optimiser keeps for every single weight."""
    aligned = []
    for key, value in optimizer.state.get(weight, {}).items():
        if not isinstance(value, Tensor) or value.dim() == 0:
            continue  # such as the number of steps
        if value.shape != weight.shape:
            raise ValueError(
                f"{name}: {type(optimizer).__name__} keeps {key!r} of shape {list(value.shape)}; accepted is "
                f"{list(weight.shape)}, one number for each weight, as SGD, Adam and AdamW keep"
            )
        aligned.append(value)
    return aligned


def exchange(
    layer: FixedFanInLinear, rows: slice, connections: Tensor, drawn: Tensor, aligned: list[Tensor]
) -> None:
    """Give some rows other connections.

    Args:
        layer: to change in place.
        rows: of the layer.
        connections: ``[rows, fan_in]``, int64, distinct and ascending in each row.
        drawn: ``[rows, fan_in]`` or a scalar, the weights of connections that did not exist.
        aligned: tensors with a number for each weight. It stays with a connection that stays; of a new one it
            is 0.
    """
    present, order = layer.locations[rows].long().sort(dim=1)
    places = torch.searchsorted(present, connections).clamp(max=layer.fan_in - 1)
    stays, slots = present.gather(1, places) == connections, order.gather(1, places)
    for tensor in aligned:
        tensor[rows] = tensor[rows].gather(1, slots).where(stays, 0)
    layer.weight[rows] = layer.weight[rows].gather(1, slots).where(stays, drawn)
    layer.locations[rows] = connections.to(layer.locations.dtype)
