"""The table of what CUDA kernels use: how it is made, and what it says of the kernels of the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACK = "_ZN16torch_sparse_ops9pack_rowsItEEvPKT_llilPS1_"
FORWARD = "_ZN16torch_sparse_ops15compute_forwardI6__halfLi32ELi2ELb1EEEvNS_5LayerENS_3CutEPKT_S5_PS3_"
#: What nvcc prints with -Xptxas=-v, and a warning in between.
PRINTED = f"""ptxas info    : 120 bytes gmem, 32 bytes cmem[4]
ptxas info    : Compiling entry function '{FORWARD}' for 'sm_100'
ptxas info    : Function properties for {FORWARD}
    96 bytes stack frame, 80 bytes spill stores, 124 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 96 bytes cumulative stack size
kernels.cu(7): warning #177-D: variable "unused" was declared but never referenced
ptxas info    : Compiling entry function '{PACK}' for 'sm_90'
ptxas info    : Function properties for {PACK}
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8320 bytes smem
ptxas info    : Compiling entry function '{FORWARD}' for 'sm_90'
ptxas info    : Function properties for {FORWARD}
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 58 registers, used 1 barriers
"""
TABLE = """\
registers+shared                   sm_90    sm_100
compute_forward<__half, 32, 2, 1>  58       64 SPILLS 204
pack_rows<uint16>                  40+8320  -
3 kernels, 1 spill
"""
VALUES = {"float32": "float", "float64": "double", "float16": "__half", "bfloat16": "__nv_bfloat16"}


def report(source_root: Path, *command: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, source_root / "cmake/report_resources.py", *command]
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


def test_a_table_is_printed_and_the_rest_is_passed_on(source_root: Path, tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    printed.write_text(PRINTED)
    done = report(source_root, "sh", "-c", f"cat '{printed}' >&2; echo made; exit 3")
    assert done.returncode == 3
    assert done.stdout == "made\n" + TABLE
    assert (
        done.stderr == 'kernels.cu(7): warning #177-D: variable "unused" was declared but never referenced\n'
    )


def test_a_compiler_that_says_nothing_gives_no_table(source_root: Path) -> None:
    done = report(source_root, "true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
@pytest.mark.system_cuda
@pytest.mark.parametrize("value", VALUES)
def test_no_kernel_spills(source_root: Path, tmp_path: Path, value: str) -> None:
    nvcc = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    assert nvcc, "the marker promises nvcc on PATH or in /usr/local/cuda"
    done = report(
        source_root,
        *(nvcc, "-std=c++17", "-O3", "-Xptxas=-v", f"-DVALUE={VALUES[value]}"),
        *(f"-DTABLE=cuda_fixed_fan_in_{value}", "-c", source_root / "csrc/cuda/fixed_fan_in.cu"),
        *(f"-gencode=arch=compute_{number},code=sm_{number}" for number in (80, 90)),
        *("-o", tmp_path / "kernels.o"),
    )
    assert done.returncode == 0, done.stderr
    rows, _, total = done.stdout.rstrip().rpartition("\n")
    assert total.endswith(" kernels, 0 spill"), done.stdout
    assert int(total.split()[0]) == 2 * (rows.count("\n")) > 40
