"""Layers over the operators."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from torch_sparse_ops import ops

__all__ = ["FixedFanInLinear", "draw_locations"]

LOCATION_DTYPES = (torch.int16, torch.uint16, torch.int32, torch.int64)
DRAWN_AT_A_TIME = 2**20  # locations; sorting takes three times their memory


def _check_sizes(in_features: int, out_features: int, fan_in: int) -> None:
    if out_features < 0 or not 0 <= fan_in <= in_features:
        raise ValueError(
            f"received in_features={in_features}, out_features={out_features}, fan_in={fan_in}; "
            "accepted are out_features >= 0 and 0 <= fan_in <= in_features"
        )


def _index_dtype(in_features: int) -> torch.dtype:
    return torch.int32 if in_features <= torch.iinfo(torch.int32).max else torch.int64


def _check_location_dtype(dtype: torch.dtype, in_features: int) -> None:
    fitting = [d for d in LOCATION_DTYPES if torch.iinfo(d).max >= in_features - 1]
    if dtype not in fitting:
        accepted = ", ".join(map(str, fitting))
        raise ValueError(
            f"received location_dtype={dtype}; accepted for in_features={in_features} are {accepted}"
        )


@torch.fx.wrap  # stays a call when torch.fx traces the layer, which has no sizes then
def _check_features(features: Tensor, in_features: int) -> None:
    if features.dim() == 0 or features.shape[-1] != in_features:
        raise ValueError(
            f"FixedFanInLinear: received features of shape {list(features.shape)}, "
            f"accepted is [..., {in_features}]"
        )


def draw_locations(
    in_features: int,
    out_features: int,
    fan_in: int,
    *,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw a subset of ``fan_in`` inputs for every output, uniformly over all subsets and independently.

    Duplicates are drawn again until none is left. No step treats one input unlike another, so all subsets are
    equally likely. At most half of the inputs are drawn: beyond that, those left out are.

    Returns:
        ``[out_features, fan_in]``, distinct and ascending in each row; int32, or int64 if there are more
        inputs than int32 counts.

    Raises:
        ValueError: a size is negative, or ``fan_in`` exceeds ``in_features``.
    """
    _check_sizes(in_features, out_features, fan_in)
    locations = torch.empty(out_features, fan_in, dtype=_index_dtype(in_features), device=device)
    for part in locations.split(max(1, DRAWN_AT_A_TIME // max(1, fan_in))) if fan_in > 0 else ():
        _draw_rows(part, in_features, generator)
    return locations


def _draw_rows(locations: Tensor, in_features: int, generator: torch.Generator | None) -> None:
    """Overwrite some rows with what :func:`draw_locations` draws for them."""
    out_features, fan_in = locations.shape
    options: dict[str, Any] = {"device": locations.device, "generator": generator}
    if 2 * fan_in > in_features:
        left_out = draw_locations(in_features, out_features, in_features - fan_in, **options).long()
        kept = torch.ones(out_features, in_features, dtype=torch.bool, device=locations.device)
        locations.copy_(kept.scatter_(1, left_out, False).nonzero()[:, 1].reshape(locations.shape))
        return
    locations.random_(in_features, generator=generator)
    locations.copy_(locations.sort(dim=1).values)
    rows = torch.arange(out_features, device=locations.device)
    while rows.numel() > 0:
        drawn = locations[rows]
        repeated = drawn[:, 1:] == drawn[:, :-1]
        unfinished = repeated.any(dim=1)
        rows, drawn, repeated = rows[unfinished], drawn[unfinished], repeated[unfinished]
        again = torch.randint(in_features, (int(repeated.sum()),), dtype=locations.dtype, **options)
        drawn[:, 1:][repeated] = again
        locations[rows] = drawn.sort(dim=1).values


def _fill(tensor: Tensor, values: Tensor) -> None:
    """Copy values into a tensor, or into this process's part of a DTensor."""
    if hasattr(tensor, "device_mesh"):
        from torch_sparse_ops import distributed

        values = distributed.take_part(values, tensor)
    tensor.copy_(values)


class FixedFanInLinear(nn.Module):
    """A linear layer in which every output is connected to ``fan_in`` of the inputs.

    ``y[..., o] = bias[o] + sum_k weight[o, k] * x[..., locations[o, k]]``

    It holds ``out_features * fan_in`` weights and as many locations, however many inputs there are.

    Args:
        in_features: size of the last dimension of the input.
        out_features: size of the last dimension of the output.
        fan_in: connections of every output, at most ``in_features``.
        bias: whether to learn an additive bias.
        device: of parameters and locations; on ``meta`` nothing is drawn until :meth:`reset_parameters`.
        dtype: of the parameters.
        generator: source of the random connections and weights; its device decides where they are drawn.
        location_dtype: int16, uint16, int32 or int64; None is int32, or int64 if there are more inputs than
            it counts. 16 bits halve the memory of the locations and cost no time, but neither Gloo nor NCCL
            sends them, so that DistributedDataParallel and its like refuse the layer.

    Attributes:
        weight: ``[out_features, fan_in]``, drawn like that of ``torch.nn.Linear`` from
            ``U(-1 / sqrt(fan_in), 1 / sqrt(fan_in))``.
        bias: ``[out_features]``, drawn from the same range, or None.
        locations: ``[out_features, fan_in]``, a buffer: in each row a random subset of the inputs, ascending.
        grad_output_observer: None, or a function to be called in every backward pass through the layer or a
            loss of :mod:`torch_sparse_ops.losses` over it, with a slice of the outputs, the features
            ``[..., in_features]`` and the gradient of those outputs ``[..., outputs]``, until all outputs
            were told of. No copy of the layer has it.

    Raises:
        ValueError: a size is negative, ``fan_in`` exceeds ``in_features``, or ``location_dtype`` does not
            count the inputs.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    locations: Tensor
    grad_output_observer: Callable[[slice, Tensor, Tensor], None] | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        fan_in: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
        location_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_sizes(in_features, out_features, fan_in)
        location_dtype = location_dtype or _index_dtype(in_features)
        _check_location_dtype(location_dtype, in_features)
        self.in_features = in_features
        self.out_features = out_features
        self.fan_in = fan_in
        self.grad_output_observer = None
        size = (out_features, fan_in)
        self.weight = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
        self.register_parameter(
            "bias", nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        )
        self.register_buffer("locations", torch.empty(size, device=device, dtype=location_dtype))
        self.reset_parameters(generator)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw connections, weights and bias anew; nothing on meta or in fake tensors, which hold no data."""
        if self.weight.is_meta or isinstance(self.weight, FakeTensor):
            return
        device = self.weight.device if generator is None else generator.device
        sizes = (self.in_features, self.out_features, self.fan_in)
        _fill(self.locations, draw_locations(*sizes, device=device, generator=generator))
        bound = 1 / math.sqrt(self.fan_in) if self.fan_in > 0 else 0.0
        for parameter in self.parameters():
            drawn = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            _fill(parameter, drawn.uniform_(-bound, bound, generator=generator))

    def forward(self, features: Tensor) -> Tensor:
        """Map ``[..., in_features]`` to ``[..., out_features]``."""
        _check_features(features, self.in_features)
        result = ops.ffi_forward(features, self.weight, self.locations, self.bias)
        if self.grad_output_observer is not None and result.requires_grad:
            outputs = slice(0, self.out_features)
            result.register_hook(partial(self.grad_output_observer, outputs, features.detach()))
        return result

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles have."""
        return {**self.__dict__, "grad_output_observer": None}

    def extra_repr(self) -> str:
        """Return the sizes, for ``repr``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, fan_in={self.fan_in}, "
            f"bias={self.bias is not None}"
        )

    @classmethod
    @torch.no_grad()
    def from_dense(cls, dense: nn.Linear | Tensor, fan_in: int) -> "FixedFanInLinear":
        """Keep the ``fan_in`` largest weights by magnitude of every output of a dense layer.

        Args:
            dense: a layer, whose bias is kept, or a weight ``[out_features, in_features]`` without one.
            fan_in: weights to keep for each output.

        Raises:
            ValueError: ``fan_in`` is negative or exceeds the inputs.
        """
        weight, bias = (dense.weight, dense.bias) if isinstance(dense, nn.Linear) else (dense, None)
        out_features, in_features = weight.shape
        # Sizes are checked and parameters made on meta first: nothing is drawn that would be overwritten.
        layer = cls(in_features, out_features, fan_in, bias is not None, device="meta", dtype=weight.dtype)
        layer.to_empty(device=weight.device)
        locations = weight.abs().topk(fan_in, dim=1, sorted=False).indices.sort(dim=1).values
        layer.locations.copy_(locations)
        layer.weight.copy_(weight.gather(1, locations))
        if layer.bias is not None and bias is not None:
            layer.bias.copy_(bias)
        return layer

    @torch.no_grad()
    def to_dense(self) -> nn.Linear:
        """Return a dense layer that computes the same, with zeros where there is no connection."""
        layer = nn.Linear(
            self.in_features, self.out_features, self.bias is not None, device="meta", dtype=self.weight.dtype
        )
        layer.to_empty(device=self.weight.device)
        layer.weight.zero_().scatter_add_(1, self.locations.long(), self.weight)
        if self.bias is not None:
            layer.bias.copy_(self.bias)
        return layer
