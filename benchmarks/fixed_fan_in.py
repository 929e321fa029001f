"""Time the fixed fan-in operators on the CPU beside every way that torch and scipy have to compute the same.

All of them start from batch-major features and deliver a contiguous batch-major result with bias; in the
backward pass, gradients for features, weights and bias. What depends on parameters alone (a dense weight,
index arrays) is made beforehand; transposes of activations are timed. Every configuration is compared with
float64 before it is timed. Peers and limits of the machine are measured in the same process, in turns, so
that ratios hold where times do not.

    python benchmarks/fixed_fan_in.py                                    # everything: ten minutes or more
    python benchmarks/fixed_fan_in.py --shapes 0,3 --threads 1 --passes forward
    python benchmarks/fixed_fan_in.py --json before.json                 # keep, then, at another commit:
    python benchmarks/fixed_fan_in.py --json after.json --compare before.json
    python benchmarks/fixed_fan_in.py --plots docs/images                # roofline.png, batch_size.png
"""

import argparse
import ctypes
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import limits
import peers
import plots
import torch
import torch_sparse_ops
from peers import PASSES, SHAPES, TOLERANCES, Peer, Problem, Shape, compute_error

CURVE = Shape(0, 768, 32768, 32)  # batch sizes are varied
CURVE_BATCHES = [1, 2, 3, 4, 5, 8, 9, 16, 17, 24, 32, 33, 48, 49, 64, 65, 96, 128, 129, 256, 512, 1024]
COLUMNS = (
    f"{'peer':28} {'ms':>9} {'lowest':>9} {'GFLOP/s':>8} {'GB/s':>7} {'of rows':>8} {'of copy':>8} "
    f"{'MiB':>7} {'error':>8} {'ratio':>7}"
)


class Row(NamedTuple):
    """What was measured for one peer; times in seconds, rates per second, sizes in bytes."""

    shape: Shape
    dtype: str
    direction: str
    threads: int
    peer: str
    median: float
    lowest: float
    peak_memory: int
    error: float


def time_call(function: Callable[[], Any]) -> float:
    """Return the seconds that a call takes; its result is given back afterwards."""
    start = time.perf_counter()
    result = function()
    seconds = time.perf_counter() - start
    del result
    return seconds


def measure_peak_memory(function: Callable[[], Any]) -> int:
    """Return by how many bytes the resident set grows in a call, from Linux's resettable high-water mark."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what earlier calls left behind counts as new again
    Path("/proc/self/clear_refs").write_text("5")
    before = read_status("VmRSS")
    result = function()
    peak = read_status("VmHWM")
    del result
    return max(0, peak - before)


def read_status(key: str) -> int:
    """Return an entry of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def prepare_peers(problem: Problem, direction: str, wanted: list[str]) -> Iterator[tuple[Peer, int, float]]:
    """Yield the peers that compute the problem, with peak memory and error; explain those that cannot."""
    exact = peers.solve(problem, direction)
    for make in peers.PEERS:
        if wanted and not any(part in make.name for part in wanted):
            continue
        try:
            peer = make(problem, direction)
            error = compute_error(peer.select(peer.run()), exact)
        except (RuntimeError, ImportError, MemoryError) as failure:
            print(f"{make.name:28} not measured: {str(failure).splitlines()[0][:100]}")
            continue
        if error > TOLERANCES[problem.dtype_name]:
            message = f"{make.name:28} wrong by {error:.1e} on {problem.shape}, {problem.dtype_name}"
            if make.name.startswith("ours"):
                raise SystemExit(message)
            print(f"{message}: not measured")
            continue
        yield peer, measure_peak_memory(peer.run), error


def measure(problem: Problem, direction: str, threads: int, wanted: list[str], rounds: int) -> list[Row]:
    """Time all peers in turns, several rounds of several calls."""
    torch.set_num_threads(threads)
    prepared = list(prepare_peers(problem, direction, wanted))
    times: list[list[float]] = [[] for _ in prepared]
    for _ in range(rounds):
        for (peer, _, _), seconds in zip(prepared, times, strict=True):
            first = time_call(peer.run)
            calls = max(1, min(200, int(0.2 / first)))
            seconds += [time_call(peer.run) for _ in range(calls)]
    head = (problem.shape, problem.dtype_name, direction, threads)
    return [
        Row(*head, peer.name, statistics.median(seconds), min(seconds), memory, error)
        for (peer, memory, error), seconds in zip(prepared, times, strict=True)
    ]


