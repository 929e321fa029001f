#!/usr/bin/env python3
"""Train an extreme output layer on real text: a dense one and one with a fixed fan-in, side by side.

The text is the source of the running interpreter's standard library. A small model sees the preceding names
(identifiers and keywords; not comments, strings, numbers and operators) and predicts the next one. Its output
layer has one unit for every distinct name, about 70,000, and holds most of its weights. It is trained with
``torch.nn.Linear`` as that layer and with ``torch_sparse_ops.nn.FixedFanInLinear``, all else being equal:
seed, batches, trunk, optimiser, and either time (the default) or number of steps. Each training has a process
of its own, so that its peak memory is its own.

Both share a learning rate. Of 0.002, 0.004 and 0.008 the lowest had the best held-out loss after 200 steps
with the fixed fan-in (7.11, 7.11, 7.19), the highest with the dense layer (7.05, 7.05, 7.02); that then rose.
"""

import argparse
import json
import math
import re
import sys
import sysconfig
import tempfile
import time
import tokenize
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from itertools import accumulate, islice
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

try:
    import numpy as np
    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from numpy.typing import NDArray
    from torch import Tensor, nn
    from torch_sparse_ops.losses import linear_cross_entropy, linear_topk
    from torch_sparse_ops.nn import FixedFanInLinear
    from torch_sparse_ops.sparsity import RigL
except ImportError as error:
    sys.exit(
        f"next_token.py: {error}\n{sys.executable} needs torch-sparse-ops, numpy and matplotlib-base in its "
        "environment, for example: conda install -c conda-forge torch-sparse-ops matplotlib-base"
    )

CONTEXT = 8  # names seen to predict the next one
EMBEDDING = 64  # features of each of them
HIDDEN = 256  # features the output layer sees
LEARNING_RATE = 0.002
RIGL_INTERVAL = 50
HELD_OUT_FILES = 0.1  # of all
HELD_OUT_BATCHES, HELD_OUT_BATCH = 32, 128
SMOOTHED_STEPS = 50  # training losses are shown as means over so many steps
RANGES = {"steps": (1, 9e9), "seconds": (1, 9e9), "batch": (1, 1e5), "fan-in": (1, HIDDEN), "seed": (0, 9e9)}
RANGES["rigl"] = (1, 9e9)
COLOURS = ("#475569", "#ea580c")
MIB = 2**20

