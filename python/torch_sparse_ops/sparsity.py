"""Training the connections too: which inputs an output sees is learned along with its weights.

    rigl = RigL(model, optimizer, interval=100, end=7_500)
    for features, target in batches:
        optimizer.zero_grad()
        loss(features, target).backward()
        if not rigl.step():     # True: connections were exchanged, in place of a step of the optimiser
            optimizer.step()

:class:`SET` exchanges the weakest connections for random ones (Mocanu et al., "Scalable training of
artificial neural networks with adaptive sparse connectivity inspired by network science", Nature
Communications, 2018), :class:`RigL` for those with the largest gradients (Evci et al., "Rigging the lottery:
making all tickets winners", ICML 2020).

Both papers drop the weakest weights of a whole layer. With a fixed fan-in every output gives up its own
weakest, all the same number, and gets as many again; so outputs are independent of each other, and a million
of them are worked off in chunks. (Lasby et al., "Dynamic sparse training with structured sparsity", ICLR
2024, keep the fan-in by dropping in the whole layer and growing in each output. Ullah et al., "Navigating
extremes: dynamic sparsity in large output spaces", NeurIPS 2024, train fixed fan-in layers of millions of
outputs with SET.)
"""

import math
from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torch_sparse_ops._connections import (
    all_rows,
    check_connections,
    exchange,
    find_aligned,
    find_strongest,
    iterate_rows,
)
from torch_sparse_ops.nn import FixedFanInLinear, draw_locations

__all__ = ["SET", "RigL", "check_connections", "prune"]


@torch.no_grad()
def prune(layer: FixedFanInLinear | nn.Linear, fan_in: int) -> FixedFanInLinear:
    """Return a layer with the ``fan_in`` largest weights by magnitude of every output, and the bias.

    Args:
        layer: a fixed fan-in layer or a dense one; it is left as it is.
        fan_in: connections to keep, at most those that there are.

    Raises:
        ValueError: ``fan_in`` is negative or exceeds the connections.
    """
    if isinstance(layer, nn.Linear):
        return FixedFanInLinear.from_dense(layer, fan_in)
    if not 0 <= fan_in <= layer.fan_in:
        raise ValueError(f"prune: received fan_in={fan_in}; accepted is 0 to {layer.fan_in}, the present one")
    pruned = FixedFanInLinear(
        *(layer.in_features, layer.out_features, fan_in, layer.bias is not None),
        device="meta",
        dtype=layer.weight.dtype,
        location_dtype=layer.locations.dtype,
    ).to_empty(device=layer.weight.device)
    for rows in iterate_rows(all_rows(layer), layer.fan_in):
        kept = find_strongest(layer.weight[rows], fan_in)
        locations, order = layer.locations[rows].long().gather(1, kept).sort(dim=1)
        pruned.locations[rows] = locations.to(pruned.locations.dtype)
        pruned.weight[rows] = layer.weight[rows].gather(1, kept.gather(1, order))
    if pruned.bias is not None and layer.bias is not None:
        pruned.bias.copy_(layer.bias)
    return pruned


