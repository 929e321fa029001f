"""Check and time the fixed fan-in operators on a GPU beside the ways that torch has to compute the same.

Every kernel is compared with float64 before anything is timed. Times are medians of single calls between two
events, the caches of the device cleared before each; ``of copy`` is the bandwidth of the bytes that have to
move at least, relative to a copy within the device's memory. ``benchmarks/gpu.sh PACKAGE`` runs this with a
built package.

    python benchmarks/gpu.py                                   # at most four minutes
    python benchmarks/gpu.py --shapes 0,2 --dtypes bfloat16 --seconds 60
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import peers
import torch
import torch_sparse_ops
from peers import PASSES, SHAPES, TOLERANCES, Peer, Problem, Shape, compute_error
from torch_sparse_ops import ops

PEERS: list[Any] = [
    peers.Ours,
    peers.OursShort,
    peers.Dense,
    peers.SparseProduct,
    peers.EmbeddingBag,
    peers.Gather,
]
INDEX_DTYPES = (torch.int16, torch.int32, torch.int64)
ATOMICS = "TORCH_SPARSE_OPS_ATOMICS"
# Every width of tiles, full and not, in shared memory and too large for it, one step and several.
CHECKED = [
    *(Shape(batch, 50, 300, 40) for batch in (1, 2, 4, 5, 16, 17, 32, 33, 64, 65, 200)),
    *(Shape(batch, 60000, 300, 33) for batch in (1, 3, 16, 31, 64)),
    *(Shape(batch, 768, 20000, 32) for batch in (1, 4, 16, 32, 100)),
]
CALLS = 15
CLEARED_BYTES = 256 << 20
COLUMNS = f"{'peer':28} {'ms':>9} {'GB/s':>7} {'of copy':>8} {'GFLOP/s':>9} {'error':>8} {'ratio':>7}"


class Row(NamedTuple):
    """What was measured for one peer; the time in seconds."""

    peer: str
    median: float
    error: float


class Clock:
    """Times calls on the device, and says when the time for all of them is over."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.cleared = torch.empty(CLEARED_BYTES, dtype=torch.int8, device="cuda")

    def has_time(self) -> bool:
        """Whether another measurement may begin."""
        return time.monotonic() < self.end

    def time_call(self, function: Callable[[], Any]) -> float:
        """Return the seconds that the device works on a call."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.cleared.zero_()
        start.record()
        function()
        end.record()
        end.synchronize()
        milliseconds: float = start.elapsed_time(end)
        return milliseconds / 1e3

    def measure(self, function: Callable[[], Any]) -> float:
        """Return the median of several calls."""
        self.time_call(function)
        return statistics.median(self.time_call(function) for _ in range(CALLS))


def refuse_without_gpu() -> None:
    """Stop where nothing could be measured, and say what is missing."""
    if torch_sparse_ops.CUDA_VERSION is None:
        raise SystemExit(f"gpu.py: {torch_sparse_ops.__file__} is a build for the CPU: give the CUDA build")
    if torch.version.cuda is None:
        raise SystemExit(f"gpu.py: torch {torch.__version__} has no CUDA: give a Python with a CUDA build")
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu.py: torch {torch.__version__} finds no GPU: is there one, and its driver?")


def check_kernels(shape: Shape, dtype: torch.dtype) -> float:
    """Compare results, for every width of locations and both ways to sum, with float64; return the error."""
    problem = Problem(shape, dtype, "cuda")
    exact = peers.solve(problem, "forward") + peers.solve(problem, "both")
    worst = 0.0
    for index_dtype in INDEX_DTYPES:
        if shape.in_features > torch.iinfo(index_dtype).max:
            continue
        locations = problem.locations.to(index_dtype)
        for atomics in ("0", "1"):
            os.environ[ATOMICS] = atomics
            result = ops.ffi_forward(problem.features, problem.weights, locations, problem.bias)
            gradients = ops.ffi_backward(problem.grad_output, problem.features, problem.weights, locations)
            worst = max(worst, compute_error((result, *gradients), exact))
    os.environ[ATOMICS] = "0"
    return worst


def check_all(dtypes: list[torch.dtype]) -> None:
    """Check every kernel of some types; stop at the first wrong result."""
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        errors = {shape: check_kernels(shape, dtype) for shape in CHECKED}
        for shape, error in errors.items():
            if not error <= TOLERANCES[name]:
                raise SystemExit(f"gpu.py: wrong by {error:.1e} on {shape}, {name}")
        print(f"{name}: {len(errors)} shapes agree with float64, largest error {max(errors.values()):.1e}")


def prepare_peers(problem: Problem, direction: str) -> Iterator[tuple[Peer, float]]:
    """Yield the peers that compute the problem, with their error; explain those that cannot."""
    exact = peers.solve(problem, direction)
    for make in PEERS:
        try:
            peer = make(problem, direction)
            error = compute_error(peer.select(peer.run()), exact)
        except (RuntimeError, MemoryError) as failure:
            print(f"{make.name:28} not measured: {str(failure).splitlines()[0][:80]}")
            continue
        if error > TOLERANCES[problem.dtype_name]:
            print(f"{make.name:28} wrong by {error:.1e}: not measured")
            continue
        yield peer, error


def print_rows(problem: Problem, direction: str, rows: list[Row], copied: float) -> None:
    """Print a table, fastest first; ``ratio`` is the time of the best peer to that of the row."""
    print(f"\n{tuple(problem.shape)} {problem.dtype_name}, {direction}\n{COLUMNS}")
    best = min((row.median for row in rows if not row.peer.startswith("ours")), default=float("nan"))
    for row in sorted(rows, key=lambda row: row.median):
        bandwidth = problem.shape.count_bytes(problem.dtype_name, direction, index_bytes=4) / row.median
        flops = problem.shape.count_flops(direction) / row.median
        print(
            f"{row.peer:28} {row.median * 1e3:9.4f} {bandwidth / 1e9:7.0f} {bandwidth / copied:8.0%} "
            f"{flops / 1e9:9.0f} {row.error:8.1e} {best / row.median:7.2f}"
        )
    sys.stdout.flush()


def measure_backward(problem: Problem, clock: Clock) -> Row:
    """Time ffi_backward alone."""
    locations = problem.locations.int()
    seconds = clock.measure(
        lambda: ops.ffi_backward(problem.grad_output, problem.features, problem.weights, locations)
    )
    return Row("ours, backward alone", seconds, 0.0)


def measure(problem: Problem, direction: str, clock: Clock) -> list[Row]:
    """Time all peers."""
    rows = [
        Row(peer.name, clock.measure(peer.run), error) for peer, error in prepare_peers(problem, direction)
    ]
    return [*rows, measure_backward(problem, clock)] if direction == "both" else rows


def measure_copy(clock: Clock) -> float:
    """Return the bytes a second that a copy within the device's memory reads and writes."""
    source = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / clock.measure(lambda: target.copy_(source))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers = ",".join(str(number) for number in range(len(SHAPES)))
    parser.add_argument(
        "--shapes", default=numbers, help="numbers of shapes of fixed_fan_in.py (default: all)"
    )
    parser.add_argument("--dtypes", default="float32,bfloat16", help="to time (default: float32,bfloat16)")
    parser.add_argument("--passes", default=",".join(PASSES), help="forward, both (with backward)")
    parser.add_argument(
        "--seconds", type=float, default=210, help="begin nothing after so long (default: 210)"
    )
    return parser.parse_args()


def main() -> None:
    """Check, measure, print."""
    arguments = parse_arguments()
    refuse_without_gpu()
    clock = Clock(arguments.seconds)
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    print(f"{torch.cuda.get_device_name()} ({capability})")
    print(f"Python {sys.version.split()[0]}, torch {torch.__version__}")
    print(f"torch_sparse_ops {torch_sparse_ops.__version__} for CUDA {torch_sparse_ops.CUDA_VERSION}")
    check_all([getattr(torch, name) for name in TOLERANCES])
    copied = measure_copy(clock)
    print(f"copy {copied / 1e9:.0f} GB/s")
    for number in map(int, arguments.shapes.split(",")):
        for dtype in arguments.dtypes.split(","):
            if not clock.has_time():
                print(f"{tuple(SHAPES[number])} {dtype}: not measured, the time is over")
                continue
            problem = Problem(SHAPES[number], getattr(torch, dtype), "cuda")
            for direction in arguments.passes.split(","):
                print_rows(problem, direction, measure(problem, direction, clock), copied)


if __name__ == "__main__":
    main()
