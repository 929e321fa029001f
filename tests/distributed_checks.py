"""What the processes of ``test_distributed.py`` run: four with Gloo, then two of them.

Starting them takes longer than all checks, so all are run in turn, and the tests look at what they returned.
"""

import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch_sparse_ops import losses, ops
from torch_sparse_ops.distributed import FixedFanInParallel
from torch_sparse_ops.nn import FixedFanInLinear
from torch_sparse_ops.sparsity import RigL

RANKS, BATCH, STEPS = 4, 8, 20
INPUTS, HIDDEN, OUTPUTS, FAN_IN = 6, 10, 1003, 4  # outputs that no number of processes divides
SHARDED: dict[str, ParallelStyle] = {"loss.layer": FixedFanInParallel()}

MakeLoss = Callable[[FixedFanInLinear], nn.Module]


class Model(nn.Module):
    """A trunk, whose gradient passes through the loss, and a layer with its loss."""

    def __init__(self, loss: MakeLoss, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(INPUTS, HIDDEN, dtype=dtype)
        self.loss = loss(FixedFanInLinear(HIDDEN, OUTPUTS, FAN_IN, dtype=dtype))

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        result: Tensor = self.loss(torch.tanh(self.trunk(inputs)), labels)
        return result

    @property
    def layer(self) -> FixedFanInLinear:
        return cast(FixedFanInLinear, self.loss.layer)


class Unfused(nn.Module):
    """The loss on the logits, which stay sharded."""

    def __init__(self, layer: FixedFanInLinear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, features: Tensor, target: Tensor) -> Tensor:
        logits = self.layer(features)
        if isinstance(logits, DTensor):
            target = distribute_tensor(target, logits.device_mesh, [Replicate()])
        loss = nn.functional.cross_entropy(logits, target)
        return loss.full_tensor() if isinstance(loss, DTensor) else loss


cross_entropy = partial(losses.LinearCrossEntropyLoss, label_smoothing=0.1)


def draw_batches(loss: nn.Module, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    multilabel = isinstance(loss, losses.LinearBCEWithLogitsLoss)
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, INPUTS, generator=generator, dtype=torch.float64).to(dtype)
        labels = torch.randint(OUTPUTS // 3, (BATCH, 3), generator=generator) * 3 + torch.arange(3)
        yield inputs, labels if multilabel else labels[:, 0]


def train(model: nn.Module, loss: nn.Module, rows: slice = slice(None)) -> list[float]:
    """Train a model, which may be wrapped, with the batches of its loss, and return the losses."""
    dtype = next(model.parameters()).dtype
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    history = []
    for inputs, labels in draw_batches(loss, dtype):
        optimiser.zero_grad()
        value = model(inputs[rows], labels[rows])
        value.backward()
        optimiser.step()
        history.append(value.item())
    return history


def train_alone(loss: MakeLoss = cross_entropy, dtype: torch.dtype = torch.float64) -> list[float]:
    model = Model(loss, dtype)
    return train(model, model.loss)


# ---- what the processes run


def train_sharded(
    size: int = RANKS,
    loss: MakeLoss = cross_entropy,
    dtype: torch.dtype = torch.float64,
    style: ParallelStyle = SHARDED["loss.layer"],
) -> list[float]:
    """The outputs over ``size`` processes; with two of four, both pairs do the same."""
    mesh = init_device_mesh("cpu", (RANKS // size, size), mesh_dim_names=("again", "tp"))["tp"]
    model = Model(loss, dtype)
    parallelize_module(model, mesh, {"loss.layer": style})
    return train(model, model.loss)


def mine(parts: int, number: int) -> slice:
    return slice(number * BATCH // parts, (number + 1) * BATCH // parts)


def train_data_parallel(wrap: Callable[[nn.Module], nn.Module]) -> list[float]:
    """A part of the batch for each process."""
    model = Model(cross_entropy, torch.float64)
    return train(wrap(model), model.loss, mine(RANKS, dist.get_rank()))


def train_exchanging(
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model, rows: slice = slice(None)
) -> list[Tensor]:
    """Train connections, too, and return them with their weights."""
    model = Model(cross_entropy, torch.float64)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    group = dist.group.WORLD if dist.is_initialized() else None
    rigl = RigL(model, optimiser, interval=4, end=STEPS, process_group=group)
    wrapped = wrap(model)
    for inputs, labels in draw_batches(model.loss, torch.float64):
        optimiser.zero_grad()
        wrapped(inputs[rows], labels[rows]).backward()
        if not rigl.step():
            optimiser.step()
    return [model.layer.locations, model.layer.weight.detach()]


def exchange_data_parallel() -> list[Tensor]:
    return train_exchanging(DistributedDataParallel, mine(RANKS, dist.get_rank()))


def refuse_exchange_of_parts() -> str:
    model = Model(cross_entropy, torch.float64)
    parallelize_module(model, init_device_mesh("cpu", (RANKS,)), SHARDED)
    with pytest.raises(ValueError, match="DTensor") as refused:
        RigL(model, torch.optim.SGD(model.parameters()), end=9)
    return str(refused.value)


def train_in_two_dimensions(wrap: Callable[..., nn.Module]) -> list[float]:
    """Halves of the batch, and halves of the outputs."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = Model(cross_entropy, torch.float64)
    parallelize_module(model, mesh["tp"], SHARDED)
    return train(wrap(model, mesh["dp"]), model.loss, mine(2, mesh.get_local_rank("dp")))


def compute_layouts() -> dict[str, Any]:
    """Values and gradients of the layer alone, for every layout of its result."""
    mesh = init_device_mesh("cpu", (RANKS,))
    found: dict[str, Any] = {}
    for name, layout, local in (
        ("shard", None, True),
        ("replicate", Replicate(), True),
        ("dtensor", None, False),
    ):
        layer = draw_layer()
        parallelize_module(layer, mesh, FixedFanInParallel(output_layouts=layout, use_local_output=local))
        features = draw_features().requires_grad_()
        result = layer(features)
        whole(result).square().sum().backward()
        gradients = [whole(tensor.grad) for tensor in (features, *layer.parameters())]
        found[name] = whole(result.detach()), gradients
    return found


def draw_layer(outputs: int = OUTPUTS, location_dtype: torch.dtype = torch.int32) -> FixedFanInLinear:
    generator = torch.Generator().manual_seed(3)
    layer = FixedFanInLinear(HIDDEN, outputs, FAN_IN, dtype=torch.float64, generator=generator)
    layer.locations = layer.locations.to(location_dtype)
    return layer


def draw_features() -> Tensor:
    return torch.randn(BATCH, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def whole(tensor: Tensor | None) -> Tensor:
    """Return a tensor, or that of which a DTensor has a part."""
    assert tensor is not None
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def predict(layer: FixedFanInLinear) -> list[Tensor]:
    """The loss, its gradients and the largest outputs, from a layer that is sharded or not."""
    features = draw_features().requires_grad_()
    loss = losses.linear_cross_entropy(features, layer, torch.arange(BATCH) % layer.out_features)
    loss.backward()
    gradients = [whole(tensor.grad) for tensor in (features, *layer.parameters())]
    largest = losses.linear_topk(draw_features(), layer, 4)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    equal = losses.linear_topk(draw_features(), layer, 4)
    return [loss.detach(), *gradients, *largest, *equal]


def predict_sharded(outputs: int, location_dtype: torch.dtype = torch.int32) -> list[Tensor]:
    layer = draw_layer(outputs, location_dtype)
    parallelize_module(layer, init_device_mesh("cpu", (RANKS,)), FixedFanInParallel())
    assert layer.locations.dtype == location_dtype
    return predict(layer)


def compute_loss(features: Tensor, layer: FixedFanInLinear) -> list[Tensor]:
    """The loss and the gradient of the features."""
    features.requires_grad_()
    loss = losses.linear_cross_entropy(features, layer, torch.arange(BATCH), label_smoothing=0.1)
    loss.backward()
    return [loss.detach(), whole(features.grad)]


def compute_loss_of_sharded_rows() -> list[Tensor]:
    mesh = init_device_mesh("cpu", (RANKS,))
    layer = draw_layer()
    parallelize_module(layer, mesh, FixedFanInParallel())
    return compute_loss(distribute_tensor(draw_features(), mesh, [Shard(0)]), layer)


def reset_sharded() -> list[Tensor]:
    """A layer that was sharded before it held anything."""
    layer = FixedFanInLinear(HIDDEN, OUTPUTS, FAN_IN, dtype=torch.float64, device="meta")
    parallelize_module(layer, init_device_mesh("cpu", (RANKS,)), FixedFanInParallel())
    layer.to_empty(device="cpu").reset_parameters(torch.Generator().manual_seed(3))
    return [whole(tensor).detach() for tensor in layer.state_dict().values()]


def shard_rows() -> list[Tensor]:
    """The operators on DTensors whose rows are sharded, with the same layer everywhere."""
    mesh = init_device_mesh("cpu", (RANKS,))
    layer = draw_layer()
    tensors = (layer.weight.detach(), layer.locations, layer.get_parameter("bias").detach())
    weights, locations, bias = (distribute_tensor(tensor, mesh, [Replicate()]) for tensor in tensors)
    features = distribute_tensor(draw_features(), mesh, [Shard(0)])
    values = [tensor.requires_grad_() for tensor in (features, weights, bias)]
    result = ops.ffi_forward(features, weights, locations, bias)
    assert cast(DTensor, result).placements == (Shard(0),)
    result.square().sum().backward()
    return [whole(tensor).detach() for tensor in (result, *(value.grad for value in values))]


def compile_sharded() -> list[float]:
    mesh = init_device_mesh("cpu", (RANKS,))
    loss = losses.LinearCrossEntropyLoss(draw_layer())
    parallelize_module(loss, mesh, {"layer": FixedFanInParallel()})
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    features = draw_features().requires_grad_()
    found = compiled(features, torch.arange(BATCH))
    found.backward()
    return [found.item(), whole(features.grad).norm().item()]


def refuse_unsharded_locations() -> str:
    model = Model(cross_entropy, torch.float64)
    fully_shard(model.layer)
    with pytest.raises(ValueError, match="a sharded layer") as caught:
        train(model, model.loss)
    return str(caught.value)


def refuse_another_module() -> str:
    with pytest.raises(TypeError) as caught:
        parallelize_module(nn.Linear(3, 4), init_device_mesh("cpu", (RANKS,)), FixedFanInParallel())
    return str(caught.value)


def refuse_another_mesh() -> str:
    with pytest.raises(ValueError, match="dimensions") as caught:
        FixedFanInParallel()._apply(draw_layer(), init_device_mesh("cpu", (2, 2)))
    return str(caught.value)


def save_model(directory: Path) -> list[float]:
    """Losses before and after a checkpoint was saved."""
    model = Model(cross_entropy, torch.float64)
    parallelize_module(model, init_device_mesh("cpu", (RANKS,)), SHARDED)
    history = train(model, model.loss)
    save(model.state_dict(), checkpoint_id=directory)
    return history + train(model, model.loss)


def load_model(directory: Path) -> list[float]:
    """Losses after it was loaded into another model."""
    model = Model(cross_entropy, torch.float64)
    model.layer.reset_parameters(torch.Generator().manual_seed(9))
    parallelize_module(model, init_device_mesh("cpu", (2,)), SHARDED)
    state = model.state_dict()
    load(state, checkpoint_id=directory)
    model.load_state_dict(state)
    return train(model, model.loss)


def distribute_data(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    # Sharded buffers are equal in all replicas, and torch cannot broadcast them.
    return DistributedDataParallel(model, device_mesh=mesh, broadcast_buffers=False)


def shard_data(model: nn.Module, mesh: DeviceMesh | None = None) -> nn.Module:
    fully_shard(model, mesh=mesh)
    return model


def train_with_loss_parallel() -> list[float]:
    with loss_parallel():
        return train_sharded(loss=Unfused, style=FixedFanInParallel(use_local_output=False))


binary_cross_entropy = losses.LinearBCEWithLogitsLoss
CHECKS: dict[str, Callable[[], Any]] = {
    "cross-entropy on 4": train_sharded,
    "cross-entropy on 2": partial(train_sharded, 2),
    "cross-entropy on 4, float32": partial(train_sharded, dtype=torch.float32),
    "binary cross-entropy on 4": partial(train_sharded, loss=binary_cross_entropy),
    "logits gathered": partial(
        train_sharded, loss=Unfused, style=FixedFanInParallel(output_layouts=Replicate())
    ),
    "logits sharded": train_with_loss_parallel,
    "DistributedDataParallel": partial(train_data_parallel, DistributedDataParallel),
    "exchanged connections": exchange_data_parallel,
    "exchange of parts": refuse_exchange_of_parts,
    "fully_shard": partial(train_data_parallel, shard_data),
    "DistributedDataParallel and outputs": partial(train_in_two_dimensions, distribute_data),
    "fully_shard and outputs": partial(train_in_two_dimensions, shard_data),
    "layouts": compute_layouts,
    "reset": reset_sharded,
    "loss of rows": compute_loss_of_sharded_rows,
    "1003 outputs": partial(predict_sharded, OUTPUTS),
    "5 outputs": partial(predict_sharded, 5),
    "int16": partial(predict_sharded, OUTPUTS, torch.int16),
    "rows": shard_rows,
    "compiled": compile_sharded,
    "unsharded locations": refuse_unsharded_locations,
    "another module": refuse_another_module,
    "another mesh": refuse_another_mesh,
}


def meet(directory: Path, rank: int, size: int) -> None:
    meeting = f"file://{directory}/meeting-of-{size}"
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=timeout)


def run_check(check: Callable[[], Any]) -> Any:
    """Return what a check returns, or the text of what it raises."""
    try:
        return check()
    except (Exception, pytest.fail.Exception):
        return traceback.format_exc()


def run(rank: int, directory: Path) -> None:
    """One process: all checks of four, then those of two."""
    torch.set_num_threads(1)
    meet(directory, rank, RANKS)
    found = {name: run_check(check) for name, check in CHECKS.items()}
    found["saved"] = run_check(partial(save_model, directory / "checkpoint"))
    dist.destroy_process_group()
    if rank < 2:
        meet(directory, rank, 2)
        found["loaded"] = run_check(partial(load_model, directory / "checkpoint"))
        dist.destroy_process_group()
    torch.save(found, directory / f"{rank}.pt")
