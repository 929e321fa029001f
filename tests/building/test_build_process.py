"""Builds in a process of their own: what is shown, and what interrupts, kills and crashes leave."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import HELLO, Bench, content

LYING = """
    package: {name: lying, version: "1.0"}
    build:
      noarch: generic
      string: build_7
      script: mkdir -p $PREFIX/share && echo x > $PREFIX/share/lying
"""
SLOW = """
    package: {name: slow, version: "1.0"}
    build:
      noarch: generic
      script: echo begun && sleep 30
"""


def test_a_package_that_the_audit_finds_wanting_is_not_published(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", LYING)
    result = bench.build()
    assert result.returncode == 1
    assert "the audit found fault with what was built" in result.stderr
    assert "The build string contradicts the build number" in result.stderr
    assert not list(bench.output.glob("*/*.conda"))


def test_a_log_gets_one_plain_line_a_step(bench: Bench) -> None:
    said = bench.build().stderr
    assert "\x1b" not in said
    date, *lines = said.splitlines()
    assert date.startswith("packages are dated ")
    steps = [line.partition(": ")[2] for line in lines]
    assert steps[:3] == [
        "copying sources",
        "solving and installing build and host environments",
        "running the build script",
    ]
    assert re.fullmatch(r"built and tested in \d+\.\d s", steps[-2])
    assert steps[-1] == "OK", "the verdict of the audit"


def test_a_terminal_gets_a_moving_line(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", HELLO.replace("mkdir -p", "sleep 0.5 && mkdir -p", 1))
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "extforge", *map(str, bench.command())]
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(command, stderr=end, stdout=subprocess.DEVNULL, env=environment)
    os.close(end)
    said = b"".join(iter(lambda: read_terminal(terminal), b"")).decode()
    os.close(terminal)
    assert process.wait() == 0, said
    spinner = set(re.findall("[\u2801-\u28ff]", said))
    assert len(spinner) > 2, f"the line did not move while the build script ran: {said!r}"
    assert re.search(r"built and tested in \d+\.\d s", said)
    assert said.count("\x1b[?25h") >= said.count("\x1b[?25l") > 0, "the cursor stays hidden"


def read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the other end has been closed
        return b""


@pytest.fixture
def running(bench: Bench) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start builds that the test may kill; each has a session of its own, like a terminal's."""
    processes = []

    def start(*options: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "extforge", *map(str, bench.command(*options))]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def wait_for_log(bench: Bench, text: str) -> None:
    """Wait until the log of a running build has a line ``text``."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if any(text in log.read_text().splitlines() for log in (bench.output / ".extforge").glob("*.log")):
            return
        time.sleep(0.02)
    raise AssertionError(f"the log never said {text!r}")


def children(parent: int) -> list[int]:
    """The processes below ``parent``, as far down as they go."""
    direct = [
        int(stat.parent.name)
        for stat in Path("/proc").glob("[0-9]*/stat")
        if (text := read_or_nothing(stat)) and int(text.rpartition(")")[2].split()[1]) == parent
    ]
    return direct + [below for child in direct for below in children(child)]


def read_or_nothing(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.parametrize("whole_group", [True, False])
def test_an_interrupt_ends_all_at_once(
    bench: Bench, running: Callable[..., subprocess.Popen[str]], whole_group: bool
) -> None:
    bench.write("recipe/recipe.yaml", SLOW)
    process = running()
    wait_for_log(bench, "begun")
    family = children(process.pid)
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 130
    assert re.search(r"slow-\S+: interrupted in .* s\nextforge build: interrupted\n$", said), said
    assert len(family) > 1, "the build script was not found"
    assert not [pid for pid in family if read_or_nothing(Path(f"/proc/{pid}/cmdline"))]
    assert bench.leftovers() == []


def test_two_builds_at_once_take_turns(bench: Bench, running: Callable[..., subprocess.Popen[str]]) -> None:
    bench.write("recipe/recipe.yaml", HELLO.replace("mkdir -p", "echo begun && sleep 1 && mkdir -p", 1))
    first = running("--skip-unchanged")
    wait_for_log(bench, "begun")
    second = running("--skip-unchanged")
    outcomes = [process.communicate(timeout=60)[1] for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], outcomes
    assert f"another process works in {bench.output}; waiting until it ends" in outcomes[1]
    assert "unchanged" in outcomes[1]
    assert bench.index() == bench.packages()


def test_what_a_killed_build_left_is_removed(
    bench: Bench, running: Callable[..., subprocess.Popen[str]]
) -> None:
    bench.output = bench.root / "an output channel"
    bench.write("recipe/recipe.yaml", SLOW)
    process = running()
    wait_for_log(bench, "begun")
    stage = Path((bench.output / ".extforge" / "stage").read_text())
    assert (stage / "bld").is_dir()
    process.kill()
    process.wait()
    bench.write("an output channel/noarch/.partial-slow-1.0-h4616a5c_0.conda.tmp", "half")
    bench.write("an output channel/.extforge/.partial-x7y", "half")
    bench.write("recipe/recipe.yaml", HELLO)
    bench.built()
    assert not stage.exists()
    assert bench.leftovers() == []


def test_killed_at_any_moment_the_next_build_succeeds(
    bench: Bench, running: Callable[..., subprocess.Popen[str]]
) -> None:
    bench.built("--skip-unchanged")
    duration = time.monotonic()
    bench.write("source/data/words.txt", "0\n")
    bench.built("--skip-unchanged")
    duration = time.monotonic() - duration
    for moment in range(1, 11):
        bench.write("source/data/words.txt", f"{moment}\n")
        process = running("--skip-unchanged")
        time.sleep(duration * moment / 10)
        process.kill()
        process.wait()
        for package in bench.output.glob("*/*.conda"):
            assert zipfile.is_zipfile(package), f"half a package after {moment} tenths"
        assert set(bench.index()) == set(bench.packages())
    (name,) = bench.built("--skip-unchanged")
    assert content(bench.output / "noarch" / name) == {"share/hello/words.txt": b"10\n"}
    assert bench.index() == bench.packages()
    assert bench.leftovers() == []


def test_a_crash_is_no_success(bench: Bench) -> None:
    """The script ends the process that builds, as a fault in native code would."""
    recipe = HELLO.replace("mkdir -p", "kill -SEGV $PPID; sleep 5; mkdir -p", 1)
    bench.write("recipe/recipe.yaml", recipe)
    result = bench.build()
    assert result.returncode == 1
    assert "the process that built it crashed" in result.stderr
    assert bench.packages() == {}
