"""What is known of one ELF file and of the GPU code in it: plain data, without any judgement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Import(NamedTuple):
    """A symbol that a library takes from elsewhere. ``weak``: it may stay unresolved."""

    name: str
    version: str
    library: str
    weak: bool


class DeviceImage(NamedTuple):
    """GPU code inside a library: ``kind`` is ``sass`` or ``ptx``, ``architecture`` e.g. ``9.0a``."""

    kind: str
    architecture: str


class SecondOpinion(NamedTuple):
    """What cuobjdump sees in a library; ``problem`` when it could not be asked."""

    images: frozenset[DeviceImage]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Elf:
    """What the loader, not the section table, sees of one ELF file.

    ``holds_cuda_runtime``: libcudart itself, or a library into which it was linked statically.
    ``unread`` lists what could not be established, as phrases; each of them is reported as *not verified*.
    """

    machine: str
    bits: int
    soname: str = ""
    needed: tuple[str, ...] = ()
    run_paths: tuple[str, ...] = ()
    run_path_tag: str = ""
    imports: tuple[Import, ...] = ()
    version_needs: frozenset[str] = frozenset()
    exports: frozenset[str] = frozenset()
    cxx_exports: tuple[str, ...] = ()
    executable_stack: bool = False
    text_relocations: bool = False
    relro: bool = True
    build_paths: tuple[str, ...] = ()
    device_images: tuple[DeviceImage, ...] = ()
    operators: tuple[str, ...] = ()
    holds_cuda_runtime: bool = False
    unread: tuple[str, ...] = ()

    @property
    def hard_imports(self) -> Iterator[Import]:
        """Symbols without which the library does not load."""
        return (symbol for symbol in self.imports if not symbol.weak)
