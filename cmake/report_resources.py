"""Run nvcc and print what its kernels use, as a table: a row for each kernel, a column for each architecture.

    python report_resources.py nvcc -Xptxas=-v ...

Entries read registers, bytes of shared memory that the kernel itself declares, and bytes spilled, if any.
CMake puts this before the compiler (CUDA_COMPILER_LAUNCHER), so that every build has the table in its log.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

KERNEL = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\w+)'")
SPILLS = re.compile(r"bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
# What nvcc -v says of ptxas and of the functions it compiles; everything else is for the reader of the log.
CHATTER = re.compile(r"^(ptxas info|\s+\d+ bytes stack frame)")
TYPES = {"f": "float", "d": "double", "t": "uint16", "j": "uint32", "m": "uint64"}
ARGUMENT = re.compile(r"L[ib](\d+)E|(\d+)|([a-z])")


class Usage(NamedTuple):
    """What one kernel uses on one architecture."""

    kernel: str
    architecture: str
    registers: int
    shared: int
    spilled: int


def take_name(mangled: str) -> tuple[str, str]:
    """Split ``7forward...`` into a name and the rest."""
    length = re.match(r"\d+", mangled)
    assert length, mangled
    end = length.end() + int(length[0])
    return mangled[length.end() : end], mangled[end:]


def describe_kernel(mangled: str) -> str:
    """``_ZN16torch_sparse_ops4packIfLi32EEEvT_`` as ``pack<float, 32>``."""
    _, rest = take_name(mangled.removeprefix("_ZN"))
    name, rest = take_name(rest)
    arguments, rest = [], rest.removeprefix("I")
    while match := ARGUMENT.match(rest):
        if match[2]:
            argument, rest = take_name(rest)
        else:
            argument, rest = match[1] or TYPES[match[3]], rest[match.end() :]
        arguments.append(argument)
    return f"{name}<{', '.join(arguments)}>"


def read_usage(lines: list[str]) -> Iterator[Usage]:
    """Read what ``ptxas -v`` prints: three lines for each kernel and architecture."""
    kernel = architecture = ""
    spilled = 0
    for line in lines:
        if match := KERNEL.search(line):
            kernel, architecture = describe_kernel(match[1]), match[2]
        elif match := SPILLS.search(line):
            spilled = int(match[1]) + int(match[2])
        elif match := USED.search(line):
            yield Usage(kernel, architecture, int(match[1]), int(match[2] or 0), spilled)


def format_usage(usage: Usage) -> str:
    """``64``, ``64+8192`` with shared memory, ``64 SPILLS 80`` with spills."""
    shared = f"+{usage.shared}" if usage.shared else ""
    spills = f" SPILLS {usage.spilled}" if usage.spilled else ""
    return f"{usage.registers}{shared}{spills}"


def format_table(usages: list[Usage]) -> str:
    """Lay out kernels by architectures."""
    architectures = sorted({usage.architecture for usage in usages}, key=int)
    entries = {(usage.kernel, usage.architecture): format_usage(usage) for usage in usages}
    kernels = sorted({usage.kernel for usage in usages})
    rows = [["registers+shared", *(f"sm_{name}" for name in architectures)]]
    rows += [[kernel, *(entries.get((kernel, name), "-") for name in architectures)] for kernel in kernels]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    spilling = sum(usage.spilled > 0 for usage in usages)
    return "\n".join([*(line.rstrip() for line in lines), f"{len(usages)} kernels, {spilling} spill"])


def main() -> int:
    """Run the compiler; pass on its status and all that is no report."""
    done = subprocess.run(sys.argv[1:], stdout=sys.stdout, stderr=subprocess.PIPE, text=True, check=False)
    lines = done.stderr.splitlines()
    print(
        "\n".join(line for line in lines if not CHATTER.match(line)),
        end="\n" if lines else "",
        file=sys.stderr,
    )
    if usages := list(read_usage(lines)):
        print(format_table(usages))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
