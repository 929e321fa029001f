"""The GPU code inside a host library, read from NVIDIA's fat binary headers.

The format is not documented by NVIDIA; this is what nvcc 12 and 13 write, all little-endian:

=========  ======  =======================================================================
container  offset  meaning
=========  ======  =======================================================================
           0       u32 magic 0xBA55ED50
           4       u16 version, 1
           6       u16 size of this header, 16
           8       u64 size of all entries that follow
entry      0       u16 kind: 1 PTX, 2 cubin (SASS)
           2       u16 version, 0x101
           4       u32 size of this header, 64 or more
           8       u64 size of the payload that follows the header
           16      u32 compressed size; 0 when the payload is plain
           24      u16 minor, u16 major of the PTX or cubin version
           28      u32 architecture, such as 90
           40      u64 flags: 0x100000 architecture-specific ("a"), 0x200000 family-specific ("f")
=========  ======  =======================================================================

Architecture and kind are never compressed, so nothing needs to be unpacked. Containers are found by their
magic anywhere in the file: in ``.nv_fatbin``, in ``__nv_relfatbin`` (relocatable device code), and in files
without a section table.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from extforge.audit.binaries import DeviceImage
from extforge.audit.reading.window import Malformed, Window

MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
CONTAINER = struct.Struct("<IHHQ")
ENTRY = struct.Struct("<HHIQ12xI8xQ")
KINDS = {1: "ptx", 2: "sass"}
ENTRY_VERSION = 0x101
SUFFIXES = {0x100000: "a", 0x200000: "f"}
MOST_ENTRIES = 100_000


def read_device_images(window: Window, offset: int) -> Iterator[DeviceImage]:
    """Yield the images of the container at ``offset``; raise :class:`Malformed` where its sizes lie."""
    position, end = offset + CONTAINER.size, offset + container_size(window, offset)
    if end > window.size:
        raise Malformed(f"a fat binary that ends at {end} in a file of {window.size} bytes")
    for _ in range(MOST_ENTRIES):
        if position >= end:
            return
        kind, version, entry_header, payload, architecture, flags = ENTRY.unpack(
            window.at(position, ENTRY.size)
        )
        if version != ENTRY_VERSION or entry_header < 64 or position + entry_header + payload > end:
            raise Malformed(f"entry header at offset {position} of a fat binary")
        yield DeviceImage(KINDS.get(kind, f"kind {kind}"), architecture_name(architecture, flags))
        position += entry_header + payload
    raise Malformed(f"a fat binary of more than {MOST_ENTRIES} entries")


def container_size(window: Window, offset: int) -> int:
    """Bytes of the container at ``offset``, header included."""
    size: int = CONTAINER.unpack(window.at(offset, CONTAINER.size))[3]
    return CONTAINER.size + size


def architecture_name(number: int, flags: int) -> str:
    """``90`` and its flags as ``9.0a``."""
    suffix = "".join(letter for bit, letter in SUFFIXES.items() if flags & bit)
    return f"{number // 10}.{number % 10}{suffix}"
