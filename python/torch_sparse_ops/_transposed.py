"""The connections of each input: what the gradient of the features is summed over on CUDA, in a fixed order.

They are made once for each tensor of locations and kept while its memory lives and its version stays.
A change that torch does not see, such as one through ``.data``, is not seen here either.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from torch_sparse_ops._registration import NAMESPACE

ATOMICS = "TORCH_SPARSE_OPS_ATOMICS"
CHECK = "TORCH_SPARSE_OPS_CHECK_LOCATIONS"
INT32_MAX = torch.iinfo(torch.int32).max

_library = torch.library.Library(NAMESPACE, "IMPL")


class _Key(NamedTuple):
    """A view of memory, whichever tensor object shows it."""

    storage: StorageWeakRef
    offset: int
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    in_features: int


class _Kept(NamedTuple):
    version: int
    offsets: Tensor
    order: Tensor
    stream: torch.cuda.Stream | None
    made: torch.cuda.Event | None


_kept: dict[_Key, _Kept] = {}


def wants_atomics() -> bool:
    """Whether the environment asks for atomic sums, and torch does not ask for deterministic algorithms.

    Raises:
        RuntimeError: the variable holds something else than 0 or 1.
    """
    value = os.environ.get(ATOMICS, "0")
    if value not in ("0", "1"):
        raise RuntimeError(
            f"{ATOMICS}: received {value}, accepted is 0 (ordered sums, as unset) or 1 (atomic sums)"
        )
    return value == "1" and not torch.are_deterministic_algorithms_enabled()


def transpose(locations: Tensor, in_features: int) -> tuple[Tensor, Tensor]:
    """Sort connections by the input that they read, those of one input in ascending order.

    Nothing waits for the device: a location out of range is reported by an assertion on it.

    Args:
        locations: ``[out_features, fan_in]``, of any type that the operators accept.
        in_features: the inputs that are counted.

    Returns:
        ``offsets [in_features + 1]``, int64, and ``order [out_features * fan_in]``, int32 or, for too many of
        them, int64: connections ``order[offsets[i]:offsets[i + 1]]`` read input ``i``, counted row by row.
    """
    fits = in_features < INT32_MAX and locations.dtype != torch.int64  # which may hold anything
    dtype = torch.int32 if fits else torch.int64
    inputs, order = locations.flatten().to(dtype).sort(stable=True)
    if inputs.numel() > 0 and os.environ.get(CHECK, "1") != "0":
        valid = (inputs[0] >= 0) & (inputs[-1] < in_features)
        accepted = f"accepted is 0 to {in_features - 1} (in_features - 1)"
        torch._assert_async(valid, f"ffi_backward: locations: {accepted}")
    bounds = torch.arange(in_features + 1, dtype=dtype, device=locations.device)
    offsets = torch.searchsorted(inputs, bounds)
    return offsets, order.to(torch.int32) if order.numel() <= INT32_MAX else order


def _make_key(locations: Tensor, in_features: int) -> _Key:
    storage = StorageWeakRef(locations.untyped_storage())
    offset = int(locations.storage_offset())
    return _Key(storage, offset, locations.shape, locations.stride(), locations.dtype, in_features)


def _use(kept: _Kept, stream: torch.cuda.Stream | None) -> tuple[Tensor, Tensor]:
    """Order the present stream behind the one that made what is kept.

    While a graph is captured, what was made before it is there already: torch waits before it captures.
    """
    if stream is not None and kept.made is not None and stream != kept.stream:
        if not torch.cuda.is_current_stream_capturing():
            stream.wait_event(kept.made)
        kept.offsets.record_stream(stream)
        kept.order.record_stream(stream)
    return kept.offsets, kept.order


def _transpose_apart(locations: Tensor, in_features: int, stream: torch.cuda.Stream) -> _Kept:
    """Transpose in a thread of its own, on the same stream.

    Before torch.compile captures a graph, memory of the calling thread comes from the pool of that graph, and
    goes back to it.
    """

    def make() -> _Kept:
        with torch.cuda.stream(stream):
            return _Kept(
                locations._version, *transpose(locations, in_features), stream, stream.record_event()
            )

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(make).result()


def _keep(key: _Key, kept: _Kept) -> None:
    for other in [other for other in _kept if other.storage.expired()]:
        del _kept[other]
    _kept[key] = kept


def ffi_transpose(locations: Tensor, in_features: int) -> tuple[Tensor, Tensor]:
    """Return :func:`transpose` of locations, kept from an earlier call if they have not changed since.

    Two empty tensors ask for atomic sums.
    """
    if wants_atomics():
        nothing = torch.empty(0, dtype=torch.int64, device=locations.device)
        return nothing, nothing
    if locations.is_inference():  # it has no version
        return transpose(locations, in_features)
    stream = torch.cuda.current_stream(locations.device) if locations.is_cuda else None
    key = _make_key(locations, in_features)
    kept = _kept.get(key)
    if kept is not None and kept.version == locations._version:
        return _use(kept, stream)
    if stream is None:
        kept = _Kept(locations._version, *transpose(locations, in_features), None, None)
    elif torch.cuda.is_current_stream_capturing():  # memory of a graph is the graph's
        return transpose(locations, in_features)
    else:
        kept = _transpose_apart(locations, in_features, stream)
    _keep(key, kept)
    return kept.offsets, kept.order


def register() -> None:
    """Register the operator that the CUDA library asks."""
    _library.impl("_ffi_transpose", ffi_transpose, "CompositeExplicitAutograd")
