"""Random damage: every input is either read or refused in the one documented way."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from extforge.audit import audit_packages
from extforge.audit.reading.elf import read_elf
from extforge.audit.reading.fatbin import read_device_images
from extforge.audit.reading.limits import Allowance, Limits
from extforge.audit.reading.package import read_package
from extforge.audit.reading.window import Malformed, Window
from extforge.audit.requirements import read_conda_requirement, read_wheel_requirement
from extforge.audit.rules.architectures import parse_architectures
from extforge.errors import BadInputError
from forging import CUDA, Library, Spec, WheelSpec, conda, fat_binary, tar, write_conda, write_tar_bz2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Changes = list[tuple[float, bytes]]
FAST = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LIMITS = Limits(entries=200, unpacked_bytes=1 << 22, unpacked_ratio=4, seconds=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
# where (as a share of the file) and what to write there
DAMAGE = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=9)), min_size=1, max_size=6
)


def outcome(call: Callable[[], object], refusal: type[Exception]) -> tuple[object, str]:
    """What the call returns, or the text of its refusal; any other exception fails the test."""
    try:
        return call(), ""
    except refusal as error:
        return None, str(error)


def read_or_refused(path: Path) -> bool:
    package, text = outcome(lambda: read_package(path, limits=LIMITS), BadInputError)
    return package is not None or (text.startswith(str(path)) and text.isprintable())


def damaged(content: bytes, changes: Changes, keep: float) -> bytes:
    result = bytearray(content)
    for share, patch in changes:
        at = int(share * len(result))
        result[at : at + len(patch)] = patch
    return bytes(result[: max(1, int(keep * len(result)))])


@FAST
@given(changes=DAMAGE, keep=st.floats(0.2, 1))
def test_damaged_elf_is_read_or_malformed(
    compiled: Callable[[Library], bytes], changes: Changes, keep: float
) -> None:
    window = Window(io.BytesIO(damaged(compiled(CUDA), changes, keep)))
    elf, text = outcome(lambda: read_elf(window, Allowance(20)), Malformed)
    assert elf is not None or text


@FAST
@given(place=st.integers(0, 700), value=st.integers(0, 2**64 - 1))
def test_elf_whose_numbers_lie_is_read_or_malformed(
    compiled: Callable[[Library], bytes], place: int, value: int
) -> None:
    content = compiled(CUDA)
    lying = content[: place * 8] + value.to_bytes(8, "little") + content[place * 8 + 8 :]
    elf, text = outcome(lambda: read_elf(Window(io.BytesIO(lying)), Allowance(20)), Malformed)
    assert elf is not None or text


@FAST
@given(changes=DAMAGE)
def test_damaged_fat_binary_is_listed_or_malformed(changes: Changes) -> None:
    content = damaged(fat_binary(((2, 80), (1, 90), (2, 120))), changes, 1)
    images, text = outcome(lambda: list(read_device_images(Window(io.BytesIO(content)), 0)), Malformed)
    assert images is not None or text


WRITERS: dict[str, Callable[[Path], Path]] = {
    "conda": lambda d: write_conda(Spec(files={"lib/a": b"x" * 500}), d),
    "bz2": lambda d: write_tar_bz2(Spec(files={"lib/a": b"x" * 500}), d),
    "wheel": lambda d: WheelSpec(files={"thing/a.py": b"x" * 500}).write(d),
}


@pytest.mark.parametrize("kind", WRITERS)
@FAST
@given(changes=DAMAGE, keep=st.floats(0.3, 1))
def test_damaged_archive_is_read_or_refused(
    kind: str, tmp_path_factory: pytest.TempPathFactory, changes: Changes, keep: float
) -> None:
    path = WRITERS[kind](tmp_path_factory.mktemp("archive"))
    path.write_bytes(damaged(path.read_bytes(), changes, keep))
    assert read_or_refused(path)


@FAST
@given(blocks=st.lists(st.binary(min_size=0, max_size=512), max_size=4), whole=st.booleans())
def test_tar_of_noise_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[bytes], whole: bool
) -> None:
    payload = b"".join(block.ljust(512, b"\0") for block in blocks)
    payload = tar([("lib/a", b"x")])[:512] + payload if whole else payload
    assert read_or_refused(conda(tmp_path_factory.mktemp("noise") / "a-1-0.conda", payload))


@FAST
@given(
    index=st.dictionaries(st.sampled_from(["name", "version", "build", "build_number", "depends"]), JSON),
    rest=JSON,
)
def test_metadata_of_any_shape_is_audited_or_refused(
    tmp_path_factory: pytest.TempPathFactory, index: dict[str, Any], rest: Any
) -> None:
    base = {"name": "a", "version": "1", "build": "0", "build_number": 0, "depends": [], "subdir": "linux-64"}
    info = {
        "info/index.json": base | index,
        "info/paths.json": {"paths": rest},
        "info/about.json": {"license": rest},
    }
    packed = tar([(name, json.dumps(value).encode()) for name, value in info.items()])
    path = conda(tmp_path_factory.mktemp("metadata") / "a-1-0.conda", tar([("lib/a", b"x")]), packed)
    report, text = outcome(lambda: audit_packages([path]), BadInputError)
    assert report is not None or text.isprintable()


@FAST
@given(metadata=st.text(max_size=80), wheel=st.text(max_size=40), record=st.text(max_size=60))
def test_wheel_metadata_of_any_shape_is_audited_or_refused(
    tmp_path_factory: pytest.TempPathFactory, metadata: str, wheel: str, record: str
) -> None:
    path = tmp_path_factory.mktemp("wheel") / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "a-1.dist-info/METADATA", f"Name: a\nVersion: 1\n{metadata}".encode("utf-8", "replace")
        )
        archive.writestr("a-1.dist-info/WHEEL", wheel.encode("utf-8", "replace"))
        archive.writestr("a-1.dist-info/RECORD", record.encode("utf-8", "replace"))
    report, text = outcome(lambda: audit_packages([path]), BadInputError)
    assert report is not None or text.isprintable()


@FAST
@given(text=st.text(max_size=30))
@pytest.mark.parametrize("parse", [read_conda_requirement, read_wheel_requirement, parse_architectures])
def test_any_text_is_parsed_or_refused(parse: Callable[[str], object], text: str) -> None:
    parsed, refusal = outcome(lambda: parse(text), BadInputError)
    assert parsed is not None or refusal or "extra" in text