# Names, and what must be stepped over as a whole because it may contain what looks like a name.
NAME = re.compile(
    r"""
    \#[^\n]*
    | (?i:[rbfut]{0,2}) (?: "{3} (?:[^\\]|\\.)*? "{3} | '{3} (?:[^\\]|\\.)*? '{3}
                          | " (?:[^"\\\n]|\\.)* " | ' (?:[^'\\\n]|\\.)* ' )
    | 0[xXbBoO]\w+ | (?: \d[\d_]*\.?[\d_]* | \.\d[\d_]* ) (?:[eE][+-]?\d[\d_]*)? [jJ]?
    | ([^\W\d]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Text:
    """Streams of numbers of names; before each file stands the number ``names``, ``CONTEXT`` times."""

    names: int
    train: NDArray[np.int32]
    held_out: NDArray[np.int32]


@dataclass(frozen=True)
class Model:
    """One to compare; ``fan_in`` None is a dense output layer, which knows neither of the last two."""

    label: str
    fan_in: int | None
    fused: bool = False  # whether the logits are never held
    rigl: int | None = None  # the step up to which connections are exchanged


class Step(NamedTuple):
    """Training loss of one batch, and seconds spent on it."""

    loss: float
    forward: float
    backward: float
    optimiser: float


@dataclass(frozen=True)
class Trained:
    """What one training gave. Memory is physical, in bytes; ``memory_before`` holds torch and the text."""

    model: Model
    output_parameters: int
    output_bytes: int
    parameters: int
    memory_before: int
    memory_peak: int
    steps: list[Step]
    held_out_loss: float
    held_out_top1: float
    held_out_top5: float

    def elapsed(self) -> list[float]:
        """Return the seconds of training up to the end of each step."""
        return list(accumulate(sum(step[1:]) for step in self.steps))

    def smoothed(self) -> list[float]:
        """Return for each step the mean training loss of the latest ones."""
        losses = [step.loss for step in self.steps]
        return [fmean(losses[max(0, i - SMOOTHED_STEPS) : i]) for i in range(1, len(losses) + 1)]


def log(line: str) -> None:
    """Say how far it is."""
    print(line, file=sys.stderr, flush=True)


def read_names(path: Path) -> list[str]:
    """Return the names in a source file, in order: what ``tokenize`` calls NAME, several times faster.

    Strings are left out whole, those with expressions in braces too.
    """
    with tokenize.open(path) as file:
        return [name for name in NAME.findall(file.read()) if name]


def read_text(directory: Path, seed: int) -> Text:
    """Read all source files under a directory, except site-packages, and hold some of the files out."""
    files = []
    for path in sorted(path for path in directory.rglob("*.py") if "site-packages" not in path.parts):
        try:
            files.append(read_names(path))
        except (SyntaxError, UnicodeDecodeError):  # the library's tests have files in no valid encoding
            continue
    number = {name: i for i, name in enumerate(dict.fromkeys(name for names in files for name in names))}
    train: list[int] = []
    held_out: list[int] = []
    is_held_out = np.random.default_rng(seed).random(len(files)) < HELD_OUT_FILES
    for i, names in enumerate(files):
        stream = held_out if is_held_out[i] else train
        stream += [len(number)] * CONTEXT + [number[name] for name in names]
    if len(set(train)) < 2 or len(set(held_out)) < 2:
        raise OSError(f"{directory}: {len(files)} source files are too few to train and test on")
    return Text(len(number), np.array(train, dtype=np.int32), np.array(held_out, dtype=np.int32))


def draw_examples(stream: NDArray[np.int32], batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield contexts ``[batch, CONTEXT]`` and the names that follow ``[batch]``: all, shuffled, endlessly."""
    random = np.random.default_rng(seed)
    positions = np.flatnonzero(stream != stream[0])
    while True:
        random.shuffle(positions)
        for drawn in np.split(positions, range(batch, len(positions), batch)):
            contexts = stream[drawn[:, None] + np.arange(-CONTEXT, 0)]
            yield torch.from_numpy(contexts), torch.from_numpy(stream[drawn]).long()


def build_network(model: Model, text: Text) -> nn.Sequential:
    """Return the network from contexts ``[batch, CONTEXT]`` to logits ``[batch, names]``."""
    output: nn.Linear | FixedFanInLinear
    if model.fan_in is None:
        output = nn.Linear(HIDDEN, text.names)
    else:
        output = FixedFanInLinear(HIDDEN, text.names, model.fan_in)
    # Start from how often each name occurs, so that training is spent on what the context tells.
    counts = np.bincount(text.train, minlength=text.names)[: text.names] + 1.0
    with torch.no_grad():
        output.get_parameter("bias").copy_(torch.from_numpy(np.log(counts / counts.sum())))
    trunk = nn.Linear(CONTEXT * EMBEDDING, HIDDEN)
    embedding = nn.Embedding(text.names + 1, EMBEDDING)
    return nn.Sequential(embedding, nn.Flatten(), trunk, nn.GELU(), nn.LayerNorm(HIDDEN), output)


def split_network(network: nn.Sequential) -> tuple[nn.Module, FixedFanInLinear]:
    """Return the trunk, and the output layer with a fixed fan-in."""
    output = network[-1]
    assert isinstance(output, FixedFanInLinear)
    return network[:-1], output


def measure_loss(network: nn.Sequential, fused: bool, *examples: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of contexts and the names that follow, through the logits or without them."""
    contexts, following = examples
    if not fused:
        return nn.functional.cross_entropy(network(contexts), following, reduction=reduction)
    trunk, output = split_network(network)
    return linear_cross_entropy(trunk(contexts), output, following, reduction=reduction)


def guess_names(network: nn.Sequential, fused: bool, contexts: Tensor, count: int) -> Tensor:
    """Return the most likely names ``[batch, count]``, the likeliest first."""
    if not fused:
        logits: Tensor = network(contexts)
        return logits.topk(count).indices
    trunk, output = split_network(network)
    return linear_topk(trunk(contexts), output, count).indices


def take_step(
    network: nn.Sequential, fused: bool, optimiser: torch.optim.Adam, rigl: RigL | None, *examples: Tensor
) -> Step:
    """Learn from one batch."""
    begin = time.perf_counter()
    loss = measure_loss(network, fused, *examples)
    forward = time.perf_counter()
    optimiser.zero_grad()
    torch.autograd.backward(loss)
    backward = time.perf_counter()
    if rigl is None or not rigl.step():
        optimiser.step()
    return Step(loss.item(), forward - begin, backward - forward, time.perf_counter() - backward)


def train_steps(network: nn.Sequential, model: Model, text: Text, options: argparse.Namespace) -> list[Step]:
    """Train until a limit is met, and tell about ten times."""
    optimiser = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, fused=True)
    rigl = RigL(network, optimiser, interval=RIGL_INTERVAL, end=model.rigl) if model.rigl else None
    steps: list[Step] = []
    elapsed = done = reported = 0.0
    examples = draw_examples(text.train, options.batch, options.seed)
    while done < 1:
        steps.append(take_step(network, model.fused, optimiser, rigl, *next(examples)))
        elapsed += sum(steps[-1][1:])
        done = max(len(steps) / options.steps, elapsed / options.seconds)
        if done >= min(1, reported + 0.1):
            reported = done
            log(f"{model.label}: step {len(steps)}, {elapsed:.1f} s, training loss {steps[-1].loss:.2f}")
    return steps


@torch.no_grad()
def evaluate(network: nn.Sequential, model: Model, text: Text) -> tuple[float, float, float]:
    """Return loss, top-1 and top-5 accuracy on held-out names, the same for every model."""
    losses, hits = [], []
    examples = draw_examples(text.held_out, HELD_OUT_BATCH, seed=0)
    for contexts, following in islice(examples, HELD_OUT_BATCHES):
        losses.append(measure_loss(network, model.fused, contexts, following, reduction="none"))
        hits.append(guess_names(network, model.fused, contexts, min(5, text.names)) == following[:, None])
    hit = torch.cat(hits).double()
    return torch.cat(losses).mean().item(), hit[:, 0].mean().item(), hit.sum(dim=1).mean().item()


def read_memory(field: str) -> int:
    """Return physical memory of this process in bytes, as Linux has it: VmRSS is now, VmHWM was at most."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


def train(model: Model, text: Text, options: argparse.Namespace) -> Trained:
    """Train one model and measure it. Peak memory is that of the process: give each model its own."""
    memory_before = read_memory("VmRSS")
    torch.manual_seed(options.seed)
    network = build_network(model, text)
    steps = train_steps(network, model, text, options)
    memory_peak = read_memory("VmHWM")
    output = network[-1]
    output_parameters, parameters = (sum(p.numel() for p in part.parameters()) for part in (output, network))
    output_bytes = sum(tensor.nbytes for tensor in output.state_dict().values())
    sizes = (output_parameters, output_bytes, parameters, memory_before, memory_peak)
    return Trained(model, *sizes, steps, *evaluate(network, model, text))


def train_apart(model: Model, text: Text, options: argparse.Namespace) -> Trained:
    """Call :func:`train` in a new process."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(train, model, text, options).result()
        except BrokenProcessPool:
            sys.exit(f"next_token.py: '{model.label}' was killed; a smaller --batch needs less memory")


# What a line of the table says, and how it reads in what was trained.
LINES: tuple[tuple[str, Callable[[Trained], str]], ...] = (
    ("inputs of each output", lambda t: f"{t.model.fan_in or HIDDEN:,}"),
    ("parameters of the output layer", lambda t: f"{t.output_parameters:,}"),
    ("  in memory, with locations (MiB)", lambda t: f"{t.output_bytes / MIB:,.1f}"),
    ("parameters in total", lambda t: f"{t.parameters:,}"),
    ("peak memory of the process (MiB)", lambda t: f"{t.memory_peak / MIB:,.0f}"),
    ("  above torch and the text (MiB)", lambda t: f"{(t.memory_peak - t.memory_before) / MIB:,.0f}"),
    ("steps", lambda t: f"{len(t.steps):,}"),
    ("seconds of training", lambda t: f"{t.elapsed()[-1]:.1f}"),
    ("median step: forward (ms)", lambda t: f"{1000 * median(step.forward for step in t.steps):.1f}"),
    ("             backward (ms)", lambda t: f"{1000 * median(step.backward for step in t.steps):.1f}"),
    ("             optimiser (ms)", lambda t: f"{1000 * median(step.optimiser for step in t.steps):.1f}"),
    ("held-out loss", lambda t: f"{t.held_out_loss:.3f}"),
    ("held-out accuracy, first guess", lambda t: f"{t.held_out_top1:.1%}"),
    ("held-out accuracy, first five", lambda t: f"{t.held_out_top5:.1%}"),
)


def format_table(results: list[Trained]) -> str:
    """Return all numbers, a column for each model; training loss at equal steps and at equal time."""
    steps = min(len(trained.steps) for trained in results)
    seconds = min(trained.elapsed()[-1] for trained in results)
    at_equal_time = [t.smoothed()[max(0, bisect_right(t.elapsed(), seconds) - 1)] for t in results]
    rows = [["", *(trained.model.label for trained in results)]]
    rows += [[title, *(show(trained) for trained in results)] for title, show in LINES]
    rows.append([f"training loss after {steps} steps", *(f"{t.smoothed()[steps - 1]:.3f}" for t in results)])
    rows.append([f"training loss after {seconds:.1f} s", *(f"{loss:.3f}" for loss in at_equal_time)])
    widths = [2 + max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (title.ljust(widths[0]) + "".join(map(str.rjust, cells, widths[1:])) for title, *cells in rows)
    return "\n".join(lines)


def draw_losses(axes: Axes, results: list[Trained], by: str, at: Callable[[Trained], list[float]]) -> None:
    """Draw smoothed training losses, each with its last value at its end."""
    for trained, colour in zip(results, COLOURS, strict=True):
        losses, end = trained.smoothed(), at(trained)[-1]
        axes.plot(at(trained), losses, color=colour, linewidth=2, label=trained.model.label)
        axes.plot(end, losses[-1], "o", color=colour)
        axes.annotate(f" {losses[-1]:.2f}", (end, losses[-1]), color=colour, va="bottom", weight="bold")
    axes.set_title(f"training loss by {by}", loc="left")
    axes.margins(x=0.1)
    axes.set_xlim(left=0)
    axes.grid(axis="y", color="#e5e7eb")


# Title of a panel of bars, their lengths, and what is written on them.
BARS: tuple[tuple[str, Callable[[Trained], float], Callable[[float], str]], ...] = (
    ("output layer, parameters", lambda t: t.output_parameters, lambda count: f"{count / 1e6:.1f} million"),
    ("peak memory, process", lambda t: t.memory_peak, lambda size: f"{size / MIB:,.0f} MiB"),
    ("held-out, first guess right", lambda t: t.held_out_top1, lambda share: f"{share:.1%}"),
    ("held-out, first five right", lambda t: t.held_out_top5, lambda share: f"{share:.1%}"),
)


def draw_figure(results: list[Trained], text: Text) -> Figure:
    """Draw losses above, bars below."""
    layout = ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.15, hspace=0.05)
    figure = Figure(figsize=(12, 7), dpi=130, facecolor="white", layout=layout)
    grid = figure.add_gridspec(2, 12, height_ratios=(3, 2))
    by_time, by_step = (figure.add_subplot(grid[0, at : at + 6]) for at in (0, 6))
    draw_losses(by_time, results, "seconds", Trained.elapsed)
    draw_losses(by_step, results, "steps", lambda t: [*range(1, len(t.steps) + 1)])
    by_time.legend(frameon=False)
    labels = [trained.model.label for trained in results]
    for i, (title, measure, show) in enumerate(BARS):
        axes = figure.add_subplot(grid[1, 3 * i : 3 * i + 3])
        values = [measure(trained) for trained in results]
        bars = axes.bar(labels, values, width=0.6, color=COLOURS)
        axes.bar_label(bars, [show(value) for value in values], padding=3)
        axes.set_title(title, loc="left")
        axes.margins(y=0.15)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    title = f"Predicting which of {text.names:,} names comes next in Python source"
    figure.suptitle(title, x=0.01, ha="left", size="x-large", weight="bold")
    return figure


def write_results(directory: Path, results: list[Trained], text: Text, options: argparse.Namespace) -> None:
    """Write next_token.json and next_token.png, each whole or not at all."""
    record = {
        "versions": {"python": sys.version, "torch": torch.__version__},
        "threads": torch.get_num_threads(),
        "names": text.names,
        "options": {name: str(value) for name, value in vars(options).items()},
        "step_columns": Step._fields,
        "models": [asdict(trained) for trained in results],
    }
    with tempfile.TemporaryDirectory(dir=directory, prefix=".next_token-") as temporary:
        made = Path(temporary)
        (made / "next_token.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
        draw_figure(results, text).savefig(made / "next_token.png")
        for path in sorted(made.iterdir()):
            path.replace(directory / path.name)


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Train a predictor of the next name in Python source, with a dense output layer and a "
        "fixed fan-in one. Print a table; write next_token.json (all numbers) and next_token.png."
    )
    add, library, here = parser.add_argument, Path(sysconfig.get_path("stdlib")), Path("next_token")
    add("--seconds", type=float, help="train each model for so long (default: 40; with --steps, no limit)")
    add("--steps", type=int, help="train each model for so many steps at most (default: no limit)")
    add("--batch", type=int, default=64, help="names predicted in a step (default: 64)")
    add("--fan-in", type=int, default=32, help=f"connections of each output, at most {HIDDEN} (default: 32)")
    add("--fused", action="store_true", help="never hold the logits of the fixed fan-in layer")
    add("--rigl", type=int, metavar="STEP", help="exchange its connections up to a step (default: never)")
    add("--seed", type=int, default=0, help="of weights, locations, batches, held-out files (default: 0)")
    add("--text", type=Path, metavar="DIR", default=library, help="Python source (default: standard library)")
    add("--output", type=Path, metavar="DIR", default=here, help="for the results (default: %(default)s)")
    options = parser.parse_args()
    for option, (least, most) in RANGES.items():
        value = getattr(options, option.replace("-", "_"))
        if value is not None and not least <= value <= most:
            parser.error(f"argument --{option}: received {value}, accepted is {least} to {most:g}")
    options.seconds = options.seconds or (math.inf if options.steps else 40.0)
    options.steps = options.steps or math.inf
    return options


def main() -> None:
    """Read, train, tell."""
    begin, options = time.perf_counter(), read_arguments()
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=options.output).close()  # that it can be written is known before training
        text = read_text(options.text, options.seed)
    except OSError as error:
        log(f"next_token.py: {error}")
        sys.exit(2)
    log(f"{len(text.train):,} names to learn from, {text.names:,} distinct ones")
    dense = Model("dense", None)
    label = f"fixed fan-in {options.fan_in}" + ", fused" * options.fused + ", RigL" * bool(options.rigl)
    fixed_fan_in = Model(label, options.fan_in, options.fused, options.rigl)
    results = [train_apart(model, text, options) for model in (dense, fixed_fan_in)]
    write_results(options.output, results, text, options)
    print(format_table(results))
    log(f"next_token.json and next_token.png are in {options.output}; {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
