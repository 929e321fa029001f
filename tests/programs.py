"""Programs of the tests: built with CMake and run, by the compiler that is on PATH."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

#: Flags that an activated environment sets are for its own compiler.
FLAGS = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CMAKE_ARGS")


def start(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever that is."""
    words = [str(part) for part in command]
    environ = {name: value for name, value in os.environ.items() if name not in FLAGS}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environ, timeout=600)


def run(*command: str | Path) -> str:
    """Return what a command prints; it must succeed."""
    done = start(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, target: Path, *options: str) -> None:
    """Build a CMake project."""
    run("cmake", "-S", source, "-B", target, *options)
    run("cmake", "--build", target, "--parallel", "2")


def require(*programs: str) -> None:
    """Skip the test where a program is missing."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"not on PATH: {', '.join(missing)}")
