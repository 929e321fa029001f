"""``ffi_topk``: the largest outputs of a fixed fan-in layer, without all logits.

    ffi_topk(Tensor features, Tensor weights, Tensor locations, Tensor? bias, SymInt k, ScalarType dtype)
        -> (Tensor values, Tensor indices)

Rows are ordered by value, largest first (NaN above all, as in ``torch.topk``), equal values by index, lowest
first: so the result depends neither on blocks nor on shards. ``torch.topk`` promises no order of equal
values; in 16 bits there are many. A layer of fewer than k outputs fills up with minus infinity at
``NO_INDEX``.
"""

import math

import torch
from torch import Tensor, nn

from torch_sparse_ops._chunks import Layer, cut_rows, iterate_chunks

NO_INDEX = torch.iinfo(torch.int64).max

_library = torch.library.Library("torch_sparse_ops", "FRAGMENT")
_SCHEMA = (
    "ffi_topk(Tensor features, Tensor weights, Tensor locations, Tensor? bias, SymInt k, ScalarType dtype)"
    " -> (Tensor, Tensor)"
)


def keep_first(values: Tensor, indices: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k first of candidates ``[rows, candidates]``, which may come in any order."""
    order = indices.argsort(dim=1)
    return _keep_largest(values.gather(1, order), indices.gather(1, order), k)


def _keep_largest(values: Tensor, indices: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k first of candidates whose indices ascend."""
    values, order = values.sort(dim=1, descending=True, stable=True)
    return values[:, :k], indices.gather(1, order[:, :k])


def _find_first(logits: Tensor, k: int, first: int) -> tuple[Tensor, Tensor]:
    """Return values and indices of the k first outputs of a block, which begins with output ``first``.

    The outputs are taken in groups of neighbours. What is sought lies in the k groups whose largest values
    are first: of k groups before another one, each has an output that comes before all outputs of that one.
    """
    width = logits.shape[1]
    size = 1 << math.isqrt(width // k).bit_length()  # so that there are about as many groups as candidates
    if width % size:
        logits = nn.functional.pad(logits, (0, -width % size), value=-torch.inf)
    groups = logits.unflatten(1, (-1, size))
    best = groups.amax(2).sort(dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
    indices = (best[:, :, None] * size + torch.arange(size, device=logits.device)).flatten(1)
    values = groups.gather(1, best[:, :, None].expand(-1, -1, size)).flatten(1)
    return _keep_largest(values, (first + indices).where(indices < width, NO_INDEX), k)


def _ffi_topk(
    features: Tensor, weights: Tensor, locations: Tensor, bias: Tensor | None, k: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    batch, features = features.shape[0], features.to(dtype)
    values = features.new_full((batch, k), -torch.inf)
    indices = features.new_full((batch, k), NO_INDEX, dtype=torch.int64)
    with torch.autocast(features.device.type, enabled=False):
        for chunk in iterate_chunks(Layer(weights, locations, bias, dtype), features) if k > 0 else ():
            for rows in cut_rows(features):
                logits = chunk.compute_logits(features[rows])
                found, places = _find_first(logits, k, chunk.outputs.start)
                del logits  # before the next ones are made
                both = torch.cat([values[rows], found.to(dtype)], 1), torch.cat([indices[rows], places], 1)
                values[rows], indices[rows] = keep_first(*both, k)
    return values, indices


def _ffi_topk_fake(
    features: Tensor, weights: Tensor, locations: Tensor, bias: Tensor | None, k: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    size = (features.shape[0], k)
    return features.new_empty(size, dtype=dtype), features.new_empty(size, dtype=torch.int64)


def register() -> None:
    """Define the operator; the library must be loaded."""
    _library.define(_SCHEMA)
    for key in ("CPU", "CUDA"):
        _library.impl("ffi_topk", _ffi_topk, key)
    torch.library.register_fake("torch_sparse_ops::ffi_topk", _ffi_topk_fake)
