"""The figures of the benchmark as pictures."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

SIZE = (8, 5)


def draw_roofline(rows: list[Any], limits: dict[str, float], threads: int, path: Path) -> None:
    """Forward passes of all peers in float32 under the limits of the machine, for one number of threads."""
    figure, axes = plt.subplots(figsize=SIZE)
    intensities = [0.1, 100.0]
    axes.plot(
        intensities, [x * limits["copy"] / 1e9 for x in intensities], "k-", lw=1, label="copy bandwidth"
    )
    axes.axhline(limits["rows"] / 2e9, color="k", ls="--", lw=1, label="random rows")
    axes.axhline(limits["multiply_add"] / 1e9, color="k", ls=":", lw=1, label="multiply-add")
    shown = [
        row for row in rows if (row.dtype, row.direction, row.threads) == ("float32", "forward", threads)
    ]
    for peer in dict.fromkeys(row.peer for row in shown):
        mine = [row for row in shown if row.peer == peer]
        flops = [row.shape.count_flops("forward") for row in mine]
        x = [f / row.shape.count_bytes("float32", "forward", 4) for f, row in zip(flops, mine, strict=True)]
        y = [f / row.median / 1e9 for f, row in zip(flops, mine, strict=True)]
        ours = peer.startswith("ours")
        axes.plot(x, y, "*" if ours else "o", ms=13 if ours else 5, alpha=1 if ours else 0.6, label=peer)
    axes.set(xscale="log", yscale="log", xlabel="operations per compulsory byte", ylabel="GFLOP/s")
    axes.set_ylim(bottom=0.1)
    axes.set_title(f"forward, float32, {threads} threads")
    finish(figure, axes, path)


def draw_batch_sizes(rows: list[Any], path: Path) -> None:
    """Time per row of the batch over its size."""
    figure, axes = plt.subplots(figsize=SIZE)
    axes.plot(
        [row.shape.batch for row in rows],
        [row.median / row.shape.batch * 1e6 for row in rows],
        "o-",
        label="ours",
    )
    axes.set(xscale="log", yscale="log", xlabel="batch size", ylabel="microseconds per row")
    _, in_features, out_features, fan_in = rows[0].shape
    axes.set_title(
        f"forward, float32, {in_features} to {out_features}, fan-in {fan_in}, {rows[0].threads} threads"
    )
    finish(figure, axes, path)


def finish(figure: Any, axes: Any, path: Path) -> None:
    """Add what all pictures have, and write one."""
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
