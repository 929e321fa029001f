"""Is the package fit to be installed on somebody else's machine?"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Iterator

from extforge.audit.binaries import Elf
from extforge.audit.model import Context, Entry, Format, Kind, Observation, Package
from extforge.audit.rules.labels import listed, torch_libraries
from extforge.audit.rules.run_paths import installed_path


def build_paths(package: Package, context: Context) -> Iterator[Observation]:
    """H01. Conda packages only: their recipe has a line for it, and a recorded prefix is replaced."""
    if package.claims.format is Format.WHEEL:
        return
    for path, elf in package.elves.items():
        claim = package.claims.files.get(path)
        placeholder = claim.placeholder if claim else ""
        leaks = [
            p
            for p in elf.build_paths
            if p not in elf.run_paths and not (placeholder and p.startswith(placeholder))
        ]
        if leaks:
            yield Observation(
                path, "runs anywhere", f"names {listed(leaks, 3)}", "CXXFLAGS -ffile-prefix-map"
            )


def executable_stack(package: Package, context: Context) -> Iterator[Observation]:
    """H02."""
    for path, elf in package.elves.items():
        if elf.executable_stack:
            yield Observation(
                path, "loads on current systems", "PT_GNU_STACK is executable", "LDFLAGS -z noexecstack"
            )


def text_relocations(package: Package, context: Context) -> Iterator[Observation]:
    """H03."""
    for path, elf in package.elves.items():
        if elf.text_relocations:
            yield Observation(path, "position independent", "DT_TEXTREL is set", "CXXFLAGS -fPIC")


def missing_relro(package: Package, context: Context) -> Iterator[Observation]:
    """H04."""
    for path, elf in package.elves.items():
        if not elf.relro:
            yield Observation(path, "read-only relocations", "no PT_GNU_RELRO", "LDFLAGS -z relro")


def unsafe_modes(package: Package, context: Context) -> Iterator[Observation]:
    """H05."""
    for entry in package.entries.values():
        if entry.kind is Kind.SYMLINK or (package.claims.installed and entry.kind is Kind.DIRECTORY):
            continue
        writable = entry.mode & stat.S_IWOTH and not entry.mode & stat.S_ISVTX
        if writable or (entry.kind is Kind.FILE and entry.mode & (stat.S_ISUID | stat.S_ISGID)):
            yield Observation(
                entry.path, "mode 644 or 755", f"mode {entry.mode:o}", f"the mode of {entry.path}"
            )


def straying_symlinks(package: Package, context: Context) -> Iterator[Observation]:
    """H06."""
    for entry in package.payload:
        if entry.kind is Kind.SYMLINK:
            yield from _judge_symlink(package, context, entry)


def _judge_symlink(package: Package, context: Context, entry: Entry) -> Iterator[Observation]:
    target = entry.link_target
    joined = posixpath.normpath(
        posixpath.join(posixpath.dirname(installed_path(package, entry.path)), target)
    )
    if target.startswith("/") or joined.split("/")[0] == "..":
        yield Observation(
            entry.path, "stays in the environment", f"leads to {target}", f"the target of {entry.path}"
        )
        return
    own = {installed_path(package, e.path) for e in package.entries.values()}
    if joined in own or any(joined in p.files for p in context.providers or ()):
        return
    required = [r.name for r in package.claims.requirements if not r.name.startswith("__")]
    certain = context.providers is not None or not required
    seen = f"leads to {target}, which is not in the package"
    yield Observation(entry.path, "leads to a file", seen, f"the target of {entry.path}", verified=certain)


def surplus_exports(package: Package, context: Context) -> Iterator[Observation]:
    """H07. Python modules of torch only: what any other library exports may be its purpose."""
    for path, elf in torch_libraries(package).items():
        surplus = _surplus(elf)
        if surplus:
            yield Observation(
                path, "exports its PyInit function", f"also {listed(surplus, 3)}", "-fvisibility=hidden"
            )


def _surplus(elf: Elf) -> list[str]:
    if not any(name.startswith("PyInit_") for name in elf.exports):
        return []
    ordinary = {"_init", "_fini", "__bss_start", "_edata", "_end"}
    return sorted(n for n in elf.exports - ordinary if not n.startswith("PyInit")) + list(elf.cxx_exports)


def unreadable_libraries(package: Package, context: Context) -> Iterator[Observation]:
    """H08. Whatever could not be read makes every other verdict on that file incomplete."""
    for path, elf in package.elves.items():
        for problem in elf.unread:
            yield Observation(path, "a library", problem, f"readelf -dW {path}", verified=False)


RULES = {
    "H01": build_paths,
    "H02": executable_stack,
    "H03": text_relocations,
    "H04": missing_relro,
    "H05": unsafe_modes,
    "H06": straying_symlinks,
    "H07": surplus_exports,
    "H08": unreadable_libraries,
}
