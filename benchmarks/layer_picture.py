#!/usr/bin/env python3
"""The picture in docs/layer.md: what a small fixed fan-in layer computes, with its real connections.

python benchmarks/layer_picture.py docs/images/layer.png
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.patches import Rectangle
from torch_sparse_ops.nn import FixedFanInLinear

IN_FEATURES, OUT_FEATURES, FAN_IN = 8, 5, 3
SHOWN = 2  # the output that is explained
GREY, PALE, COLOUR = "#475569", "#cbd5e1", "#ea580c"
INPUTS_X, OUTPUTS_X, LOCATIONS_X, WEIGHTS_X, BIAS_X = 0.0, 4.0, 5.8, 8.6, 11.4
CELL = 0.8
SEED = 6  # all inputs are connected, and no weight of the explained output is rounded to 0


def input_y(index: int) -> float:
    """Inputs stand above each other, the first one highest."""
    return float(IN_FEATURES - 1 - index)


def output_y(index: int) -> float:
    """Outputs stand beside the inputs, in the middle of them."""
    return (OUT_FEATURES - 1 - index) * 1.2 + (IN_FEATURES - 1 - (OUT_FEATURES - 1) * 1.2) / 2


def draw_units(axes: Any) -> None:
    """Inputs at the left, outputs at the right of the network."""
    for i in range(IN_FEATURES):
        axes.plot(INPUTS_X, input_y(i), "o", ms=22, mfc="white", mec=GREY)
        axes.text(INPUTS_X, input_y(i), f"$x_{i}$", ha="center", va="center", color=GREY)
    for o in range(OUT_FEATURES):
        colour = COLOUR if o == SHOWN else GREY
        axes.plot(OUTPUTS_X, output_y(o), "o", ms=22, mfc="white", mec=colour)
        axes.text(OUTPUTS_X, output_y(o), f"$y_{o}$", ha="center", va="center", color=colour)
    axes.text(INPUTS_X, IN_FEATURES - 0.2, "features", ha="center", color=GREY)
    axes.text(OUTPUTS_X, IN_FEATURES - 0.2, "result", ha="center", color=GREY)


def draw_connections(axes: Any, layer: FixedFanInLinear) -> None:
    """A line for each connection; those of one output are coloured."""
    for o, inputs in enumerate(layer.locations.tolist()):
        colour, order = (COLOUR, 1) if o == SHOWN else (PALE, 0)
        for i in inputs:
            ends = (INPUTS_X + 0.27, OUTPUTS_X - 0.27), (input_y(i), output_y(o))
            axes.plot(*ends, color=colour, lw=2 if o == SHOWN else 1.2, zorder=order)


def draw_table(axes: Any, left: float, title: str, rows: list[list[str]]) -> None:
    """A row for each output, beside it."""
    axes.text(left + len(rows[0]) * CELL / 2, IN_FEATURES - 0.2, title, ha="center", color=GREY)
    for o, texts in enumerate(rows):
        for k, text in enumerate(texts):
            shown = o == SHOWN
            corner = (left + k * CELL, output_y(o) - 0.35)
            axes.add_patch(Rectangle(corner, CELL, 0.7, fc="white", ec=COLOUR if shown else PALE))
            middle = (corner[0] + CELL / 2, output_y(o))
            axes.text(*middle, text, ha="center", va="center", color=COLOUR if shown else GREY)


def explain(layer: FixedFanInLinear) -> str:
    """The sum that the coloured output is."""
    pairs = zip(layer.weight[SHOWN].tolist(), layer.locations[SHOWN].tolist(), strict=True)
    assert layer.bias is not None
    terms = [f"{layer.bias[SHOWN].item():.1f}", *(f"{weight:+.1f}\\,x_{i}" for weight, i in pairs)]
    return f"$y_{SHOWN} = b_{SHOWN} + \\sum_k w_{{{SHOWN},k}}\\,x_{{l({SHOWN},k)}} = {' '.join(terms)}$"


def main() -> None:
    """Draw it."""
    layer = FixedFanInLinear(IN_FEATURES, OUT_FEATURES, FAN_IN, generator=torch.Generator().manual_seed(SEED))
    figure, axes = plt.subplots(figsize=(10, 5.2), dpi=130)
    draw_connections(axes, layer)
    draw_units(axes)
    assert layer.bias is not None
    for left, title, tensor, shown in (
        (LOCATIONS_X, "locations", layer.locations, "{}"),
        (WEIGHTS_X, "weight", layer.weight, "{:+.1f}"),
        (BIAS_X, "bias", layer.bias[:, None], "{:+.1f}"),
    ):
        draw_table(axes, left, title, [[shown.format(value) for value in row] for row in tensor.tolist()])
    axes.text(0, -1.3, explain(layer), color=COLOUR, size="large")
    axes.set(xlim=(-0.5, BIAS_X + CELL + 0.3), ylim=(-1.6, IN_FEATURES + 0.3))
    axes.set_axis_off()
    figure.tight_layout()
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()
