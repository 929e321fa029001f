"""A fixed fan-in layer over several processes: each holds a part of the outputs, all of the inputs.

:class:`FixedFanInParallel` is a style for ``torch.distributed.tensor.parallel.parallelize_module``:

    mesh = init_device_mesh("cuda", (8,))
    parallelize_module(model, mesh, {"head": FixedFanInParallel(output_layouts=Replicate())})

Weights, locations and bias become DTensors with placement ``Shard(0)``, which optimisers, checkpoints and
``fully_shard`` know how to treat. The losses and ``linear_topk`` of :mod:`torch_sparse_ops.losses` take a
layer that was sharded so: they exchange a few numbers for each row of the batch, never logits.

This module loads ``torch.distributed.tensor``; ``import torch_sparse_ops`` does not load this module.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.parallel import ParallelStyle

from torch_sparse_ops._reduction import finite
from torch_sparse_ops._topk import NO_INDEX, keep_first
from torch_sparse_ops.nn import FixedFanInLinear

__all__ = ["FixedFanInParallel"]

Strategies = list[tuple[list[Any], list[Any]]]


# ---- how the operators may be sharded: placements of results, and of arguments


@register_sharding(torch.ops.torch_sparse_ops.ffi_forward.default)  # type: ignore[untyped-decorator]
def _shard_ffi_forward(features: Any, weights: Any, locations: Any, bias: Any = None) -> Strategies:
    """Everywhere alike, by outputs, or by one of the leading dimensions."""
    alike, by_output = [Replicate()] * 3, [Replicate(), Shard(0), Shard(0)]
    last = features.ndim - 1
    strategies: Strategies = [([Replicate()], alike), ([Shard(last)], by_output)]
    strategies += [([Shard(dim)], [Shard(dim), Replicate(), Replicate()]) for dim in range(last)]
    return [(result, [*given, given[1] if bias is not None else None]) for result, given in strategies]


@register_sharding(torch.ops.torch_sparse_ops.ffi_backward.default)  # type: ignore[untyped-decorator]
def _shard_ffi_backward(
    grad_output: Any, features: Any, weights: Any, locations: Any, output_mask: tuple[bool, bool, bool]
) -> Strategies:
    """As the forward pass; what every process has a part of is a sum of these parts."""
    last = features.ndim - 1
    alike: tuple[list[Any], list[Any]] = ([Replicate()] * 3, [Replicate()] * 4)
    by_output = [Partial(), Shard(0), Shard(0)], [Shard(last), Replicate(), Shard(0), Shard(0)]
    by_rows = [
        ([Shard(dim), Partial(), Partial()], [Shard(dim), Shard(dim), Replicate(), Replicate()])
        for dim in range(last)
    ]

    def of_results(placements: list[Any]) -> list[Any]:
        """What was not asked for is empty, and everywhere alike."""
        return [p if asked else Replicate() for p, asked in zip(placements, output_mask, strict=True)]

    return [(of_results(placements), given) for placements, given in (alike, by_output, *by_rows)]


# ---- the style


class FixedFanInParallel(ParallelStyle):
    """Give each process of a one-dimensional mesh a part of the outputs of a ``FixedFanInLinear``.

    The parts follow ``torch.chunk``: any number of outputs will do, and the last processes may have fewer or
    none. What is shared out is the layer of the first process, as in torch's styles.

    Args:
        input_layouts: placement of the features as they come, ``Replicate()`` if None; they are replicated.
        output_layouts: placement of the result: ``Shard(-1)`` if None, or ``Replicate()``, which gathers the
            logits, or any other.
        use_local_output: whether the layer returns a tensor rather than a DTensor.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__()
        self.input_layouts = input_layouts or Replicate()
        self.output_layouts = output_layouts or Shard(-1)
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, FixedFanInLinear):
            raise TypeError(
                f"FixedFanInParallel: received {type(module).__name__}, accepted is FixedFanInLinear; to "
                'shard a loss name the layer in it, as in {"loss.layer": FixedFanInParallel()}'
            )
        _check_mesh(device_mesh)
        return distribute_module(
            module,
            device_mesh,
            self._partition,
            self._prepare_input,  # type: ignore[arg-type]  # torch annotates that they return None
            self._prepare_output,  # type: ignore[arg-type]
        )

    def _partition(self, name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        def shard(tensor: Tensor) -> DTensor:
            return distribute_tensor(tensor, mesh, [Shard(0)], src_data_rank=self.src_data_rank)

        for key, parameter in list(module.named_parameters(recurse=False)):
            sharded = nn.Parameter(shard(parameter.detach()), requires_grad=parameter.requires_grad)
            module.register_parameter(key, sharded)
        for key, buffer in list(module.named_buffers(recurse=False)):
            sent = buffer.int() if buffer.itemsize < 4 else buffer  # Gloo and NCCL send no 16-bit integers
            module.register_buffer(key, shard(sent).to(buffer.dtype))

    def _prepare_input(self, module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Tensor:
        features, *_ = inputs
        if not isinstance(features, DTensor):
            features = DTensor.from_local(features, mesh, [self.input_layouts], run_check=False)
        return features.redistribute(placements=[Replicate()])

    def _prepare_output(self, module: nn.Module, outputs: DTensor, mesh: DeviceMesh) -> Tensor:
        outputs = outputs.redistribute(placements=[self.output_layouts])
        return outputs.to_local() if self.use_local_output else outputs


def _check_mesh(mesh: DeviceMesh) -> None:
    if mesh.ndim != 1:
        raise ValueError(
            f"FixedFanInParallel: received a mesh of {mesh.ndim} dimensions, accepted is one of 1 dimension; "
            'take it by name, as in mesh["tp"]'
        )


# ---- losses and prediction


class Part(NamedTuple):
    """This process's outputs of a sharded layer."""

    mesh: DeviceMesh
    weights: Tensor
    locations: Tensor
    bias: Tensor | None
    first_output: int


def find_part(layer: FixedFanInLinear) -> Part:
    """Return this process's part of a layer.

    Raises:
        ValueError: the layer is sharded in another way than :class:`FixedFanInParallel` does it.
    """
    tensors = [layer.weight, layer.locations, *([] if layer.bias is None else [layer.bias])]
    placements = [getattr(tensor, "placements", None) for tensor in tensors]
    if any(placement != (Shard(0),) for placement in placements):
        raise ValueError(
            f"a sharded layer: received placements {placements} of weight, locations and bias, accepted "
            "is (Shard(dim=0),) for each, as FixedFanInParallel makes them. fully_shard gathers a layer when "
            "the module it was applied to is called: apply it to the loss or to what holds the loss, and "
            "register other methods with torch.distributed.fsdp.register_fsdp_forward_method"
        )
    weights, locations, *bias = (tensor.to_local() for tensor in tensors if isinstance(tensor, DTensor))
    mesh = cast(DTensor, layer.weight).device_mesh
    size = -(-layer.out_features // mesh.size())  # DTensor cuts as torch.chunk does
    first_output = min(mesh.get_local_rank() * size, layer.out_features)
    return Part(mesh, weights, locations, bias[0] if bias else None, first_output)


def take_part(values: Tensor, like: Tensor) -> DTensor:
    """Return a DTensor of values that this process has in full, sharded as another one; nothing is sent."""
    target = cast(DTensor, like)
    values = values.to(target.device)
    return distribute_tensor(values, target.device_mesh, target.placements, src_data_rank=None)


def _replicate(features: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return the features for this process's outputs; their gradient is summed over the processes."""
    if not isinstance(features, DTensor):
        features = DTensor.from_local(features, mesh, [Replicate()], run_check=False)
    return features.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


def _gather(part: Tensor, mesh: DeviceMesh, placement: Placement) -> Tensor:
    """Return what all processes have together: sum, maximum or concatenation, as the placement says."""
    return DTensor.from_local(part, mesh, [placement], run_check=False).full_tensor()


def reduce(
    features: Tensor,
    layer: FixedFanInLinear,
    columns: Tensor,
    scales: Tensor | None,
    reduction: str,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``ffi_reduce`` for a sharded layer; every process gets the same results."""
    part = find_part(layer)
    last_output = part.first_output + part.weights.shape[0]
    reduced, scaled, picked = torch.ops.torch_sparse_ops.ffi_reduce(
        *(_replicate(features, part.mesh), part.weights, part.locations, part.bias, columns),
        *(None if scales is None else scales[part.first_output : last_output], reduction, dtype),
        *(part.first_output, layer.out_features),
    )
    largest = reduced.new_zeros(())
    if reduction == "log_sum_exp":
        largest = finite(_gather(reduced.detach(), part.mesh, Partial("max")))
        reduced = (reduced - largest).exp()
    # One message for all three, of the few numbers that a row has.
    columns_of = [reduced[:, None], scaled.reshape(len(reduced), -1), picked]
    sums = _gather(torch.cat(columns_of, 1), part.mesh, Partial())
    total, scaled_total, picked_total = sums.split([column.shape[1] for column in columns_of], dim=1)
    if reduction == "log_sum_exp":
        total = total.log() + largest[:, None]
    return total[:, 0], scaled_total.flatten(), picked_total


def topk(features: Tensor, layer: FixedFanInLinear, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute ``ffi_topk`` for a sharded layer; every process gets the same results."""
    part = find_part(layer)
    values, indices = torch.ops.torch_sparse_ops.ffi_topk(
        _replicate(features, part.mesh), part.weights, part.locations, part.bias, k, dtype
    )
    indices = (indices + part.first_output).where(indices != NO_INDEX, NO_INDEX)
    return keep_first(_gather(values, part.mesh, Shard(1)), _gather(indices, part.mesh, Shard(1)), k)
