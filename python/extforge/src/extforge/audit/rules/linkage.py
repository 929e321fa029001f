"""Who provides the libraries that the package needs, and what does it carry or require without need?"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from extforge.audit.model import Context, Format, Observation, Package, Provider
from extforge.audit.rules.labels import listed, uses_torch
from extforge.audit.tables.libraries import (
    CUDA_RUNTIME,
    DRIVER,
    KNOWN,
    Known,
    is_system,
    known_library,
    plain_name,
    usual_providers,
)

PLATFORM_SUFFIX = re.compile(r"_(linux|osx|win)-\w+$")
# Requirements that bring no library to link with, whatever else they bring.
NO_LIBRARIES = frozenset({"python", "python_abi", "cuda-version", "_python_abi3_support"})
# Packages that are required for more than the libraries of the table.
MORE_THAN_LIBRARIES = frozenset({"pytorch", "libtorch", "torch", "python", "_openmp_mutex", "cuda-toolkit"})


def needed_libraries(package: Package) -> dict[str, list[str]]:
    """SONAME -> files that need it, for what the package itself does not hold."""
    own = {posixpath.basename(entry.path) for entry in package.payload}
    own |= {elf.soname for elf in package.elves.values()}
    users: dict[str, list[str]] = {}
    for path, elf in package.elves.items():
        for soname in elf.needed:
            if soname not in own and not is_system(soname, package.claims.format):
                users.setdefault(soname, []).append(path)
    return users


def unprovided_libraries(package: Package, context: Context) -> Iterator[Observation]:
    """L01. What a prefix or channel shows goes before what packages usually hold."""
    if context.problem:
        root = package.claims.metadata_root
        yield Observation(
            root, "requirements that can be solved", context.problem, "--channel", verified=False
        )
    for soname, users in needed_libraries(package).items():
        if DRIVER.fullmatch(soname):
            continue
        if context.providers is None:
            seen, verified = _judge_by_table(package, context, soname)
        else:
            seen, verified = _judge_by_providers(package, context.providers, soname)
        if seen:
            more = f" (and {len(users) - 1} more files)" if len(users) > 1 else ""
            change = "requirements.run" if package.claims.format is Format.CONDA else "Requires-Dist"
            yield Observation(users[0], f"needs {soname}{more}", seen, change, verified)


def _judge_by_table(package: Package, context: Context, soname: str) -> tuple[str, bool]:
    """What is wrong (empty when nothing is), and whether that is certain."""
    required = {r.name for r in package.claims.requirements}
    if any(_holds(c, soname) and c.claims.name in required for c in context.companions):
        return "", True
    known = known_library(soname)
    if known is not None:
        usual = usual_providers(known, package.claims.format)
        names = " or ".join(usual) or "no package"
        return ("", True) if required & set(usual) else (f"{names} is not required", True)
    candidates = sorted(n for n in required - NO_LIBRARIES if not n.startswith("__"))
    if not candidates:
        return "no requirement could provide it", True
    reason = context.problem or "give --prefix or --channel to look into them"
    return f"unknown whether one of {listed(candidates)} provides it: {reason}", False


def _holds(package: Package, soname: str) -> bool:
    return any(posixpath.basename(entry.path) == soname for entry in package.payload)


def _judge_by_providers(package: Package, providers: tuple[Provider, ...], soname: str) -> tuple[str, bool]:
    holders = _holders(providers, soname)
    if not holders:
        return "no package of the environment provides it", True
    reachable = _closure(package, providers)
    if any(h in reachable for h in holders):
        return "", True
    return f"provided by {listed(holders)}, which no requirement brings", True


def _holders(providers: tuple[Provider, ...], soname: str) -> list[str]:
    return sorted(p.name for p in providers if any(posixpath.basename(f) == soname for f in p.files))


def _closure(package: Package, providers: tuple[Provider, ...]) -> set[str]:
    requires = {p.name: p.requires for p in providers}
    reached: set[str] = set()
    waiting = [r.name for r in package.claims.requirements]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += requires.get(name, frozenset())
    return reached


def indirectly_provided_libraries(package: Package, context: Context) -> Iterator[Observation]:
    """L02. Wheels of torch bring CUDA's on purpose, so only conda packages are asked to name them."""
    if context.providers is None or package.claims.format is Format.WHEEL:
        return
    required = {r.name for r in package.claims.requirements}
    reachable = _closure(package, context.providers)
    for soname, users in needed_libraries(package).items():
        holders = _holders(context.providers, soname)
        direct = any(h in required or PLATFORM_SUFFIX.sub("", h) in required for h in holders)
        if holders and not direct and any(h in reachable for h in holders):
            yield Observation(
                users[0],
                f"needs {soname}",
                f"only {listed(holders)} provides it, indirectly",
                "requirements.run",
            )


