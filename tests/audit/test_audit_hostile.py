"""Damaged and hostile input: one message, exit 2, bounded memory and time, nothing written elsewhere."""

from __future__ import annotations

import bz2
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from extforge.audit.reading import limits
from extforge.audit.reading.package import read_package
from extforge.errors import BadInputError
from forging import (
    INDEX,
    Spec,
    WheelSpec,
    conda,
    tar,
    write_conda,
    write_directory,
    write_tar_bz2,
    zstd,
)

MEGABYTES = 500


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def tar_bz2(path: Path, payload: bytes) -> Path:
    path.write_bytes(bz2.compress(payload, 1))
    return path


def oversized_header() -> bytes:
    """A tar whose extended header states a terabyte."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 40
    return header.tobuf(tarfile.GNU_FORMAT) + bytes(10240)


def wheel_with(path: Path, **member: Any) -> Path:
    with zipfile.ZipFile(path, "w", **member) as archive:
        archive.writestr("a-1.dist-info/METADATA", "Name: a\nVersion: 1\n")
    return path


# how to make the file -> words of the refusal
HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty": (lambda d: _write(d / "a-1-0.conda", b""), "truncated"),
    "no zip": (lambda d: _write(d / "a-1-0.conda", os.urandom(5000)), "is no zip archive"),
    "no bzip2": (lambda d: _write(d / "a-1-0.tar.bz2", b"not that" * 100), "damaged"),
    "truncated conda": (lambda d: _cut(write_conda(Spec(files={"lib/a": b"x" * 9000}), d)), "truncated"),
    "truncated bz2": (lambda d: _cut(write_tar_bz2(Spec(files={"lib/a": os.urandom(9000)}), d)), "damaged"),
    "absolute": (lambda d: conda(d / "a-1-0.conda", tar([("/etc/passwd", b"x")])), "leaves the package"),
    "traversal": (lambda d: conda(d / "a-1-0.conda", tar([("lib/../../x", b"x")])), "leaves the package"),
    "control": (lambda d: conda(d / "a-1-0.conda", tar([("lib/\x1b[2Jx", b"x")])), "control"),
    "twice": (lambda d: conda(d / "a-1-0.conda", tar([("lib/a", b"x"), ("lib/a", b"y")])), "occurs twice"),
    "device": (lambda d: conda(d / "a-1-0.conda", tar([special("lib/a", tarfile.CHRTYPE)])), "neither file"),
    "hard link out": (
        lambda d: conda(d / "a-1-0.conda", tar([special("lib/a", tarfile.LNKTYPE, "../../etc/passwd")])),
        "leaves the package",
    ),
    "hard link to nothing": (
        lambda d: conda(d / "a-1-0.conda", tar([special("lib/a", tarfile.LNKTYPE, "lib/b")])),
        "no earlier file",
    ),
    "giant header": (lambda d: tar_bz2(d / "a-1-0.tar.bz2", oversized_header()), "damaged"),
    "no metadata": (
        lambda d: tar_bz2(d / "a-1-0.tar.bz2", tar([("lib/a", b"x")])),
        "neither info/index.json",
    ),
    "metadata no JSON": (
        lambda d: conda(d / "a-1-0.conda", tar([]), tar([("info/index.json", b"{]")])),
        "is not JSON",
    ),
    "metadata deep": (
        lambda d: conda(d / "a-1-0.conda", tar([]), tar([("info/index.json", b"[" * 100_000)])),
        "is not JSON",
    ),
    "metadata endless": (
        lambda d: conda(d / "a-1-0.conda", tar([]), tar([("info/index.json", b"[" + b"0," * 1_200_001)])),
        "holds 1200002 elements",
    ),
    "metadata a list": (
        lambda d: conda(d / "a-1-0.conda", tar([]), tar([("info/index.json", b"[]")])),
        "an object is valid",
    ),
    "depends no list": (
        lambda d: conda(d / "a-1-0.conda", tar([]), tar([("info/index.json", INDEX.replace(b"[]", b"[1]"))])),
        "not a list of strings",
    ),
    "requirement nonsense": (
        lambda d: conda(
            d / "a-1-0.conda", tar([]), tar([("info/index.json", INDEX.replace(b"[]", b'["="]'))])
        ),
        "not a conda match specification",
    ),
    "one half": (lambda d: _one_half(d / "a-1-0.conda"), "0 members named pkg-"),
    "depends endless": (
        lambda d: conda(
            d / "a-1-0.conda",
            tar([]),
            tar([("info/index.json", INDEX.replace(b"[]", b"[" + 10_000 * b'"a",' + b'"a"]'))]),
        ),
        "'depends' lists 10001; 10000 is the most read",
    ),
    "record endless": (
        lambda d: _wheel(d, record="".join(f"{n},,\n" for n in range(300_001))),
        "lists more than 300000 files",
    ),
    "headers endless": (lambda d: _wheel(d, metadata="a:\n" * 1_500_000), "4194304 is the most read"),
    "requirements endless": (
        lambda d: _wheel(d, metadata="Requires-Dist: a\n" * 10_001),
        "requires 10001; 10000 is the most read",
    ),
    "wheel name": (lambda d: wheel_with(d / "nonsense.whl"), "no file a-1.dist-info/WHEEL"),
    "zip method": (
        lambda d: wheel_with(d / "a-1-py3-none-any.whl", compression=zipfile.ZIP_LZMA),
        "uses zip compression 14",
    ),
    "member without a name": (
        lambda d: _replace(WheelSpec(files={"abc": b""}).write(d), b"abc", b"\0bc"),
        "an entry's name has 0 characters",
    ),
    "unknown suffix": (lambda d: _write(d / "a.rpm", b"x"), "is no package"),
    "empty directory": (lambda d: _made(d / "empty"), "neither info/index.json"),
    "a pipe": (lambda d: _with_pipe(write_directory(Spec(), d)), "neither file, directory nor link"),
}


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _cut(path: Path) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    return path


def _wheel(directory: Path, metadata: str = "", record: str = "") -> Path:
    path = directory / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a-1.dist-info/METADATA", f"Name: a\nVersion: 1\n{metadata}")
        archive.writestr("a-1.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("a-1.dist-info/RECORD", record)
    return path


def _replace(path: Path, old: bytes, new: bytes) -> Path:
    return _write(path, path.read_bytes().replace(old, new))


def _one_half(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("info-a-1-0.tar.zst", zstd.compress(tar([("info/index.json", INDEX)])))
    return path


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def _with_pipe(root: Path) -> Path:
    (root / "lib").mkdir()
    os.mkfifo(root / "lib" / "pipe")
    return root


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    make, words = HOSTILE[name]
    path = make(tmp_path)
    with pytest.raises(BadInputError, match=words) as refusal:
        read_package(path)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).isprintable()


SMALL = limits.Limits(entries=50, unpacked_bytes=1 << 20, unpacked_ratio=2, name_length=200)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (tar([("lib/zeros", bytes(3 << 20))]), "unpacks to more than"),
        (tar([(f"lib/{i}", b"") for i in range(60)]), "more than 50 entries"),
        (tar([("lib/" + "x" * 300, b"")]), "304 characters"),
    ],
    ids=["bytes", "entries", "name"],
)
@pytest.mark.parametrize("suffix", [".conda", ".tar.bz2"])
def test_limits_hold(payload: bytes, words: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a-1-0{suffix}"
    conda(path, payload) if suffix == ".conda" else tar_bz2(path, payload)
    with pytest.raises(BadInputError, match=words):
        read_package(path, limits=SMALL)


@pytest.fixture(scope="module", autouse=True)
def small_before() -> int:
    """The size of this process, in which other modules may have been large, before the first test here."""
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the high-water mark
    return largest_megabytes(Path("/proc/self/status").read_text())


def test_time_is_limited(tmp_path: Path) -> None:
    path = conda(tmp_path / "a-1-0.conda", tar([("lib/a", b"x")]))
    with pytest.raises(BadInputError, match="took longer than 0 s"):
        read_package(path, limits=limits.Limits(seconds=0))


def audit(path: Path, temporary: Path) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run the command in a process of its own; return it and its largest resident size in megabytes."""
    temporary.mkdir()
    code = (
        "import sys; from extforge.cli import run; code = run(sys.argv[1:]); "
        "print(open('/proc/self/status').read(), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "audit", str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
        cwd=temporary.parent,
        check=False,
        timeout=120,
    )
    return done, largest_megabytes(done.stderr)


