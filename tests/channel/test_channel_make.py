"""A channel directory is brought up to date, whatever happened to it before."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from extforge.channel import make
from extforge.channel.archive import EMPTY_SHA256, PLACEHOLDER
from extforge.channel.catalogue import Row
from extforge.channel.make import STAMP, bring_up_to_date, make_channel, plan_packages, refuse_other_platforms
from extforge.errors import BadInputError, ConflictError, FailedCommand, NotFoundError
from extforge.files import LOCK, PARTIAL, locked

from .conftest import Small, read_package, run, small_package, write_wheel

EXTFORGE = (sys.executable, "-m", "extforge", "channel")

#: Writes a channel of many small packages, as ``extforge channel`` does once its packages are planned.
MAKE_MANY = """
import os, sys
from pathlib import Path
from extforge.channel.archive import Entry, PlannedPackage
from extforge.channel.make import bring_up_to_date
from extforge.files import locked

def plan(number):
    return PlannedPackage(name=f"p{number}", version="1", build="h_0", summary="", license="MIT",
                          subdir=("noarch", "linux-64")[number % 2], noarch=("generic", None)[number % 2],
                          entries=lambda: iter([Entry("share/text", text=str(number) * 100_000)]))

directory = Path(sys.argv[1])
with locked(directory):
    bring_up_to_date(directory, [plan(number) for number in range(30)])
