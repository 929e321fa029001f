"""One ELF file as the loader sees it: program headers and the dynamic segment, never the section table.

A stripped file keeps everything read here; a file whose section headers were removed or lie reads the same.
pyelftools supplies the structures; symbol tables are read in bulk, since large libraries hold 10^6 symbols.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from elftools.common.exceptions import ELFError
from elftools.common.utils import struct_parse
from elftools.elf.structs import ELFStructs

from extforge.audit.binaries import Elf, Import
from extforge.audit.reading.limits import Allowance
from extforge.audit.reading.scan import scan
from extforge.audit.reading.window import Malformed, Window

MACHINES = {
    "EM_386": "i386",
    "EM_X86_64": "x86_64",
    "EM_AARCH64": "aarch64",
    "EM_ARM": "armv7l",
    "EM_PPC64": "ppc64le",
    "EM_S390": "s390x",
    "EM_RISCV": "riscv64",
}
EXECUTABLE, SHARED_OBJECT = 2, 3
PF_X = 1
DF_TEXTREL = 4
VER_FLG_WEAK = 2
LISTS = ("DT_NEEDED", "DT_RPATH", "DT_RUNPATH", "DT_SONAME")
STB_GLOBAL, STB_WEAK, STB_UNIQUE = 1, 2, 10
VISIBLE = (0, 3)  # STV_DEFAULT, STV_PROTECTED
MOST_HEADERS, MOST_SYMBOLS, MOST_BUCKETS = 5_000, 4_000_000, 4_000_000
LONGEST_NAME, LONGEST_STRINGS = 1 << 16, 128 << 20
CXX_EXAMPLES = 3
BATCH = 1 << 16


class Segment(NamedTuple):
    """Where a loaded part of the file comes to lie."""

    address: int
    offset: int
    length: int


class Version(NamedTuple):
    """A symbol version that another library must have."""

    name: str
    library: str
    weak: bool


def is_linked_elf(head: bytes) -> bool:
    """Whether a file that begins with ``head`` is an ELF that a loader loads, not a relocatable object."""
    if head[:4] != b"\x7fELF" or len(head) < 18 or head[5] not in (1, 2):
        return False
    order = "<" if head[5] == 1 else ">"
    return struct.unpack_from(f"{order}H", head, 16)[0] in (EXECUTABLE, SHARED_OBJECT)


def read_elf(window: Window, allowance: Allowance) -> Elf:
    """Read one ELF file; raise :class:`Malformed` when its headers cannot be followed."""
    try:
        return _ElfReader(window, allowance).read()
    except (ELFError, struct.error, UnicodeDecodeError) as error:
        raise Malformed(str(error)) from error


@cache
def _structures(little_endian: bool, bits: int) -> ELFStructs:
    structures = ELFStructs(little_endian, bits)
    structures.create_basic_structs()
    structures.create_advanced_structs()
    return structures


class _ElfReader:
    def __init__(self, window: Window, allowance: Allowance) -> None:
        ident = window.at(0, 16)
        if ident[:4] != b"\x7fELF" or ident[4] not in (1, 2) or ident[5] not in (1, 2):
            raise Malformed(f"ELF class {ident[4]}, byte order {ident[5]}")
        self._window = window
        self._allowance = allowance
        self._parses_left = MOST_HEADERS
        self._bits = 32 * ident[4]
        self._order = "<" if ident[5] == 1 else ">"
        self._structs = _structures(ident[5] == 1, self._bits)
        self._header = self._parse(self._structs.Elf_Ehdr, 0)
        self._programs = self._program_headers()
        self._segments = tuple(
            Segment(p.p_vaddr, p.p_offset, p.p_filesz) for p in self._programs if p.p_type == "PT_LOAD"
        )
        self._numbers: dict[str, int] = {}
        self._lists: dict[str, list[int]] = {tag: [] for tag in LISTS}
        self._unread: list[str] = []

    def read(self) -> Elf:
        """Everything the rules ask about."""
        self._read_dynamic()
        strings = self._strings()
        names = {t: tuple(self._text(strings, o) for o in offsets) for t, offsets in self._lists.items()}
        versions = self._version_needs(strings)
        imports, exports, cxx_exports = self._read_symbols(strings, versions)
        scanned = scan(self._window, self._allowance)
        by_type = {p.p_type: p for p in self._programs}
        stack = by_type.get("PT_GNU_STACK")
        run_path_tag = "RUNPATH" if names["DT_RUNPATH"] else "RPATH" if names["DT_RPATH"] else ""
        return Elf(
            machine=MACHINES.get(self._header.e_machine, str(self._header.e_machine)),
            bits=self._bits,
            soname=next(iter(names["DT_SONAME"]), ""),
            needed=names["DT_NEEDED"],
            run_paths=tuple(
                part for path in names["DT_RPATH"] + names["DT_RUNPATH"] if path for part in path.split(":")
            ),
            run_path_tag=run_path_tag,
            imports=imports,
            version_needs=frozenset(v.name for v in versions.values() if not v.weak),
            exports=exports,
            cxx_exports=cxx_exports,
            executable_stack=stack is not None and bool(stack.p_flags & PF_X),
            text_relocations="DT_TEXTREL" in self._numbers
            or bool(self._numbers.get("DT_FLAGS", 0) & DF_TEXTREL),
            relro="PT_GNU_RELRO" in by_type or "PT_DYNAMIC" not in by_type,
            build_paths=tuple(sorted(scanned.build_paths)),
            device_images=tuple(sorted(scanned.images)),
            operators=tuple(sorted(scanned.operators)),
            holds_cuda_runtime=scanned.cuda_runtime,
            unread=(*self._unread, *scanned.problems[:3]),
        )

    def _parse(self, structure: Any, offset: int) -> Any:
        # Lists that count or link themselves may be made to go round; no real file has so many entries.
        self._parses_left -= 1
        if self._parses_left < 0:
            raise Malformed(f"more than {MOST_HEADERS} headers, dynamic entries and versions")
        return struct_parse(structure, io.BytesIO(self._window.at(offset, structure.sizeof())))

    def _program_headers(self) -> tuple[Any, ...]:
        header = self._header
        offsets = (header.e_phoff + i * header.e_phentsize for i in range(header.e_phnum))
        return tuple(self._parse(self._structs.Elf_Phdr, offset) for offset in offsets)

    def _read_dynamic(self) -> None:
        dynamic = next((p for p in self._programs if p.p_type == "PT_DYNAMIC"), None)
        if dynamic is None:
            return
        size = self._structs.Elf_Dyn.sizeof()
        for i in range(dynamic.p_filesz // size):
            entry = self._parse(self._structs.Elf_Dyn, dynamic.p_offset + i * size)
            if entry.d_tag == "DT_NULL":
                return
            if entry.d_tag in self._lists:
                self._lists[entry.d_tag].append(entry.d_val)
            elif isinstance(entry.d_tag, str):
                self._numbers[entry.d_tag] = entry.d_val

    def _offset(self, address: int) -> int:
        for segment in self._segments:
            if segment.address <= address < segment.address + segment.length:
                return segment.offset + address - segment.address
        raise Malformed(f"address {address:#x} is in no loaded segment")

    def _strings(self) -> bytes:
        if "DT_STRTAB" not in self._numbers:
            return b""
        length = self._numbers.get("DT_STRSZ", 0)
        return self._window.at(self._offset(self._numbers["DT_STRTAB"]), length, LONGEST_STRINGS)

    def _text(self, strings: bytes, offset: int) -> str:
        end = strings.find(b"\0", offset, offset + LONGEST_NAME)
        if end < 0:
            raise Malformed(f"name at offset {offset} of a string table of {len(strings)}")
        return strings[offset:end].decode("utf-8", "backslashreplace")

    def _read_symbols(
        self, strings: bytes, versions: dict[int, Version]
    ) -> tuple[tuple[Import, ...], frozenset[str], tuple[str, ...]]:
        imports: dict[tuple[str, str], Import] = {}
        exports: set[str] = set()
        cxx_exports: list[str] = []
        for name_offset, info, other, section, version in self._symbols():
            binding = info >> 4
            if name_offset == 0 or binding not in (STB_GLOBAL, STB_WEAK, STB_UNIQUE):
                continue
            if section != 0 and (binding != STB_GLOBAL or (other & 3) not in VISIBLE):
                continue
            name = self._text(strings, name_offset)
            if not self._allowance.take_name(len(name)):
                raise Malformed("more symbol names in this package than memory is given to")
            if section == 0:
                needed = versions.get(version & 0x7FFF, Version("", "", False))
                imports[name, needed.name] = Import(name, needed.name, needed.library, binding == STB_WEAK)
            elif not name.startswith("_Z"):
                exports.add(name)
            elif len(cxx_exports) < CXX_EXAMPLES:
                cxx_exports.append(name)
        return tuple(imports.values()), frozenset(exports), tuple(cxx_exports)

    def _symbols(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield (name offset, info, other, section, version index) of each dynamic symbol."""
        if "DT_SYMTAB" not in self._numbers:
            return
        count = self._symbol_count()
        table = self._offset(self._numbers["DT_SYMTAB"])
        layout = struct.Struct(self._order + ("IBBHQQ" if self._bits == 64 else "IIIBBH"))
        name, info, other, section = (0, 1, 2, 3) if self._bits == 64 else (0, 3, 4, 5)
        versions = self._offset(self._numbers["DT_VERSYM"]) if "DT_VERSYM" in self._numbers else None
        for first in range(0, count, BATCH):
            self._allowance.check_time()
            size = min(BATCH, count - first)
            indices = self._version_indices(versions, first, size)
            batch = self._window.at(table + first * layout.size, size * layout.size)
            for symbol, index in zip(layout.iter_unpack(batch), indices, strict=True):
                yield symbol[name], symbol[info], symbol[other], symbol[section], index

    def _version_indices(self, table: int | None, first: int, size: int) -> tuple[int, ...]:
        if table is None:
            return (1,) * size
        return struct.unpack(f"{self._order}{size}H", self._window.at(table + 2 * first, 2 * size))

    def _symbol_count(self) -> int:
        if "DT_HASH" in self._numbers:
            at = self._offset(self._numbers["DT_HASH"])
            count: int = struct.unpack(f"{self._order}2I", self._window.at(at, 8))[1]
        elif "DT_GNU_HASH" in self._numbers:
            count = self._count_by_gnu_hash(self._offset(self._numbers["DT_GNU_HASH"]))
        else:
            count = self._count_by_neighbour()
        if count > MOST_SYMBOLS:
            raise Malformed(f"{count} dynamic symbols")
        return count

    def _count_by_gnu_hash(self, at: int) -> int:
        buckets, first, bloom, _ = struct.unpack(f"{self._order}4I", self._window.at(at, 16))
        if buckets > MOST_BUCKETS:
            raise Malformed(f"{buckets} hash buckets")
        start = at + 16 + bloom * self._bits // 8
        last = max(struct.unpack(f"{self._order}{buckets}I", self._window.at(start, 4 * buckets)), default=0)
        if last < first:
            # No defined symbol is hashed: the table holds imports alone, up to ``first`` or, when the linker
            # wrote 1 there for an empty hash, up to the string table.
            return max(int(first), self._count_by_neighbour())
        chains = start + 4 * buckets
        return last + 1 + self._chain_length(chains + 4 * (last - first))

    def _chain_length(self, at: int) -> int:
        """How many links of a hash chain follow until the one whose lowest bit ends it."""
        left = (self._window.size - at) // 4
        for passed in range(0, left, BATCH):
            self._allowance.check_time()
            size = min(BATCH, left - passed)
            chain = struct.unpack(f"{self._order}{size}I", self._window.at(at + 4 * passed, 4 * size))
            end = next((i for i, link in enumerate(chain) if link & 1), None)
            if end is not None:
                return passed + end
        raise Malformed("a hash chain without end")

    def _count_by_neighbour(self) -> int:
        """Without a usable hash, linkers still place the string table right behind the symbol table."""
        symbols, strings = self._numbers["DT_SYMTAB"], self._numbers.get("DT_STRTAB", 0)
        count, rest = divmod(strings - symbols, 24 if self._bits == 64 else 16)
        if strings <= symbols or rest or count > MOST_SYMBOLS:
            self._unread.append("symbol table: no hash table bounds it")
            return 0
        return count

    def _version_needs(self, strings: bytes) -> dict[int, Version]:
        if "DT_VERNEED" not in self._numbers:
            return {}
        needs: dict[int, Version] = {}
        at = self._offset(self._numbers["DT_VERNEED"])
        for _ in range(self._numbers.get("DT_VERNEEDNUM", 0)):
            need = self._parse(self._structs.Elf_Verneed, at)
            library = self._text(strings, need.vn_file)
            aux_at = at + need.vn_aux
            for _ in range(need.vn_cnt):
                aux = self._parse(self._structs.Elf_Vernaux, aux_at)
                name = self._text(strings, aux.vna_name)
                needs[aux.vna_other & 0x7FFF] = Version(name, library, bool(aux.vna_flags & VER_FLG_WEAK))
                aux_at += aux.vna_next
            at += need.vn_next
        return needs