def largest_megabytes(status: str) -> int:
    """Read the high-water mark; ``ru_maxrss`` would count what the process was before it became Python."""
    (kilobytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kilobytes) // 1024


def test_bomb_is_refused_with_exit_2_in_bounded_memory(tmp_path: Path) -> None:
    zeros = tarfile.TarInfo("lib/zeros")
    zeros.size = 4 << 30
    body = zstd.ZstdCompressor()
    chunks = [body.compress(zeros.tobuf())]
    chunks += [body.compress(bytes(1 << 24)) for _ in range(100)]
    path = tmp_path / "a-1-0.conda"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("info-a-1-0.tar.zst", zstd.compress(tar([("info/index.json", INDEX)])))
        archive.writestr("pkg-a-1-0.tar.zst", b"".join(chunks) + body.flush())
    before = sorted(tmp_path.iterdir())
    done, megabytes = audit(path, tmp_path / "temporary")
    assert done.returncode == 2
    assert "unpacks to more than 1073741824 bytes" in done.stderr.splitlines()[0]
    assert done.stderr.splitlines()[1].startswith("Name:"), "one line of message, then the process's status"
    assert megabytes < MEGABYTES
    assert list((tmp_path / "temporary").iterdir()) == []
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "temporary"])


def test_many_entries_are_read_in_bounded_memory(tmp_path: Path) -> None:
    path = conda(tmp_path / "a-1-0.conda", tar([(f"lib/{i}", b"") for i in range(100_000)]))
    done, megabytes = audit(path, tmp_path / "temporary")
    assert done.returncode == 1
    assert "a-1-0.conda: FAILED" in done.stdout
    assert megabytes < MEGABYTES


def test_directory_of_a_zip_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    end = b"PK\x05\x06" + bytes(8) + (200 << 20).to_bytes(4, "little") + bytes(6)
    path.write_bytes(end)
    with pytest.raises(BadInputError, match="its zip directory states 209715200 bytes"):
        read_package(path)


def test_this_process_stayed_small(small_before: int) -> None:
    assert largest_megabytes(Path("/proc/self/status").read_text()) - small_before < MEGABYTES
