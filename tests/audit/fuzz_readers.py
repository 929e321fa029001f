"""Coverage-guided fuzzing of the readers, by hand: ``python fuzz_readers.py TARGET [CORPUS]``.

Targets are elf, fatbin, conda, tar, whl, and any, where the first byte of the input chooses among them. Needs
``atheris``. Options after the corpus are libFuzzer's, such as ``-max_total_time=1800``. Only the documented
refusals may leave a reader; anything else is a crash, which libFuzzer writes to a file. Its smallest form
belongs into ``test_audit_hostile.py`` or ``test_audit_elf.py``.
"""

from __future__ import annotations

import bz2
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["extforge", "elftools", "tarfile", "zipfile"]):
    from extforge.audit.reading.elf import read_elf
    from extforge.audit.reading.fatbin import read_device_images
    from extforge.audit.reading.limits import Allowance, Limits
    from extforge.audit.reading.package import read_package
    from extforge.audit.reading.window import Malformed, Window
    from extforge.errors import BadInputError

LIMITS = Limits(entries=1000, unpacked_bytes=1 << 24, unpacked_ratio=4, seconds=10)
NAMES = {"conda": "a-1-0.conda", "tar": "a-1-0.tar.bz2", "whl": "a-1-py3-none-any.whl"}


def elf(data: bytes) -> None:
    try:
        read_elf(Window(io.BytesIO(data)), Allowance(10))
    except Malformed:
        return


def fatbin(data: bytes) -> None:
    try:
        list(read_device_images(Window(io.BytesIO(data)), 0))
    except Malformed:
        return


def archive(name: str) -> Callable[[bytes], None]:
    directory = Path(tempfile.mkdtemp())

    def read(data: bytes) -> None:
        # Bits changed under compression only spoil its checksum: what is fuzzed is the tar inside.
        (directory / name).write_bytes(bz2.compress(data, 1) if name.endswith(".bz2") else data)
        try:
            read_package(directory / name, limits=LIMITS)
        except BadInputError:
            return

    return read


READERS = {"elf": elf, "fatbin": fatbin, **{kind: archive(name) for kind, name in NAMES.items()}}


def any_reader(data: bytes) -> None:
    if data:
        tuple(READERS.values())[data[0] % len(READERS)](data[1:])


TARGETS = {**READERS, "any": any_reader}

if __name__ == "__main__":
    atheris.Setup([sys.argv[0], *sys.argv[2:]], TARGETS[sys.argv[1]])
    atheris.Fuzz()
