"""Two builds: byte-equal, or exactly what differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from extforge.audit.comparing import Difference, compare_packages
from extforge.errors import BadInputError, NotFoundError
from forging import Spec, write_conda, write_directory, write_tar_bz2

BASE = Spec(files={"lib/a": b"one", "lib/b": b"two"}, links={"lib/c": "a"})
A = "file 644, 3 bytes"


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    return tmp_path / "first", tmp_path / "second"


@pytest.mark.parametrize("write", [write_conda, write_tar_bz2, write_directory])
def test_equal_builds_differ_in_nothing(write: object, directories: tuple[Path, Path]) -> None:
    assert callable(write)
    assert compare_packages(*(write(BASE, d) for d in directories)) == ()


# what the second build changes -> what is said of the payload
CHANGES = {
    "content": (
        replace(BASE, files={"lib/a": b"uno", "lib/b": b"two"}),
        Difference("lib/a", f"{A}, from byte 0: b'one'", f"{A}, from byte 0: b'uno'"),
    ),
    "longer": (
        replace(BASE, files={"lib/a": b"x" * 99 + b"one", "lib/b": b"two"}),
        Difference("lib/a", f"{A}, from byte 0: b'one'", f"file 644, 102 bytes, from byte 0: b'{'x' * 60}'"),
    ),
    "late": (
        replace(BASE, files={"lib/a": b"one", "lib/b": b"twofold"}),
        Difference("lib/b", f"{A}, from byte 0: b'two'", "file 644, 7 bytes, from byte 0: b'twofold'"),
    ),
    "absent": (replace(BASE, files={"lib/b": b"two"}), Difference("lib/a", A, "absent")),
    "added": (
        replace(BASE, links={"lib/c": "a", "lib/d": "b"}),
        Difference("lib/d", "absent", "symlink 777 to b"),
    ),
    "mode": (replace(BASE, modes={"lib/a": 0o755}), Difference("lib/a", A, A.replace("644", "755"))),
    "target": (
        replace(BASE, links={"lib/c": "b"}),
        Difference("lib/c", "symlink 777 to a", "symlink 777 to b"),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_difference_is_named(name: str, directories: tuple[Path, Path]) -> None:
    changed, wanted = CHANGES[name]
    found = compare_packages(write_conda(BASE, directories[0]), write_conda(changed, directories[1]))
    assert wanted in found
    assert {d.path for d in found} <= {wanted.path, "info/paths.json"}


def test_different_packing_is_named(directories: tuple[Path, Path]) -> None:
    turned = replace(BASE, files=dict(reversed(BASE.files.items())))
    first, second = write_directory(BASE, directories[0]), write_directory(turned, directories[1])
    assert [d.path for d in compare_packages(first, second)] == ["info/paths.json"]
    packed = write_tar_bz2(BASE, directories[0])
    other = directories[1] / packed.name
    other.write_bytes(packed.read_bytes() + b"\0")
    (difference,) = compare_packages(packed, other)
    assert difference.path == ""
    assert difference.first == f"packed alike up to byte {packed.stat().st_size}"


def test_what_is_no_package_is_refused(directories: tuple[Path, Path]) -> None:
    package = write_conda(BASE, directories[0])
    damaged = directories[1] / package.name
    damaged.write_bytes(package.read_bytes()[:200])
    with pytest.raises(BadInputError, match=f"^{damaged}: is no zip archive, or a truncated one"):
        compare_packages(package, damaged)
    with pytest.raises(NotFoundError, match=r"none\.conda does not exist"):
        compare_packages(package, directories[1] / "none.conda")