class _Exchange(ABC):
    """What :class:`SET` and :class:`RigL` share: when connections are exchanged, and what follows them."""

    def __init__(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, interval: int, fraction: float
    ) -> None:
        self._name = type(self).__name__
        if interval < 1:
            raise ValueError(f"{self._name}: received interval={interval}, accepted is 1 or more")
        if not 0 < fraction <= 1:
            raise ValueError(f"{self._name}: received fraction={fraction}, accepted is above 0 and up to 1")
        self.optimizer = optimizer
        self.interval = interval
        self.fraction = fraction
        self.calls = 0
        self.layers = self._find_layers(module)

    def _find_layers(self, module: nn.Module) -> dict[str, FixedFanInLinear]:
        layers = {name: m for name, m in module.named_modules() if isinstance(m, FixedFanInLinear)}
        if not layers:
            raise ValueError(f"{self._name}: received a module without any FixedFanInLinear, accepted is one")
        known = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        for name, layer in layers.items():
            if nn.utils.parametrize.is_parametrized(layer, "weight"):
                raise ValueError(
                    f"{self._name}: the weight of layer {name!r} is parametrised; call "
                    "torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight') first"
                )
            if hasattr(layer.weight, "device_mesh"):
                raise ValueError(
                    f"{self._name}: the weight of layer {name!r} is a DTensor; exchange connections of whole "
                    "layers, with DistributedDataParallel for several processes"
                )
            if id(layer.weight) not in known:
                raise ValueError(f"{self._name}: the optimizer does not have the weight of layer {name!r}")
            check_connections(layer)
        return layers

    @property
    def due(self) -> bool:
        """Whether the next :meth:`step` exchanges connections."""
        return (self.calls + 1) % self.interval == 0 and not self._ended(self.calls + 1)

    @torch.no_grad()
    def step(self) -> bool:
        """Count a step of training; exchange connections if it is due, and return whether it was."""
        due = self.due
        if due:
            for name, layer in self.layers.items():
                self._exchange_layer(name, layer)
        self.calls += 1
        return due

    def _count_dropped(self, layer: FixedFanInLinear) -> int:
        """Return how many connections every output is to give up in the step that is due."""
        return round(self._fraction(self.calls + 1) * layer.fan_in)

    def _exchange_layer(self, name: str, layer: FixedFanInLinear) -> None:
        aligned = find_aligned(self._name, layer.weight, self.optimizer)
        if layer.weight.grad is not None:
            aligned.append(layer.weight.grad)
        if layer.fan_in > 0:
            self._exchange_rows(name, layer, aligned)

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on from here, besides the states of module and optimiser."""
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; load the states of module and optimiser first."""
        self.calls = state["calls"]

    @abstractmethod
    def _ended(self, call: int) -> bool: ...

    @abstractmethod
    def _fraction(self, call: int) -> float: ...

    @abstractmethod
    def _exchange_rows(self, name: str, layer: FixedFanInLinear, aligned: list[Tensor]) -> None: ...