def unused_requirements(package: Package, context: Context) -> Iterator[Observation]:
    """L03. Wheels name requirements for other reasons; a conda package's come from run exports."""
    claims = package.claims
    if claims.format is Format.WHEEL or not package.elves:
        return
    needed = {plain_name(soname) for elf in package.elves.values() for soname in elf.needed}
    for requirement in claims.requirements:
        rows = [
            k for k in KNOWN if requirement.name in k.conda and requirement.name not in MORE_THAN_LIBRARIES
        ]
        if rows and not any(row.soname.fullmatch(n) for row in rows for n in needed):
            nouns = listed([row.noun for row in rows])
            yield Observation(
                "info/index.json", f"requires {requirement.text}", f"nothing needs {nouns}", requirement.name
            )


def needs_the_driver(package: Package, context: Context) -> Iterator[Observation]:
    """L04. A library that nothing else loads may be one that is opened on demand, when there is a GPU."""
    loaded = {soname for elf in package.elves.values() for soname in elf.needed}
    for path, elf in package.elves.items():
        module = any(name.startswith("PyInit_") for name in elf.exports)
        certain = module or uses_torch(elf) or bool(loaded & {elf.soname, posixpath.basename(path)})
        for soname in elf.needed:
            if DRIVER.fullmatch(soname) and soname.startswith("libcuda."):
                seen = f"needs {soname}"
                yield Observation(path, "loads on every machine", seen, "target_link_libraries", certain)


def bundled_libraries(package: Package, context: Context) -> Iterator[Observation]:
    """L05. A copy is recognised by its name, its SONAME, auditwheel's renaming of either, or its symbols."""
    claims = package.claims
    required = {r.name for r in claims.requirements}
    for path, elf in package.elves.items():
        for known in KNOWN:
            providers = usual_providers(known, claims.format)
            by = sorted(required & set(providers))
            sign = _sign(known, path, elf.soname, elf.exports)
            if known.bundling and by and claims.name not in providers and sign:
                yield Observation(path, f"{by[0]} brings {known.noun}", f"a copy of it: {sign}", f"{path}")


def _sign(known: Known, path: str, soname: str, exports: frozenset[str]) -> str:
    for name in (posixpath.basename(path), soname):
        if known.soname.fullmatch(plain_name(name)):
            return f"named {name}"
    return f"exports {known.marker}" if known.marker in exports else ""


def two_cuda_runtimes(package: Package, context: Context) -> Iterator[Observation]:
    """L06. A runtime inside a library counts beside a shared one: CUDA's compilers link it so by default."""
    users: dict[str, list[str]] = {}
    for path, elf in package.elves.items():
        for soname in elf.needed:
            if CUDA_RUNTIME.fullmatch(plain_name(soname)):
                users.setdefault(soname, []).append(path)
    static = static_runtimes(package) if users else []
    if len(users) + bool(static) > 1:
        seen = [f"{soname} needed by {listed(paths, 2)}" for soname, paths in sorted(users.items())]
        seen += [f"a copy inside {listed(static, 2)}"] if static else []
        where = next(iter(users.values()))[0]
        yield Observation(where, "one CUDA runtime a process", "; ".join(seen), "the libcudart linked")


def static_runtimes(package: Package) -> list[str]:
    """Libraries with a CUDA runtime inside, apart from libcudart itself and from others of NVIDIA's."""
    return [
        path
        for path, elf in package.elves.items()
        if elf.holds_cuda_runtime
        and not any(map(known_library, (posixpath.basename(path), elf.soname)))
    ]


RULES = {
    "L01": unprovided_libraries,
    "L02": indirectly_provided_libraries,
    "L03": unused_requirements,
    "L04": needs_the_driver,
    "L05": bundled_libraries,
    "L06": two_cuda_runtimes,
}
