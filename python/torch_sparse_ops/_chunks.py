"""A fixed fan-in layer in chunks of its outputs, so that only a block of logits is held at a time."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

#: Most logits that are held at a time: 16 MiB in float32. From an eighth of it to four times as many, the
#: time of a step on one thread differs by a few percent; smaller blocks would only start kernels more often.
BLOCK_LOGITS = 2**22
#: Most rows of a block: with more it would be so narrow that the operators spend their time on packing.
BLOCK_ROWS = 1024


class Layer(NamedTuple):
    """A layer's tensors, and the dtype that its products are computed in."""

    weights: Tensor
    locations: Tensor
    bias: Tensor | None
    dtype: torch.dtype


class Chunk(NamedTuple):
    """Consecutive outputs of a layer; weights and bias in the dtype to compute in."""

    outputs: slice
    weights: Tensor
    locations: Tensor
    bias: Tensor | None

    def compute_logits(self, features: Tensor) -> Tensor:
        """Return the logits of some rows, ``[rows, outputs]``, in the dtype of sums; they may be overwritten.

        Raises:
            RuntimeError: as ``ffi_forward``, which counts the outputs of this chunk only.
        """
        try:
            result: Tensor = torch.ops.torch_sparse_ops.ffi_forward(features, *self[1:])
        except RuntimeError as error:
            first, last = self.outputs.start, self.outputs.stop - 1
            raise RuntimeError(f"outputs {first} to {last}, counted from the first one: {error}") from error
        return result.to(sum_dtype(result.dtype))


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that the operators sum values of a dtype in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _cut(size: int, step: int) -> list[slice]:
    return [slice(first, min(first + step, size)) for first in range(0, size, step)]


def cut_rows(batch: int) -> list[slice]:
    """Return the rows of each block, of which there is at least one, if an empty one."""
    return _cut(batch, BLOCK_ROWS) or [slice(0, 0)]


def iterate_chunks(layer: Layer, batch: int) -> Iterator[Chunk]:
    """Yield the chunks of a layer, as wide as a block of logits may be for the next power of two of rows.

    Few widths occur, then: what CUDA's backward pass keeps for the locations of a chunk serves again.
    """
    weights, locations, bias, dtype = layer
    doublings = (max(1, min(batch, BLOCK_ROWS)) - 1).bit_length()
    for outputs in _cut(weights.shape[0], max(1, BLOCK_LOGITS >> doublings)):
        offsets = None if bias is None else bias[outputs].to(dtype)
        yield Chunk(outputs, weights[outputs].to(dtype), locations[outputs], offsets)
