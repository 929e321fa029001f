"""A fixed fan-in layer in chunks of its outputs, so that only a block of logits is held at a time."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Block(NamedTuple):
    """The most logits that are held at a time, and the most rows they may have."""

    logits: int
    rows: int


#: On the CPU 2 MiB of float32, which stay in the caches until they are reduced, and as few rows as their
#: packed features need to stay there, too: with four times the rows a step takes up to 2.4 times as long,
#: with two or eight times the logits about as long. A GPU needs more at once to be kept busy (not measured).
BLOCKS = {"cpu": Block(2**19, 256), "cuda": Block(2**22, 1024)}


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


def cut_rows(features: Tensor) -> list[slice]:
    """Return the rows of each block, of which there is at least one, if an empty one."""
    return _cut(features.shape[0], BLOCKS[features.device.type].rows) or [slice(0, 0)]


def iterate_chunks(layer: Layer, features: Tensor) -> Iterator[Chunk]:
    """Yield the chunks of a layer, as wide as a block of logits may be for the next power of two of rows.

    Few widths occur, then: what CUDA's backward pass keeps for the locations of a chunk serves again.
    """
    weights, locations, bias, dtype = layer
    block = BLOCKS[features.device.type]
    doublings = (max(1, min(features.shape[0], block.rows)) - 1).bit_length()
    for outputs in _cut(weights.shape[0], max(1, block.logits >> doublings)):
        offsets = None if bias is None else bias[outputs].to(dtype)
        yield Chunk(outputs, weights[outputs].to(dtype), locations[outputs], offsets)
