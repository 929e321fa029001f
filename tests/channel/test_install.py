"""``extforge install``: new, up to date, changed, interrupted and refused environments."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from extforge.channel.archive import Entry, write_package
from extforge.errors import BadInputError, ConflictError, FailedCommand, NotFoundError
from extforge.files import LOCK, PARTIAL
from extforge.install import STATE, install, leave_out, read_environment_file

from .conftest import run, small_package, write_index

EXTFORGE = (sys.executable, "-m", "extforge", "install")


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    directory = tmp_path / "a channel"
    publish(directory, alpha="one", beta="two")
    return directory


def publish(channel: Path, **texts: str) -> None:
    for name, text in texts.items():
        depends = ("alpha",) if name == "beta" else ()
        write_package(small_package(name, text, depends=depends), channel / "noarch")
    write_index(channel)


def content(prefix: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in prefix.glob("share/*.txt")}


def test_new_then_up_to_date(channel: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "an environment"
    assert install(prefix, ["beta"], [channel.as_uri()])
    assert content(prefix) == {"alpha": "one", "beta": "two"}
    assert not install(prefix, ["beta"], [channel.as_uri()])


def test_package_of_equal_name_and_build_but_other_content_is_replaced(channel: Path, tmp_path: Path) -> None:
    install(tmp_path / "env", ["beta"], [channel.as_uri()])
    publish(channel, alpha="new")
    assert install(tmp_path / "env", ["beta"], [channel.as_uri()])
    assert content(tmp_path / "env") == {"alpha": "new", "beta": "two"}


def test_package_that_is_not_asked_for_any_more_goes(channel: Path, tmp_path: Path) -> None:
    install(tmp_path / "env", ["beta"], [channel.as_uri()])
    assert install(tmp_path / "env", ["alpha"], [channel.as_uri()])
    assert content(tmp_path / "env") == {"alpha": "one"}


def test_interrupted_installation_is_done_anew(channel: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    install(prefix, ["beta"], [channel.as_uri()])
    (prefix / STATE).write_text(json.dumps({"complete": False, "packages": {}}))
    (prefix / "share" / "alpha.txt").unlink()
    assert install(prefix, ["beta"], [channel.as_uri()])
    assert content(prefix) == {"alpha": "one", "beta": "two"}


def test_killed_before_its_first_word_does_not_block(channel: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    prefix.mkdir()
    (prefix / f"{PARTIAL}x").touch()
    assert install(prefix, ["alpha"], [channel.as_uri()])


def test_foreign_directory_is_refused(channel: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").touch()
    with pytest.raises(
        ConflictError, match="is not empty and was not made by `extforge install`; name another"
    ):
        install(tmp_path / "home", ["alpha"], [channel.as_uri()])
    assert [path.name for path in (tmp_path / "home").iterdir() if path.name != LOCK] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("specs", "error", "message"),
    [
        (
            ["gamma"],
            NotFoundError,
            r"no solution from file://.*a%20channel for gamma:\n.*No candidates were found for gamma",
        ),
        (["alpha >=2"], NotFoundError, r"No candidates were found for alpha >=2"),
        (
            ["alpha >>2"],
            BadInputError,
            r"'alpha >>2' is no package with an optional version and build: unable to parse",
        ),
    ],
)
def test_specs_without_a_solution(
    channel: Path, tmp_path: Path, specs: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        install(tmp_path / "env", specs, [channel.as_uri()])
    assert not (tmp_path / "env").exists()


def test_channel_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        NotFoundError, match=r"a channel of file:///nowhere/at/all cannot be read: (?s:.*)No such file"
    ):
        install(tmp_path / "env", ["alpha"], ["file:///nowhere/at/all"])


def test_damaged_package_is_an_error_and_is_installed_once_whole(channel: Path, tmp_path: Path) -> None:
    publish(channel, omega="in no cache")
    package = channel / "noarch" / "omega-1.0-h0_0.conda"
    whole = package.read_bytes()
    package.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FailedCommand, match=f"installing into {tmp_path / 'env'} failed: .*omega"):
        install(tmp_path / "env", ["omega"], [channel.as_uri()])
    package.write_bytes(whole)
    assert install(tmp_path / "env", ["omega"], [channel.as_uri()])
    assert content(tmp_path / "env") == {"omega": "in no cache"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "dependencies:\n  - a\n  - pip:\n    - b\n",
            "only conda packages can be installed here, not {'pip': ['b']}",
        ),
        ("dependencies: a\n", "it has no list of dependencies"),
        ("dependencies:\n", "it has no list of dependencies"),
        ("- a\n", "it has no list of dependencies"),
        ("dependencies: [a\n", "cannot be read as an environment file"),
        ("", "it has no list of dependencies"),
    ],
)
def test_unusable_environment_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "environment.yml"
    file.write_text(text)
    with pytest.raises(BadInputError) as caught:
        read_environment_file(file)
    assert str(file) in str(caught.value)
    assert message in str(caught.value)


def test_absent_environment_file(tmp_path: Path) -> None:
    with pytest.raises(
        BadInputError, match=r"none\.yml cannot be read as an environment file: .*No such file"
    ):
        read_environment_file(tmp_path / "none.yml")


def test_leave_out() -> None:
    assert leave_out(["python >=3.8", "conda-build", "Pip"], ["conda-build", "pip"]) == ["python >=3.8"]
    with pytest.raises(BadInputError, match="cannot leave out numpy: the environment file names python, pip"):
        leave_out(["python", "pip"], ["numpy"])


def test_command(channel: Path, tmp_path: Path) -> None:
    file = tmp_path / "environment.yml"
    file.write_text("dependencies:\n  - beta\n  - conda-build\n")
    arguments = ("--prefix", tmp_path / "env", "--file", file, "--without", "conda-build", "-c", channel)
    for verdict in ("installed", "up to date"):
        done = run(*EXTFORGE, *arguments)
        assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'env'}: {verdict}\n"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--prefix", "env"], 2, "nothing to install: name packages or give an environment file with --file"),
        (
            ["--prefix", "env", "alpha", "-c", "./none"],
            2,
            "no directory none (given as a channel); valid: URL, directory",
        ),
        (["--prefix", "env", "alpha", "-c", "."], 2, "is no channel: it has no noarch/repodata.json"),
        (["--prefix", "env", "gamma", "-c", "a channel"], 1, "No candidates were found for gamma"),
        (["--prefix", "a channel", "alpha", "-c", "a channel"], 3, "was not made by `extforge install`"),
        (["--prefix", "a channel/noarch/repodata.json", "alpha", "-c", "a channel"], 1, "Not a directory"),
    ],
)
def test_exit_codes(channel: Path, arguments: list[str], code: int, message: str) -> None:
    done = run(*EXTFORGE, *arguments, cwd=channel.parent)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("extforge install: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_no_room_is_one_message_and_the_next_run_succeeds(tmp_path: Path) -> None:
    channel, prefix = tmp_path / "channel", tmp_path / "env"
    body = os.urandom(400_000)
    big = small_package("big", "", entries=lambda: iter([Entry("share/big", text=body.hex())]))
    write_package(big, channel / "noarch")
    write_index(channel)
    command = [*EXTFORGE, "--prefix", str(prefix), "big", "-c", str(channel)]
    done = run("bash", "-c", 'ulimit -f 200; exec "$@"', "bash", *command)
    assert done.returncode == 1, done.stderr
    assert f"installing into {prefix} failed" in done.stderr
    assert "Traceback" not in done.stderr
    assert run(*command).returncode == 0
    assert (prefix / "share" / "big").read_text() == body.hex()


def test_private_umask(channel: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        install(tmp_path / "env", ["beta"], [channel.as_uri()])
    finally:
        os.umask(before)
    assert content(tmp_path / "env") == {"alpha": "one", "beta": "two"}