class SET(_Exchange):
    """Sparse evolutionary training: exchange the weakest connections for random ones.

    As published, connections with weights closest to zero are replaced after every epoch by as many random
    ones; here the smallest magnitudes of each output, whichever their sign. New connections are drawn
    uniformly among the absent ones, with weights like those of a new layer.

    Args:
        module: all its fixed fan-in layers take part.
        optimizer: has their weights; what it keeps for a connection follows it, and is 0 for a new one.
        interval: steps from one exchange to the next; published: those of an epoch.
        fraction: of the connections of every output, rounded to whole ones; published: 0.3.
        generator: of the random connections, on the device of the layers; None is torch's default.

    Raises:
        ValueError: a value is out of range; there is no layer; :func:`check_connections` refuses connections;
            the optimizer does not have a weight.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        interval: int,
        fraction: float = 0.3,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(module, optimizer, interval, fraction)
        self.generator = generator

    def _ended(self, call: int) -> bool:
        return False

    def _fraction(self, call: int) -> float:
        return self.fraction

    def _exchange_rows(self, name: str, layer: FixedFanInLinear, aligned: list[Tensor]) -> None:
        count = min(self._count_dropped(layer), layer.in_features - layer.fan_in)
        bound = 1 / math.sqrt(layer.fan_in)
        for rows in iterate_rows(all_rows(layer), layer.fan_in):
            locations, weights = layer.locations[rows].long(), layer.weight[rows]
            kept = locations.gather(1, find_strongest(weights, layer.fan_in - count))
            grown = self._draw_absent(locations, layer.in_features, count)
            drawn = torch.empty_like(weights).uniform_(-bound, bound, generator=self.generator)
            exchange(layer, rows, torch.cat((kept, grown), dim=1).sort(dim=1).values, drawn, aligned)

    def _draw_absent(self, locations: Tensor, in_features: int, count: int) -> Tensor:
        """Draw subsets of the inputs that are not in ``locations``, uniformly: ``[rows, count]``.

        Ranks among the absent inputs are drawn; before the one of rank r stand as many present ones as have
        at most r absent ones before them.
        """
        rows, fan_in = locations.shape
        ranks = draw_locations(
            in_features - fan_in, rows, count, device=locations.device, generator=self.generator
        ).long()
        absent_before = locations.sort(dim=1).values - torch.arange(fan_in, device=locations.device)
        return ranks + torch.searchsorted(absent_before, ranks, right=True)

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on from here, besides the states of module and optimiser."""
        generator = None if self.generator is None else self.generator.get_state()
        return {**super().state_dict(), "generator": generator}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; load the states of module and optimiser first."""
        super().load_state_dict(state)
        if self.generator is not None and state["generator"] is not None:
            self.generator.set_state(state["generator"])


class RigL(_Exchange):
    """The rigged lottery: exchange the weakest connections for those with the largest gradients.

    As published, an exchange takes the place of a step of the optimiser; connections that were just dropped
    may come back, and then keep their weight; others start at 0. The share of exchanged connections falls
    along a cosine: ``fraction / 2 * (1 + cos(pi * step / end))``.

    The gradients of absent connections, ``grad_output.T @ features``, exist for a chunk of outputs at a time,
    in the backward pass before the exchange. The layer tells what they are made of, and so do the losses of
    ``torch_sparse_ops.losses``, chunk by chunk. If there are several backward passes between two steps, the
    last one decides. A compiled module has to run uncompiled in that one step:
    ``with torch.compiler.set_stance("force_eager" if rigl.due else "default")``.

    Args:
        module: all its fixed fan-in layers take part.
        optimizer: has their weights; what it keeps for a connection follows it, and is 0 for a new one.
        interval: steps from one exchange to the next; published: 100.
        end: exchanges stop before this step; published: three quarters of all steps.
        fraction: of the connections of every output, at the beginning; published: 0.3.
        process_group: replicas of the module that see different data, over which gradients are added before
            they are compared, so that all make the same exchange.

    Raises:
        ValueError: a value is out of range; there is no layer; :func:`check_connections` refuses connections;
            the optimizer does not have a weight.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        end: int,
        interval: int = 100,
        fraction: float = 0.3,
        process_group: "torch.distributed.ProcessGroup | None" = None,
    ) -> None:
        super().__init__(module, optimizer, interval, fraction)
        self.end = end
        self.process_group = process_group
        self._chosen: dict[str, Tensor] = {}
        self._missing: dict[str, Tensor] = {}
        self._observe()

    def _ended(self, call: int) -> bool:
        return call >= self.end

    def _fraction(self, call: int) -> float:
        return self.fraction / 2 * (1 + math.cos(math.pi * call / self.end))

    def _observe(self) -> None:
        """Ask the layers for their gradients if they are needed in the coming step."""
        self._chosen.clear()
        self._missing.clear()
        for name, layer in self.layers.items():
            layer.grad_output_observer = partial(self._choose, name, layer) if self.due else None
            if self.due:
                self._missing[name] = torch.ones(layer.out_features, dtype=torch.bool)

    @torch.no_grad()
    def _choose(
        self, name: str, layer: FixedFanInLinear, rows: slice, features: Tensor, grad_output: Tensor
    ) -> None:
        """Choose connections by ``grad_output [..., rows]`` for ``features [..., in_features]``."""
        if name not in self._chosen:
            self._chosen[name] = torch.empty_like(layer.locations)
        count = self._count_dropped(layer)
        dtype = torch.promote_types(features.dtype, grad_output.dtype)
        inputs = features.reshape(-1, layer.in_features).to(dtype)
        for part in iterate_rows(rows, layer.in_features):
            columns = grad_output[..., part.start - rows.start : part.stop - rows.start]
            gradients = columns.reshape(-1, part.stop - part.start).to(dtype).T @ inputs
            if self.process_group is not None:
                torch.distributed.all_reduce(gradients, group=self.process_group)
            slots = find_strongest(layer.weight[part], layer.fan_in - count)
            kept = layer.locations[part].long().gather(1, slots)
            scores = gradients.abs_().scatter_(1, kept, -1)  # below every magnitude: kept is not chosen again
            grown = scores.topk(count, dim=1, sorted=False).indices
            connections = torch.cat((kept, grown), dim=1).sort(dim=1).values
            self._chosen[name][part] = connections.to(layer.locations.dtype)
        self._missing[name][rows] = False

    def _exchange_rows(self, name: str, layer: FixedFanInLinear, aligned: list[Tensor]) -> None:
        missing = self._missing[name]
        if bool(missing.any()):
            raise RuntimeError(
                f"RigL: layer {name!r} has seen no gradient of output {int(missing.nonzero()[0])}; before "
                "a step that is due, go forward and backward through the layer, and not through a "
                'compiled form of it: torch.compiler.set_stance("force_eager")'
            )
        zero = layer.weight.new_zeros(())
        for rows in iterate_rows(all_rows(layer), layer.fan_in):
            exchange(layer, rows, self._chosen[name][rows].long(), zero, aligned)

    def step(self) -> bool:
        """Count a step of training; exchange connections if it is due, and return whether it was.

        To be called after the backward pass; skip the optimiser's step if it returns True.

        Raises:
            RuntimeError: the layer saw no gradients in the backward pass.
        """
        due = super().step()
        self._observe()
        return due

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; load the states of module and optimiser first."""
        super().load_state_dict(state)
        self._observe()
