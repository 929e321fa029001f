"""The wheel cache: pip is asked only for what is not there, and what is said when it cannot deliver."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest
from extforge.channel.wheels import Pin, Wheel, fetch_wheels
from extforge.errors import NotFoundError
from extforge.files import PARTIAL, locked

from .conftest import write_wheel


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels that is all that pip reaches."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return shelf


def test_pip_fills_the_cache_once(shelf: Path, tmp_path: Path) -> None:
    source = write_wheel(shelf, "alpha-1.0-py3-none-any", {"alpha.py": ""})
    pin, cache = Pin("alpha", "1.0"), tmp_path / "cache"
    assert fetch_wheels([pin], cache)[pin].path == cache / source.name
    source.unlink()
    assert fetch_wheels([pin], cache)[pin].path == cache / source.name


def test_what_pip_cannot_deliver_is_named(shelf: Path, tmp_path: Path) -> None:
    write_wheel(tmp_path, "here-1.0-py3-none-any", {})
    with pytest.raises(NotFoundError) as caught:
        fetch_wheels([Pin("here", "1.0"), Pin("torch", "9.9+cpu")], tmp_path)
    said = str(caught.value)
    assert "torch==9.9+cpu" in said
    assert "here==" not in said
    assert "No matching distribution found" in said
    assert "PIP_FIND_LINKS=/path/to/wheels" in said
    assert "https://download.pytorch.org/whl/cpu" in said
    assert not list(tmp_path.glob(f"{PARTIAL}*"))


def test_wheel_cut_off_is_fetched_again(
    shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, cache = write_wheel(shelf, "alpha-1.0-py3-none-any", {"alpha.py": "x = 1\n"}), tmp_path / "cache"
    cache.mkdir()
    (cache / source.name).write_bytes(source.read_bytes()[:100])
    wheel = fetch_wheels([Pin("alpha", "1.0")], cache)[Pin("alpha", "1.0")]
    assert wheel.path.read_bytes() == source.read_bytes()
    assert f"{cache / source.name} is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stems", "chosen"),
    [
        (["a-1.0-py3-none-any", "a-1.0-py3-none-linux_x86_64"], "a-1.0-py3-none-linux_x86_64"),
        (["a-1.0-cp27-cp27m-win_amd64", "a-1.0-py3-none-any"], "a-1.0-py3-none-any"),
        (["a-1.0-py3-none-any", "a-2.0-py3-none-any", "odd name"], "a-1.0-py3-none-any"),
    ],
    ids=["most specific", "fits this interpreter", "version"],
)
def test_choice(shelf: Path, tmp_path: Path, stems: list[str], chosen: str) -> None:
    for stem in stems:
        (tmp_path / f"{stem}.whl").touch() if " " in stem else write_wheel(tmp_path, stem, {})
    assert fetch_wheels([Pin("A", "1")], tmp_path)[Pin("A", "1")].path.stem == chosen


def test_local_version_is_part_of_the_pin(shelf: Path, tmp_path: Path) -> None:
    write_wheel(tmp_path, "torch-2.0-py3-none-any", {})
    with pytest.raises(NotFoundError, match=r"torch==2\.0\+cpu"):
        fetch_wheels([Pin("torch", "2.0+cpu")], tmp_path)


def test_leftovers_of_a_killed_run_are_removed(shelf: Path, tmp_path: Path) -> None:
    write_wheel(shelf, "alpha-1.0-py3-none-any", {})
    (tmp_path / "cache" / f"{PARTIAL}abc").mkdir(parents=True)
    fetch_wheels([Pin("alpha", "1.0")], tmp_path / "cache")
    assert not list((tmp_path / "cache").glob(f"{PARTIAL}*"))


def test_second_fetch_waits_for_the_first(
    shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_wheel(shelf, "alpha-1.0-py3-none-any", {})
    second = threading.Thread(target=fetch_wheels, args=([Pin("alpha", "1.0")], tmp_path / "cache"))
    with locked(tmp_path / "cache"):
        second.start()
        deadline = time.monotonic() + 10
        while "waiting" not in (said := capsys.readouterr().err) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not list((tmp_path / "cache").glob("*.whl"))
    second.join()
    assert f"another process works in {tmp_path / 'cache'}; waiting until it ends" in said
    assert len(list((tmp_path / "cache").glob("*.whl"))) == 1


@pytest.mark.parametrize(
    ("tags", "pure", "glibc"),
    [
        ("py3-none-any", True, None),
        ("py2.py3-none-any", True, None),
        ("py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64", False, "2.17"),
        ("cp311-cp311-manylinux_2_28_x86_64.manylinux_2_5_x86_64", False, "2.5"),
        ("cp311-cp311-linux_x86_64", False, None),
    ],
)
def test_tags(tmp_path: Path, tags: str, pure: bool, glibc: str | None) -> None:
    wheel = Wheel(write_wheel(tmp_path, f"a-1.0-{tags}", {}))
    assert (wheel.is_pure, wheel.glibc_floor) == (pure, glibc)


def test_digests(tmp_path: Path) -> None:
    wheel = Wheel(write_wheel(tmp_path, "a-1.0-py3-none-any", {"a,b.py": "x = 1\n"}))
    assert wheel.digests["a,b.py"] == hashlib.sha256(b"x = 1\n").hexdigest()
    assert "a-1.0.dist-info/RECORD" not in wheel.digests
