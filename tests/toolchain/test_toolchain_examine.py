"""Every way in which a candidate cannot be used has a name, and none is an exception."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from extforge.toolchain.elf import ElfKind, read_kind
from extforge.toolchain.examine import examine
from extforge.toolchain.model import REASONS

SPOILERS = {
    "absent": lambda world, path: None,
    "dangling": lambda world, path: path.symlink_to("gone"),
    "empty": lambda world, path: path.touch(mode=0o755),
    "directory": lambda world, path: path.mkdir(),
    "not-executable": lambda world, path: world.file(path).chmod(0o644),
    "not-elf": lambda world, path: world.file(path),
    "wrong-machine": lambda world, path: world.library(path, "aarch64"),
    "wrong-elf-class": lambda world, path: world.library(path, bits=32),
}
PROGRAM_REASONS = [reason for reason in SPOILERS if reason != "not-elf"]
LIBRARY_REASONS = [reason for reason in SPOILERS if reason != "not-executable"]
CASES = [("program", reason) for reason in PROGRAM_REASONS] + [
    ("library", reason) for reason in LIBRARY_REASONS
]


@pytest.mark.parametrize(("kind", "reason"), CASES)
def test_each_fault_is_named(world, kind, reason):
    path = world.top / "candidate"
    SPOILERS[reason](world, path)
    fault = examine(path, kind, "x86_64")
    assert fault is not None
    assert (fault.path, fault.reason) == (str(path), reason)
    assert REASONS[reason] in str(fault)


@pytest.mark.parametrize("kind", ["program", "library"])
def test_a_loop_of_links_is_dangling(world, kind):
    path = world.top / "loop"
    path.symlink_to("loop")
    assert examine(path, kind, "x86_64").reason == "dangling"


def test_a_path_below_a_file_is_absent(world):
    assert examine(world.file(world.top / "file") / "below", "program", "x86_64").reason == "absent"


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_what_may_not_be_read_is_unreadable(world):
    """Root may read everything, so the question is asked by another user."""
    secret = world.library(world.top / "closed/libcuda.so.1")
    secret.parent.chmod(0o700)
    for directory in (world.top, *world.top.parents):
        directory.chmod(directory.stat().st_mode | 0o055)
    script = (
        "import sys; from pathlib import Path; from extforge.toolchain.examine import examine;"
        "print(examine(Path(sys.argv[1]), 'library', 'x86_64').reason)"
    )
    package = Path(sys.modules["extforge"].__file__).parents[1]
    done = subprocess.run(
        ["/usr/bin/env", f"PYTHONPATH={package}", "python3", "-c", script, secret],
        user=65534,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "No module named" in done.stderr or done.returncode == 127:
        pytest.skip(f"the system's python3 cannot run extforge: {done.stderr.strip()[-80:]}")
    assert done.stdout.strip() == "unreadable", done.stderr


@pytest.mark.parametrize(("machine", "bits"), [("x86_64", 64), ("aarch64", 64), ("i386", 32)])
def test_class_and_machine_are_read(world, machine, bits):
    assert read_kind(world.library(world.top / "lib.so", machine, bits)) == ElfKind(bits, machine)


def test_a_script_is_no_elf_file(world):
    assert read_kind(world.program(world.top / "script", "#!/bin/sh\nexit 0 # long enough\n")) is None


def test_a_script_may_serve_as_a_program(world):
    assert examine(world.program(world.top / "nvcc", "#!/bin/sh\n"), "program", "x86_64") is None


BROKEN_ROOTS = {
    "absent": lambda world, path: None,
    "dangling": lambda world, path: path.symlink_to("gone"),
    "not-a-directory": lambda world, path: world.file(path),
    "no-cuda": lambda world, path: path.mkdir(),
}


@pytest.mark.parametrize("reason", BROKEN_ROOTS)
def test_a_broken_root_is_named_among_the_tried(world, reason):
    path = world.top / "broken"
    BROKEN_ROOTS[reason](world, path)
    world.environ["CUDA_PATH"] = str(path)
    toolchain = world.survey()
    assert [(tried.path, tried.reason) for tried in toolchain.root_tried] == [(str(path), reason)]


@pytest.mark.parametrize(("value", "reason"), [("/a:/b", "list"), (":", "list"), ("cuda", "relative")])
def test_a_value_that_is_no_path_is_named_among_the_tried(world, value, reason):
    world.environ["CUDA_HOME"] = value
    assert [(tried.path, tried.reason) for tried in world.survey().root_tried] == [(value, reason)]


def test_a_root_whose_parts_are_all_broken_tells_what_is_broken(world):
    root = world.top / "cuda"
    world.library(root / "lib64/libcudart.so", "aarch64")
    world.environ["CUDA_HOME"] = str(root)
    (tried,) = world.survey().root_tried
    assert tried.reason == "no-cuda"
    assert "is an ELF file for another machine (aarch64, wanted x86_64)" in tried.detail


def test_a_broken_part_does_not_make_another_root_serve(world):
    env = world.conda(world.top / "env")
    (env / "bin/ptxas").write_text("")
    world.toolkit(world.sysroot / "usr/local/cuda")
    world.inside(env)
    ptxas = world.resolve().get("ptxas")
    assert [(tried.path, tried.reason) for tried in ptxas.tried] == [(str(env / "bin/ptxas"), "empty")]
