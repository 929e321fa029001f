"""Which torch releases can load the libraries, and which does the package accept?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from extforge.audit.binaries import Elf
from extforge.audit.model import Context, Format, Observation, Package
from extforge.audit.requirements import allowed_minors
from extforge.audit.rules.labels import (
    CLASSIC,
    CUDA_TORCH_LIBRARIES,
    TORCH_NAMES,
    accepts_torch_without_cuda,
    described,
    device_label,
    listed,
    torch_libraries,
)
from extforge.audit.tables import torch

# Releases that a requirement may speak of: those before the table, those in it, and those to come.
MINORS = tuple(chain((f"1.{n}" for n in range(14)), (f"2.{n}" for n in range(40)), ("3.0", "4.0")))
DISPATCHER_CALLS = frozenset({"torch_call_dispatcher", "aoti_torch_call_dispatcher"})
# A directory that names one torch release, for packages that ship one library for each.
PER_RELEASE = re.compile(r"(?:^|/)(?:lib)?torch[-_]?v?(\d+\.\d+)(?:\.\d+)?(?:/|$)")

# Library of torch -> what in a symbol's name shows that it is used.
USES = {
    "libtorch_python.so": re.compile(r"THP|7_object|8pybind116detail11type_caster|_ZN?K?5torch"),
    "libc10.so": re.compile(r"_Z\w*3c10"),
    "libc10_cuda.so": re.compile(r"_Z\w*3c104cuda"),
    "libtorch_cuda.so": re.compile(r"_Z\w*(2at|3c10|5torch)"),
}


def oldest_torch(package: Package) -> tuple[str, str]:
    """The oldest torch that the requirements allow, and their words; empty where they name no torch."""
    required = package.claims.restricted(*TORCH_NAMES)
    minors = allowed_minors(required, MINORS) if required else ()
    return (minors[0] if minors else ""), described(required, "")


def newer_shims(package: Package, context: Context) -> Iterator[Observation]:
    """T01."""
    oldest, claim = oldest_torch(package)
    if not oldest:
        for path in torch_libraries(package) if claim else ():
            yield Observation(path, claim, "no release of torch satisfies this", "pytorch", verified=False)
        return
    known, begins = torch.shims(), torch.releases()[0]
    for path, elf in torch_libraries(package).items():
        used = sorted(s.name for s in elf.hard_imports if torch.SHIM.fullmatch(s.name))
        unknown = [name for name in used if name not in known]
        newer = {
            n: known[n].first
            for n in used
            if n in known and torch.order(known[n].first) > torch.order(oldest)
        }
        born = max(newer.values(), key=torch.order, default="")
        youngest = sorted(n for n, first in newer.items() if first == born)
        if born and born != begins:
            seen = f"torch {born} is the first with {listed(youngest)}"
            yield Observation(path, claim, seen, f"torch >={born}")
        elif youngest:
            seen = f"functions that torch {begins} has; of torch {oldest} nothing is known"
            yield Observation(path, claim, seen, f"torch >={begins}", verified=False)
        if unknown:
            seen = f"functions that no torch from {begins} to {torch.releases()[-1]} has: {listed(unknown)}"
            yield Observation(path, claim, seen, "tables/torch.json", verified=False)


def classic_abi(package: Package, context: Context) -> Iterator[Observation]:
    """T02. A library in a directory that names a release speaks for that release alone."""
    required = package.claims.restricted(*TORCH_NAMES)
    if not required:
        return
    allowed = allowed_minors(required, MINORS)
    covered: set[str] = set()
    for path, elf in torch_libraries(package).items():
        symbols = sorted(s.name for s in elf.hard_imports if CLASSIC.match(s.name))
        release = PER_RELEASE.search(path)
        if symbols and release:
            covered.add(release[1])
        elif symbols and len(allowed) != 1:
            seen = f"{len(symbols)} C++ symbols of torch, such as {symbols[0]}"
            yield Observation(path, f"{described(required, '')}: {_span(allowed)}", seen, "pytorch 2.N.*")
    if covered and set(allowed) - covered:
        missing = sorted(set(allowed) - covered, key=torch.order)
        seen = f"libraries for {_span(tuple(sorted(covered, key=torch.order)))}; none for {listed(missing)}"
        yield Observation(
            package.claims.metadata_root, described(required, ""), seen, "the range of torch required"
        )


def _span(minors: tuple[str, ...]) -> str:
    if not minors:
        return "no torch release"
    known = torch.order(minors[-1]) <= torch.order(torch.releases()[-1])
    return f"torch {minors[0]} to {minors[-1]}" if known else f"torch {minors[0]} and later"


def unused_torch_libraries(package: Package, context: Context) -> Iterator[Observation]:
    """T03."""
    for path, elf in torch_libraries(package).items():
        unused = [name for name in USES if name in elf.needed and not _uses(elf, name)]
        if unused and not elf.unread:
            yield Observation(
                path, f"needs {', '.join(unused)}", "uses no symbol of it", "target_link_libraries"
            )


def _uses(elf: Elf, library: str) -> bool:
    if library in {s.library for s in elf.imports}:
        return True
    known = torch.shims()
    return any(
        USES[library].search(s.name) or (s.name in known and known[s.name].library == library)
        for s in elf.imports
    )


def operators_by_name(package: Package, context: Context) -> Iterator[Observation]:
    """T04. A dispatcher call hides the operator from the symbol table; its name stands in the strings."""
    oldest, claim = oldest_torch(package)
    known, last = torch.operators(), torch.releases()[-1]
    for path, elf in torch_libraries(package).items():
        if not oldest or not DISPATCHER_CALLS & {s.name for s in elf.imports}:
            continue
        unknown = [name for name in elf.operators if name not in known]
        newer = [
            name
            for name in elf.operators
            if name in known
            and known[name] != torch.releases()[0]
            and torch.order(known[name]) > torch.order(oldest)
        ]
        if newer:
            born = max((known[name] for name in newer), key=torch.order)
            yield Observation(
                path, claim, f"torch {born} is the first with aten::{listed(newer)}", f"torch >={born}"
            )
        if unknown:
            seen = f"names operators that torch {torch.releases()[0]} to {last} lacks: {listed(unknown)}"
            yield Observation(path, claim, seen, "the operator called", verified=False)


def unrequired_torch(package: Package, context: Context) -> Iterator[Observation]:
    """T05."""
    libraries = torch_libraries(package)
    if libraries and not package.claims.restricted(*TORCH_NAMES):
        name = "torch" if package.claims.format is Format.WHEEL else "pytorch"
        yield Observation(next(iter(libraries)), "no requirement on torch", "uses torch", name)


def cuda_torch_needed(package: Package, context: Context) -> Iterator[Observation]:
    """T06. A conda package labelled CUDA is C03's."""
    claims = package.claims
    labelled = claims.format is Format.CONDA and device_label(claims) == "cuda"
    if labelled or not accepts_torch_without_cuda(claims):
        return
    known = torch.shims()
    for path, elf in torch_libraries(package).items():
        needed = sorted(CUDA_TORCH_LIBRARIES & set(elf.needed))
        cuda = sorted(s.name for s in elf.hard_imports if s.name in known and "cuda" in known[s.name].library)
        signs = ([f"needs {', '.join(needed)}"] if needed else []) + (
            [f"uses {listed(cuda, 3)}"] if cuda else []
        )
        if signs:
            claim = described(claims.restricted(*TORCH_NAMES), "no requirement on torch")
            yield Observation(
                path, f"{claim}, with or without CUDA", "; ".join(signs), "target_link_libraries"
            )


RULES = {
    "T01": newer_shims,
    "T02": classic_abi,
    "T03": unused_torch_libraries,
    "T04": operators_by_name,
    "T05": unrequired_torch,
    "T06": cuda_torch_needed,
}
