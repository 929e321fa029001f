"""Measure the memory and the time of a training step of an extreme output layer, with and without its logits.

Each way has a process of its own, which has done a step of a small layer; what the resident set's high-water
mark (Linux) then grows by is the peak. The rest is the peak without parameters, gradients and the optimiser's
state: the locations, and what the loss needed at its worst.

    python benchmarks/training_memory.py                                 # two million outputs
    python benchmarks/training_memory.py --out-features 200000 --ways fused logits
"""

import argparse
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_sparse_ops import losses
from torch_sparse_ops.nn import FixedFanInLinear

MEGABYTE = 10**6
BAR = 300 * MEGABYTE  # for what is not parameters, gradients and optimiser state


Step = Callable[[Tensor, FixedFanInLinear, Tensor], Tensor]  # the loss of features and targets


class Size(NamedTuple):
    """Sizes of the layer and of the batch."""

    in_features: int
    out_features: int
    fan_in: int
    batch: int


class Measured(NamedTuple):
    """Bytes, and seconds of the fastest step after the first: by the clock, and of all processors."""

    way: str
    parameters: int
    locations: int
    gradients: int
    optimiser: int
    peak: int
    seconds: float
    cpu_seconds: float

    @property
    def rest(self) -> int:
        """What the peak holds beyond parameters, gradients and the optimiser's state."""
        return self.peak - self.parameters - self.gradients - self.optimiser


def step_fused(features: Tensor, layer: FixedFanInLinear, target: Tensor) -> Tensor:
    """Cross-entropy without the logits."""
    return losses.linear_cross_entropy(features, layer, target)


def step_logits(features: Tensor, layer: FixedFanInLinear, target: Tensor) -> Tensor:
    """Cross-entropy of the logits."""
    return F.cross_entropy(layer(features), target)


def step_autocast(features: Tensor, layer: FixedFanInLinear, target: Tensor) -> Tensor:
    """Cross-entropy without the logits in bfloat16, parameters in float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return losses.linear_cross_entropy(features, layer, target)


def step_binary(features: Tensor, layer: FixedFanInLinear, target: Tensor) -> Tensor:
    """Binary cross-entropy with five labels a row, without the logits."""
    labels = (target[:, None] + torch.arange(5)) % layer.out_features
    return losses.linear_binary_cross_entropy_with_logits(features, layer, labels)


WAYS: dict[str, Step] = {
    "fused": step_fused,
    "binary": step_binary,
    "autocast": step_autocast,
    "logits": step_logits,
}


def read_status(key: str) -> int:
    """Return an entry of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def count_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes that tensors hold."""
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors)


def take_step(
    step: Step, layer: FixedFanInLinear, optimiser: torch.optim.Optimizer, features: Tensor, target: Tensor
) -> None:
    """Train once."""
    optimiser.zero_grad()
    torch.autograd.backward(step(features, layer, target))
    optimiser.step()


def load_once(step: Step, in_features: int, fan_in: int) -> None:
    """Train a small layer: an optimiser's first step imports a part of torch, and threads start."""
    small = FixedFanInLinear(in_features, 1000, fan_in)
    optimiser = torch.optim.Adam(small.parameters(), fused=True)
    take_step(step, small, optimiser, torch.randn(2, in_features), torch.tensor([0, 1]))


def measure(way: str, size: Size, location_dtype: torch.dtype, steps: int, threads: int) -> Measured:
    """Train for some steps in this process."""
    torch.set_num_threads(threads)
    step = WAYS[way]
    load_once(step, size.in_features, size.fan_in)
    before = read_status("VmRSS")
    layer = FixedFanInLinear(size.in_features, size.out_features, size.fan_in, location_dtype=location_dtype)
    optimiser = torch.optim.Adam(layer.parameters(), fused=True)
    features = torch.randn(size.batch, size.in_features, requires_grad=True)
    target = torch.randint(size.out_features, (size.batch,))
    Path("/proc/self/clear_refs").write_text("5")  # drawing the layer does not count
    seconds, cpu_seconds = [], []
    for _ in range(1 + steps):
        start, cpu_start = time.perf_counter(), time.process_time()
        take_step(step, layer, optimiser, features, target)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    parameters = list(layer.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    state = [value for values in optimiser.state.values() for value in values.values()]
    return Measured(
        way,
        parameters=count_bytes(parameters),
        locations=count_bytes([layer.locations]),
        gradients=count_bytes(gradients),
        optimiser=count_bytes(state),
        peak=read_status("VmHWM") - before,
        seconds=min(seconds[1:]),
        cpu_seconds=min(cpu_seconds[1:]),
    )


def measure_apart(way: str, *arguments: object) -> Measured:
    """Measure in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, way, *arguments).result()  # type: ignore[arg-type]


def main() -> None:
    """Read the command line, measure, print a table in megabytes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, default in Size(512, 2_000_000, 32, 256)._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["fused"], help="(default: fused)")
    parser.add_argument("--steps", type=int, default=3, help="after the first (default: 3)")
    parser.add_argument("--location-dtype", default="int32", choices=["int16", "uint16", "int32", "int64"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    size = Size(options.in_features, options.out_features, options.fan_in, options.batch)
    print(f"{size}, float32, locations {options.location_dtype}, {options.threads} threads")
    print("megabytes, the rest with the locations; seconds of a step")
    titles = (*Measured._fields[1:6], "rest", "seconds", "of CPU")
    print(f"{'way':10}" + "".join(f"{title:>12}" for title in titles))
    for way in options.ways:
        row = measure_apart(way, size, getattr(torch, options.location_dtype), options.steps, options.threads)
        cells = [f"{number / MEGABYTE:.0f}" for number in (*row[1:6], row.rest)]
        cells += [f"{row.seconds:.2f}", f"{row.cpu_seconds:.2f}"]
        verdict = "within" if row.rest <= BAR else "beyond"
        print(f"{way:10}" + "".join(f"{cell:>12}" for cell in cells) + f"  {verdict} {BAR // MEGABYTE} MB")


if __name__ == "__main__":
    main()