def print_rows(rows: list[Row], measured: dict[str, float], index_bytes: int) -> None:
    """Print a table, fastest first; ``ratio`` is the time of the best peer to that of the row."""
    head = rows[0]
    print(f"\n{tuple(head.shape)} {head.dtype}, {head.direction}, {head.threads} thread(s)\n{COLUMNS}")
    best = min((row.median for row in rows if not row.peer.startswith("ours")), default=float("nan"))
    for row in sorted(rows, key=lambda row: row.median):
        flops = row.shape.count_flops(row.direction) / row.median
        bandwidth = row.shape.count_bytes(row.dtype, row.direction, index_bytes) / row.median
        # A product reads one value of a row of features: 4 bytes for 2 operations, in both directions.
        reads = 2 * flops
        print(
            f"{row.peer:28} {row.median * 1e3:9.3f} {row.lowest * 1e3:9.3f} {flops / 1e9:8.1f} "
            f"{bandwidth / 1e9:7.2f} {reads / measured['rows']:8.0%} {bandwidth / measured['copy']:8.0%} "
            f"{row.peak_memory / 2**20:7.1f} {row.error:8.1e} {best / row.median:7.2f}"
        )
    sys.stdout.flush()


def measure_curve(rounds: int) -> list[Row]:
    """Time the forward pass of our operator alone over many batch sizes."""
    rows = []
    for batch in CURVE_BATCHES:
        problem = Problem(CURVE._replace(batch=batch), torch.float32)
        rows += measure(problem, "forward", torch.get_num_threads(), ["ours, int32"], rounds)
        print(
            f"batch {batch:5}  {rows[-1].median * 1e3:8.3f} ms, {rows[-1].median / batch * 1e6:8.2f} us a row"
        )
    return rows


def compare_rows(rows: list[Row], path: Path) -> None:
    """Print the times of our operators beside those of an earlier run, as ratios earlier / now."""
    earlier = {tuple(map(str, key_row(row))): row["median"] for row in json.loads(path.read_text())["rows"]}
    print(f"\n{path} / now")
    for row in rows:
        key = tuple(map(str, key_row(row._asdict())))
        if row.peer.startswith("ours") and key in earlier:
            print(f"{earlier[key] / row.median:6.2f}  {', '.join(key)}")


def key_row(row: dict[str, Any]) -> tuple[Any, ...]:
    """What tells one configuration from another."""
    return (list(row["shape"]), row["dtype"], row["direction"], row["threads"], row["peer"])


def describe_machine() -> dict[str, Any]:
    """What the figures belong to."""
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "cpu": cpu,
        "capability": torch_sparse_ops.cpu_capability(),
        "torch": torch.__version__,
        "torch_sparse_ops": torch_sparse_ops.__version__,
    }


def words_of(*accepted: str) -> Callable[[str], list[str]]:
    """Return a reader of words separated by commas, each of which must be accepted."""

    def read(text: str) -> list[str]:
        for word in text.split(","):
            if word not in accepted:
                raise argparse.ArgumentTypeError(f"received {word!r}, accepted are {', '.join(accepted)}")
        return text.split(",")

    return read


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers = [str(number) for number in range(len(SHAPES))]
    shapes, dtypes, passes = words_of(*numbers), words_of(*TOLERANCES), words_of(*PASSES)
    every_shape, every_pass = ",".join(numbers), ",".join(PASSES)
    parser.add_argument("--shapes", type=shapes, default=every_shape, help="numbers, 0 to 5 (default: all)")
    parser.add_argument("--dtypes", type=dtypes, default="float32", help="such as float32,bfloat16")
    parser.add_argument("--threads", default="2,1", help="numbers of threads (default: 2,1)")
    parser.add_argument("--passes", type=passes, default=every_pass, help="forward, both (with backward)")
    parser.add_argument("--peers", default="", help="parts of the names of peers (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all peers in turn (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="an earlier --json to compare with")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw roofline.png and batch_size.png")
    return parser.parse_args()


def main() -> None:
    """Measure, print, draw."""
    arguments = parse_arguments()
    machine = describe_machine()
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    wanted = [part for part in arguments.peers.split(",") if part]
    rows: list[Row] = []
    measured: dict[int, dict[str, float]] = {}
    for threads in map(int, arguments.threads.split(",")):
        torch.set_num_threads(threads)
        measured[threads] = limits.measure()
        print(f"{threads} thread(s): {limits.describe(measured[threads])}")
    for number in map(int, arguments.shapes):
        for dtype in arguments.dtypes:
            problem = Problem(SHAPES[number], getattr(torch, dtype))
            for direction in arguments.passes:
                for threads in measured:
                    found = measure(problem, direction, threads, wanted, arguments.rounds)
                    print_rows(found, measured[threads], index_bytes=4)
                    rows += found
    if arguments.compare:
        compare_rows(rows, arguments.compare)
    curve: list[Row] = []
    if arguments.plots:
        threads = max(measured)
        torch.set_num_threads(threads)
        curve = measure_curve(arguments.rounds)
        plots.draw_roofline(rows, measured[threads], threads, arguments.plots / "roofline.png")
        plots.draw_batch_sizes(curve, arguments.plots / "batch_size.png")
    if arguments.json:
        document = {
            "machine": machine,
            "limits": measured,
            "rows": [row._asdict() for row in rows],
            "curve": [row._asdict() for row in curve],
        }
        arguments.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