os._exit(0)  # as the command does: rattler's threads do not survive the end of the interpreter
"""


def indexed(channel: Path) -> dict[str, str]:
    """Return the packages that the indexes of a channel name, with their digests."""
    found = {}
    for index in channel.glob("*/repodata.json"):
        packages = json.loads(index.read_text())["packages.conda"]
        found |= {f"{index.parent.name}/{name}": record["sha256"] for name, record in packages.items()}
    return found


def on_disk(channel: Path) -> dict[str, str]:
    return {
        f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in channel.glob("*/*.conda")
    }


def test_index_names_what_is_there(small: Small) -> None:
    assert indexed(small.channel) == on_disk(small.channel)
    assert sorted(on_disk(small.channel)) == json.loads((small.channel / STAMP).read_text())["packages"]


def test_packages_are_complete_and_true(small: Small) -> None:
    for path in small.channel.glob("*/*.conda"):
        contents = read_package(path)
        assert sorted(contents.paths) == sorted(contents.members), path
        for name, record in contents.paths.items():
            if record["path_type"] == "hardlink":
                body = contents.content[name]
                assert (record["sha256"], record["size_in_bytes"]) == (
                    hashlib.sha256(body).hexdigest(),
                    len(body),
                ), (path, name)
                assert (PLACEHOLDER.encode() in body) == ("prefix_placeholder" in record), (path, name)
            else:
                assert record["sha256"] != EMPTY_SHA256, (path, name)


def test_up_to_date_channel_is_left_alone(small: Small) -> None:
    def times() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in small.channel.rglob("*") if path.name != LOCK}

    before = times()
    make_channel(small.channel, small.wheels, small.rows)
    assert times() == before


@pytest.mark.parametrize("lost", ["noarch/repodata.json", "noarch/greeter-*.conda", STAMP])
def test_what_is_lost_is_made_again(small: Small, lost: str, tmp_path: Path) -> None:
    run("cp", "-a", small.channel, tmp_path / "channel")
    channel = tmp_path / "channel"
    (path,) = channel.glob(lost)
    path.unlink()
    if lost == STAMP:
        with pytest.raises(
            ConflictError, match=f"holds something that `extforge channel` did not make .no {STAMP}"
        ):
            make_channel(channel, small.wheels, small.rows)
    else:
        make_channel(channel, small.wheels, small.rows)
        assert on_disk(channel) == on_disk(small.channel)
        assert indexed(channel) == indexed(small.channel)


def test_stale_packages_go(tmp_path: Path) -> None:
    with locked(tmp_path):
        bring_up_to_date(tmp_path, [small_package("old", "x"), small_package("kept", "x")])
        (tmp_path / "noarch" / f"{PARTIAL}z").mkdir()
        (tmp_path / f"{PARTIAL}y").touch()
        bring_up_to_date(tmp_path, [small_package("kept", "x"), small_package("new", "x")])
    assert sorted(indexed(tmp_path)) == ["noarch/kept-1.0-h0_0.conda", "noarch/new-1.0-h0_0.conda"]
    assert indexed(tmp_path) == on_disk(tmp_path)
    assert not list(tmp_path.rglob(f"{PARTIAL}*"))


def test_foreign_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    done = run(*EXTFORGE, tmp_path)
    assert done.returncode == 3
    assert f"{tmp_path} holds something that `extforge channel` did not make" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_damaged_wheel_is_named(small: Small, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "broken-1.0-py3-none-any", {"broken.py": "x = 1\n" * 10_000})
    with zipfile.ZipFile(wheel) as archive:
        offset = archive.getinfo("broken.py").header_offset + 60
    content = bytearray(wheel.read_bytes())
    content[offset : offset + 8] = b"\xff" * 8
    wheel.write_bytes(content)
    packages = plan_packages([Row("broken", "1.0")], tmp_path)[-1:]
    with (
        locked(tmp_path / "channel"),
        pytest.raises(BadInputError, match=r"the wheel of broken 1\.0 in the cache is dam"),
    ):
        bring_up_to_date(tmp_path / "channel", packages)
    assert on_disk(tmp_path / "channel") == {}


def test_no_network_is_needed_for_what_is_cached(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    names = [package.file_name for package in plan_packages(small.rows, small.wheels)]
    assert {name.partition("-")[0] for name in names} >= {"python", "greeter", "native", "pip", "setuptools"}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PATH": "/nonexistent"}, "no g++ on PATH"),
        (
            {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "."},
            "pip could not fetch wheels for Python",
        ),
    ],
    ids=["no compiler", "no index"],
)
def test_what_is_missing_is_said_before_anything_is_written(
    tmp_path: Path, environment: dict[str, str], message: str
) -> None:
    done = run(*EXTFORGE, "channel", cwd=tmp_path, env={**os.environ, **environment})
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "channel").exists()


def test_other_platform_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make.sysconfig, "get_platform", lambda: "macosx-14-arm64")
    with pytest.raises(NotFoundError, match="on linux-x86_64 only; this is macosx-14-arm64"):
        refuse_other_platforms()


@pytest.mark.parametrize("target", ["file", "file/channel"])
def test_unusable_place_is_one_message(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").touch()
    done = run(*EXTFORGE, tmp_path / target)
    assert done.returncode == 1
    assert done.stderr.startswith(f"extforge channel: [Errno 20] Not a directory: '{tmp_path / 'file'}")
    assert done.stderr.count("\n") == 1


def test_no_room_is_one_message_and_the_next_run_succeeds(tmp_path: Path) -> None:
    body = os.urandom(300_000).hex()
    packages = [small_package("small", "x"), small_package("big", body)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(
            FailedCommand, match=r"big-1\.0-h0_0\.conda could not be written to .*: .*File too large"
        ):
            bring_up_to_date(tmp_path, packages)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(on_disk(tmp_path)) == ["noarch/small-1.0-h0_0.conda"]
    assert not list(tmp_path.rglob(f"{PARTIAL}*"))
    bring_up_to_date(tmp_path, packages)
    assert indexed(tmp_path) == on_disk(tmp_path)
    assert len(on_disk(tmp_path)) == 2


def test_kill_at_any_moment_leaves_nothing_half_made(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKE_MANY]
    start = time.monotonic()
    assert run(*command, tmp_path / "whole").returncode == 0
    duration, channel = time.monotonic() - start, tmp_path / "channel"
    for step in range(10):
        process = subprocess.Popen([*command, channel], stdin=subprocess.DEVNULL)
        time.sleep(duration * (0.2 + 0.08 * step))
        process.send_signal(signal.SIGKILL)
        process.wait()
        whole = on_disk(tmp_path / "whole")
        assert {name: digest for name, digest in on_disk(channel).items() if whole[name] != digest} == {}
        assert set(indexed(channel).items()) <= set(whole.items())
        if step % 4 == 0:
            run("rm", "-rf", channel / "noarch")
    done = run(*command, channel)
    assert done.returncode == 0, done.stderr
    assert on_disk(channel) == indexed(channel) == whole
    assert not list(channel.rglob(f"{PARTIAL}*"))


def test_second_run_waits_for_the_first(tmp_path: Path) -> None:
    with locked(tmp_path):
        second = subprocess.Popen(
            [sys.executable, "-c", MAKE_MANY, tmp_path], stderr=subprocess.PIPE, text=True
        )
        assert second.stderr is not None
        said = second.stderr.readline()
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]
    second.communicate()
    assert said == f"another process works in {tmp_path}; waiting until it ends\n"
    assert second.returncode == 0
    assert len(indexed(tmp_path)) == 30


def test_private_umask(tmp_path: Path) -> None:
    done = run(
        "bash", "-c", 'umask 077; exec "$@"', "bash", sys.executable, "-c", MAKE_MANY, tmp_path / "a channel"
    )
    assert done.returncode == 0, done.stderr
    assert len(indexed(tmp_path / "a channel")) == 30
