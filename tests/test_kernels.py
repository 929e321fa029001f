"""The CPU kernels as a plain program: what their objects export, and the same source on another processor."""

from pathlib import Path

import pytest
from programs import build, require, run

AARCH64 = ("aarch64-linux-gnu-g++", "qemu-aarch64")
AARCH64_OPTIONS = (
    "-DCMAKE_SYSTEM_NAME=Linux",
    "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
    f"-DCMAKE_CXX_COMPILER={AARCH64[0]}",
    "-DCMAKE_EXE_LINKER_FLAGS=-static",
    f"-DCMAKE_CROSSCOMPILING_EMULATOR={AARCH64[1]}",
)

pytestmark = pytest.mark.slow


def build_program(source_root: Path, target: Path, *options: str) -> None:
    build(source_root / "tests/kernels", target, "-DSANITIZERS=none", *options)


def list_exported(symbols: str) -> list[str]:
    """Names of an ``nm -C`` listing that the linker sees: neither undefined nor local."""
    rows = [line.split(maxsplit=2) for line in symbols.splitlines()]
    return [row[2] for row in rows if len(row) == 3 and (row[1].isupper() or row[1] in "wvu")]


def test_kernels_of_each_instruction_set_export_their_table_alone(source_root: Path, tmp_path: Path) -> None:
    """A shared inline function, compiled for a wide instruction set, could be linked into plain code."""
    require("cmake", "nm")
    build_program(source_root, tmp_path)
    objects = sorted(tmp_path.rglob("fixed_fan_in_kernels.cpp.o"))
    capabilities = [path.relative_to(tmp_path).parts[1].removesuffix(".dir") for path in objects]
    assert "kernels_none_baseline" in capabilities
    for path, capability in zip(objects, capabilities, strict=True):
        table = capability.replace("kernels_none", "torch_sparse_ops::fixed_fan_in")
        assert list_exported(run("nm", "-C", path)) == [table]


@pytest.mark.parametrize(
    ("line", "exported"),
    [
        ("0000000000000000 T f()", ["f()"]),
        ("0000000000000000 W std::min()", ["std::min()"]),
        ("0000000000000000 u table", ["table"]),
        ("0000000000000000 t f()", []),
        ("                 U memset", []),
        ("0000000000000000 r table", []),
    ],
)
def test_exported_symbols_are_recognised(line: str, exported: list[str]) -> None:
    assert list_exported(line) == exported


def test_the_same_source_runs_on_aarch64(source_root: Path, tmp_path: Path) -> None:
    require("cmake", *AARCH64)
    build_program(source_root, tmp_path, *AARCH64_OPTIONS)
    assert "checks passed" in run("ctest", "--test-dir", tmp_path, "-V")
