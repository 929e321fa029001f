"""``build-locally.py``: what it says and leaves when it cannot go on, and how it chooses channels.

That it works from end to end is what every run of this suite begins with.
"""

import fcntl
import http.server
import importlib.util
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

NAME = "build-locally.py"
#: An environment in which pip reaches nothing.
NO_INDEX = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}


@pytest.fixture
def checkout(tmp_path: Path, source_root: Path) -> Path:
    """As much of a checkout as a run reads before its tools are installed, in a path with blanks."""
    directory = tmp_path / "a checkout"
    (directory / "python" / "extforge").mkdir(parents=True)
    for file in (NAME, "environment.yml", "python/extforge/pyproject.toml"):
        shutil.copy(source_root / file, directory / file)
    return directory


@pytest.fixture
def script(checkout: Path) -> Any:
    """The command as a module."""
    spec = importlib.util.spec_from_file_location("build_locally", checkout / NAME)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def command(checkout: Path, *arguments: str, python: str = sys.executable) -> list[str]:
    return [python, str(checkout / NAME), *arguments]


def run(checkout: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(command(checkout, *arguments), env=environment, capture_output=True, text=True)


def test_help_needs_nothing_and_leaves_nothing(checkout: Path) -> None:
    before = sorted(checkout.rglob("*"))
    result = subprocess.run(command(checkout, "--help"), env={}, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    for word in ("test", "--channel", "--variant", "--clean", "cpu,cuda129,cuda130"):
        assert word in result.stdout
    assert sorted(checkout.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments", [["--no-such-option"], ["tests"], ["--variant"], ["--variant", "cuda99"]]
)
def test_wrong_usage_exits_with_2_and_leaves_nothing(checkout: Path, arguments: list[str]) -> None:
    result = run(checkout, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert "usage: build-locally.py" in result.stderr
    assert not (checkout / ".local").exists()


def old_pythons() -> list[str]:
    """Interpreters that are too old, on PATH or installed by pyenv."""
    named = [shutil.which(f"python3.{minor}") for minor in (7, 8, 9, 10)]
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob("3.[789].*/bin/python"))
    return [python for python in [*filter(None, named), *map(str, pyenv)] if runs(python)]


def runs(python: str) -> bool:
    """Whether it is an interpreter, and not the stand-in of a version manager for one that is absent."""
    return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def test_an_old_python_is_one_message(checkout: Path) -> None:
    pythons = old_pythons()
    if not pythons:
        pytest.skip("no Python 3.7 to 3.10 on PATH or in ~/.pyenv")
    result = subprocess.run(command(checkout, python=pythons[-1]), capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"{NAME}: needs Python 3.11 or newer; ")
    assert result.stderr.endswith("Use python3.11.\n")
    assert len(result.stderr.splitlines()) == 1
    assert not (checkout / ".local").exists()


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HOME": os.devnull, "XDG_CACHE_HOME": os.devnull},
        {"CONDA_PREFIX": "/nowhere", "CONDA_DEFAULT_ENV": "other", "PYTHONPATH": "/nowhere"},
    ],
    ids=["plain", "no writable home", "another environment active"],
)
def test_no_index_is_one_message(checkout: Path, variables: dict[str, str]) -> None:
    result = run(checkout, **NO_INDEX, **variables)
    assert result.returncode == 1
    first, *said, needed = result.stderr.splitlines()
    assert first.startswith(f"{NAME}: pip could not install the tools this command needs: ")
    assert any("No matching distribution found for" in line for line in said)
    assert needed.startswith("Needed: pip 22.3 or newer, and an index it reaches or a directory of wheels")
    assert "Traceback" not in result.stderr
    assert not (checkout / ".local" / "venv" / "tools.txt").exists(), "half-made tools pass for whole"


def test_tools_that_were_not_finished_are_made_anew(checkout: Path) -> None:
    remains = checkout / ".local" / "venv" / "remains.txt"
    remains.parent.mkdir(parents=True)
    remains.touch()
    run(checkout, **NO_INDEX)
    assert not remains.exists()


