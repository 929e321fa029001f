"""What the machine can do, measured with torch in this process, for its present number of threads."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

MEBIBYTE = 2**20


def _best(function: Callable[[], Any]) -> float:
    """Seconds of the fastest call in half a second, since other work on the machine comes in bursts."""
    seconds: list[float] = []
    while sum(seconds) < 0.5:
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def measure_copy() -> float:
    """Bytes read and written per second by a copy of 256 MiB."""
    source = torch.ones(64 * MEBIBYTE)  # zeros might share one page
    target = torch.zeros_like(source)
    return 2 * 4 * source.numel() / _best(lambda: target.copy_(source))


def measure_multiply_add() -> float:
    """Floating-point operations per second of a float32 matrix product or a convolution, whichever has more.

    One of them comes close to the peak. They are from two libraries (MKL, oneDNN), of which MKL does not use
    every processor's widest instructions.
    """
    size, channels, side = 1536, 64, 112
    left, right = torch.randn(size, size), torch.randn(size, size)
    result = torch.empty(size, size)
    product = 2 * size**3 / _best(lambda: torch.mm(left, right, out=result))
    image = torch.randn(1, channels, side, side).to(memory_format=torch.channels_last)
    kernel = torch.randn(channels, channels, 3, 3)
    operations = 2 * 9 * channels**2 * (side - 2) ** 2
    return max(product, operations / _best(lambda: F.conv2d(image, kernel)))


def measure_rows() -> float:
    """Bytes per second read by sums over random rows of 64 floats out of 512, which fill the L2 cache."""
    table = torch.randn(512, 64)
    rows = torch.randint(512, (4096, 256), dtype=torch.int32)
    return 4 * rows.numel() * 64 / _best(lambda: F.embedding_bag(rows, table, mode="sum"))


def measure() -> dict[str, float]:
    """All limits, per second: ``copy`` and ``rows`` in bytes, ``multiply_add`` in operations."""
    return {"copy": measure_copy(), "rows": measure_rows(), "multiply_add": measure_multiply_add()}


def describe(limits: dict[str, float]) -> str:
    """Return the limits as a sentence."""
    return (
        f"copies {limits['copy'] / 1e9:.1f} GB/s, random rows {limits['rows'] / 1e9:.0f} GB/s, "
        f"multiply-add {limits['multiply_add'] / 1e9:.0f} GFLOP/s"
    )
