"""Packages written by the channel, read back with conda's own library and rattler's."""

from __future__ import annotations

import hashlib
import io
import time
from pathlib import Path

import pytest
from extforge.channel.archive import EMPTY_SHA256, NOTICE, PLACEHOLDER, Entry, write_package
from rattler import AboutJson, IndexJson, PathsJson, RunExportsJson
from rattler.package_streaming import extract

from .conftest import read_package, small_package

BODY = b"\x7fELF" + bytes(range(256)) * 5000
ENTRIES = [
    Entry("lib/libz.so.1", open=lambda: io.BytesIO(BODY), size=len(BODY), executable=True),
    Entry("lib/libz.so", link="libz.so.1"),
    Entry("lib/python/lib", link="../../lib"),
    Entry("lib/far.so", link="other/far.so", sha256="ab" * 32, size=7),
    Entry("bin/tool", text=f"#!{PLACEHOLDER}/bin/python\n", executable=True),
    Entry("share/ünïcode name.txt", text="déjà vu\n"),
]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    planned = small_package(
        "zed",
        "",
        entries=lambda: iter(ENTRIES),
        subdir="linux-64",
        noarch=None,
        depends=("python >=3.8",),
        constrains=("zeta >=2",),
        run_exports={"weak": ["zed >=1.0"], "strong": ["zlib"]},
    )
    return write_package(planned, tmp_path / "linux-64")


def test_paths_are_complete_and_true(package: Path) -> None:
    contents = read_package(package)
    assert sorted(contents.paths) == sorted(contents.members) == sorted(entry.path for entry in ENTRIES)
    for path, content in contents.content.items():
        record = contents.paths[path]
        assert (record["path_type"], record["sha256"], record["size_in_bytes"]) == (
            "hardlink",
            hashlib.sha256(content).hexdigest(),
            len(content),
        )


@pytest.mark.parametrize(
    ("path", "target", "sha256", "size"),
    [
        ("lib/libz.so", "libz.so.1", hashlib.sha256(BODY).hexdigest(), len(BODY)),
        ("lib/far.so", "other/far.so", "ab" * 32, 7),
        ("lib/python/lib", "../../lib", EMPTY_SHA256, 0),
    ],
    ids=["within the package", "into another package", "directory"],
)
def test_link_tells_of_the_file_it_leads_to(
    package: Path, path: str, target: str, sha256: str, size: int
) -> None:
    contents = read_package(package)
    record = contents.paths[path]
    assert (contents.members[path].linkname, record["path_type"]) == (target, "softlink")
    assert (record["sha256"], record["size_in_bytes"]) == (sha256, size)


def test_only_text_with_the_placeholder_is_marked_for_replacement(package: Path) -> None:
    marked = {
        path: record for path, record in read_package(package).paths.items() if "prefix_placeholder" in record
    }
    assert {path: (r["prefix_placeholder"], r["file_mode"]) for path, r in marked.items()} == {
        "bin/tool": (PLACEHOLDER, "text")
    }


def test_modes(package: Path) -> None:
    members = read_package(package).members
    assert [oct(members[path].mode) for path in ("bin/tool", "lib/libz.so.1", "share/ünïcode name.txt")] == [
        "0o755",
        "0o755",
        "0o644",
    ]


def test_rattler_reads_the_same(package: Path, tmp_path: Path) -> None:
    index = IndexJson.from_package_archive(package)
    assert (index.name.normalized, str(index.version), str(index.build), index.subdir) == (
        "zed",
        "1.0",
        "h0_0",
        "linux-64",
    )
    assert (index.arch, index.platform, index.depends, index.constrains) == (
        "x86_64",
        "linux",
        ["python >=3.8"],
        ["zeta >=2"],
    )
    exports = RunExportsJson.from_package_archive(package)
    assert (exports.weak, exports.strong) == (["zed >=1.0"], ["zlib"])
    assert len(PathsJson.from_package_archive(package).paths) == len(ENTRIES)
    extract(package, tmp_path / "unpacked")
    assert AboutJson.from_package_directory(tmp_path / "unpacked").description == NOTICE
    assert (tmp_path / "unpacked" / "lib" / "libz.so").read_bytes() == BODY


def test_equal_input_gives_equal_bytes(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = time.localtime(time.time() + 86_400)
    monkeypatch.setattr(time, "localtime", lambda *_: later)
    planned = small_package("alpha", "text")
    first = write_package(planned, tmp_path / "first").read_bytes()
    monkeypatch.undo()
    assert write_package(planned, tmp_path / "second").read_bytes() == first


@pytest.mark.parametrize("path", ["/etc/passwd", "lib/../../etc/passwd"])
def test_path_outside_the_package_is_refused(tmp_path: Path, path: str) -> None:
    planned = small_package("bad", "", entries=lambda: iter([Entry(path, text="x")]))
    with pytest.raises(ValueError, match="must be relative and stay inside"):
        write_package(planned, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_files_of_one_path_are_refused(tmp_path: Path) -> None:
    planned = small_package("bad", "", entries=lambda: iter([Entry("a", text="x"), Entry("a", text="y")]))
    with pytest.raises(ValueError, match="two files of one package have the path 'a'"):
        write_package(planned, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_stream_shorter_than_stated_leaves_nothing(tmp_path: Path) -> None:
    planned = small_package(
        "bad", "", entries=lambda: iter([Entry("a", open=lambda: io.BytesIO(b"x"), size=9)])
    )
    with pytest.raises(OSError, match="unexpected end of data"):
        write_package(planned, tmp_path)
    assert list(tmp_path.iterdir()) == []