def test_clean_removes_results_and_keeps_the_lock(script: Any) -> None:
    (script.LOCAL / "output" / "noarch").mkdir(parents=True)
    os.close(script.take_lock())
    script.clean()
    assert [path.name for path in script.LOCAL.iterdir()] == ["lock"]


def test_a_second_run_says_that_it_waits(checkout: Path) -> None:
    (checkout / ".local").mkdir()
    with (checkout / ".local" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711")
        lock.flush()
        environment = {**os.environ, **NO_INDEX}
        second = subprocess.Popen(command(checkout), env=environment, stderr=subprocess.PIPE, text=True)
        assert second.stderr
        said = second.stderr.readline()
        time.sleep(0.2)
        assert second.poll() is None, "it did not wait"
    rest = second.communicate()[1]
    assert said == f"another run (process 4711) works in {checkout / '.local'}; waiting until it ends\n"
    assert rest.startswith(f"{NAME}: pip could not install"), "it did not go on"


def test_what_a_killed_run_has_started_is_waited_for(script: Any) -> None:
    script.LOCAL.mkdir()
    lock = script.take_lock()
    child = subprocess.Popen(["sleep", "30"], pass_fds=[lock])
    os.close(lock)
    with (script.LOCAL / "lock").open() as second, pytest.raises(BlockingIOError):
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    child.kill()
    child.wait()


@pytest.mark.parametrize(
    ("program", "code", "told"),
    [
        ("exit 3", 3, ""),
        ("kill -SEGV $$", 1, "build-locally.py: bash was ended by signal 11; run this again\n"),
    ],
)
def test_the_exit_code_is_that_of_the_command_that_failed(
    script: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: str,
    code: int,
    told: str,
) -> None:
    monkeypatch.setattr(sys, "argv", [NAME])
    monkeypatch.setattr(script, "prepare_tools", lambda run: run("bash", "-c", program))
    assert script.main() == code
    assert capsys.readouterr().err == told


def test_a_directory_that_cannot_be_made_is_one_message(checkout: Path) -> None:
    (checkout / ".local").write_text("a file")
    result = run(checkout)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"{NAME}: File exists: {checkout / '.local'}\n"


def test_arguments_after_two_dashes_are_for_pytest(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [NAME, "test", "--channel", "x", "--", "-k", "a b", "--clean"])
    arguments = script.read_arguments()
    assert (arguments.what, arguments.channel, arguments.clean) == ("test", ["x"], False)
    assert arguments.pytest == ["-k", "a b", "--clean"]


@pytest.mark.parametrize(
    ("variant", "environment", "package"),
    [
        ("cpu", "demo", "torch-sparse-ops * cpu_*"),
        ("cuda130", "demo-cuda130", "torch-sparse-ops * cuda130_*"),
    ],
)
def test_the_commands_to_use_the_result_survive_a_shell(
    script: Any, capsys: pytest.CaptureFixture[str], variant: str, environment: str, package: str
) -> None:
    script.OUTPUT.mkdir(parents=True)
    script.print_usage(script.Row(variant))
    python, conda, mamba = (shlex.split(line) for line in capsys.readouterr().out.splitlines()[1:])
    assert python[0] == str(script.ENVS / environment / "bin" / "python")
    local = script.OUTPUT.as_uri()
    assert conda == ["conda", "install", "-c", local, "-c", "conda-forge", package]
    file = yaml.safe_load(Path(mamba[-1]).read_text())
    assert file["channels"] == [local, "conda-forge"]


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers as its path says."""

    def do_GET(self) -> None:
        if self.path == "/slow":
            time.sleep(2)
        self.send_response(404 if self.path == "/absent" else 200)
        self.end_headers()
        self.wfile.write(b"\x28\xb5\x2f\xfd...." if self.path == "/index" else b"<html>Please log in</html>")

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as listener:
        threading.Thread(target=listener.serve_forever).start()
        yield f"http://127.0.0.1:{listener.server_port}"
        listener.shutdown()


@pytest.fixture(scope="module")
def closed_port() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return f"http://127.0.0.1:{port}"


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy between this process and its own server."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.mark.usefixtures("direct")
def test_conda_forge_is_used_when_it_answers(
    script: Any, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script.CONDA_FORGE_INDEX = f"{server}/index"
    assert script.choose_channels([], script.Row("cpu"), None) == (["conda-forge"], ())
    assert capsys.readouterr().out == "== dependencies from conda-forge, which answers\n"


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize(
    ("path", "reason"),
    [("/login", "/login is no channel's index"), ("/absent", "404: Not Found"), ("/slow", "timed out")],
)
def test_another_answer_is_not_taken_for_conda_forge(
    script: Any, server: str, capsys: pytest.CaptureFixture[str], path: str, reason: str
) -> None:
    script.CONDA_FORGE_INDEX, script.ANSWER_SECONDS = server + path, 0.5
    ran = Recorder()
    assert script.choose_channels([], script.Row("cpu"), ran) == ([script.CHANNEL], ("conda-build",))
    assert reason in capsys.readouterr().out.replace("HTTP Error ", "")
    assert ran.commands == [("channel", script.CHANNEL, "--cache", script.LOCAL / "cache" / "wheels")]


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize(
    ("variant", "options"), [("cpu", []), ("cuda129", ["--cuda", "12.9"]), ("cuda130", ["--cuda", "13.0"])]
)
def test_no_answer_means_a_channel_made_here_for_the_row(
    script: Any,
    closed_port: str,
    capsys: pytest.CaptureFixture[str],
    variant: str,
    options: list[str],
) -> None:
    script.CONDA_FORGE_INDEX = closed_port
    ran = Recorder()
    row = script.Row(variant)
    assert script.choose_channels([], row, ran)[0] == [row.channel]
    assert list(ran.commands[0][4:]) == options
    assert "because conda-forge does not answer" in capsys.readouterr().out


class Recorder:
    """Takes the place of what runs extforge: making a channel here is tested elsewhere."""

    def __init__(self) -> None:
        self.commands: list[tuple[object, ...]] = []

    def __call__(self, *command: object, **options: object) -> None:
        """Run nothing."""

    def extforge(self, *arguments: object) -> None:
        self.commands.append(arguments)


def test_no_two_rows_share_a_place(script: Any) -> None:
    rows = [script.Row(name) for name in script.ROWS]
    places = [place for row in rows for place in (row.channel, row.demo, row.test, row.report)]
    assert len(set(places)) == len(places)
    assert all(place.is_relative_to(script.LOCAL) for place in places)


@pytest.mark.parametrize(
    ("variant", "options"), [("cpu", []), ("cuda130", ["--cuda", "13.0"])], ids=["cpu", "cuda130"]
)
def test_environments_are_chosen_for_the_row(
    script: Any, monkeypatch: pytest.MonkeyPatch, variant: str, options: list[str]
) -> None:
    """The package of the row, and the solver told of its CUDA, in both environments."""
    row, ran = script.Row(variant), Recorder()
    monkeypatch.setattr(script, "train_demo", lambda *arguments: None)
    for prefix in (row.demo, row.report):
        prefix.mkdir(parents=True)
    (row.demo / ".extforge-install.json").write_text("{}")
    (row.report / "report.txt").write_text("")
    example = script.ROOT / "examples" / "next_token.py"
    example.parent.mkdir()
    example.touch()
    script.OUTPUT.mkdir(parents=True)
    script.run_demo(ran, row, ["channel"])
    script.run_tests(ran, row, ["channel"], (), [])
    for command, prefix in zip(ran.commands, (row.demo, row.test), strict=True):
        assert command[:2] == ("install", f"torch-sparse-ops * {variant}_*")
        assert command[command.index("--prefix") + 1] == prefix
        assert [word for word in command if word in ("--cuda", "13.0")] == options


def test_channels_that_were_given_are_taken(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.choose_channels(["a", "b"], script.Row("cpu"), None) == (["a", "b"], ())
    assert capsys.readouterr().out == "== dependencies from a, b (given by --channel)\n"
