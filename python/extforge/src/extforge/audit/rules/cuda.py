"""Does the GPU code, and the CUDA that it needs, match what the package promises?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from extforge.audit.binaries import Elf
from extforge.audit.model import Claims, Context, Format, Observation, Package
from extforge.audit.requirements import Requirement
from extforge.audit.rules.architectures import described, parse_architectures
from extforge.audit.rules.labels import (
    CUDA_BUILD,
    CUDA_TORCH_LIBRARIES,
    TORCH_NAMES,
    device_label,
    listed,
    torch_libraries,
)
from extforge.audit.rules.labels import described as requirements_described
from extforge.audit.tables.libraries import CUDA_MAJOR, CUDA_RUNTIME, known_library, plain_name

MAJORS = range(9, 20)
ARCHITECTURE_KEYS = re.compile(r"(cf_)?(torch_)?cuda_?arch(s|_list|itectures)?|cudaarchs", re.IGNORECASE)
CUDA_LABEL = re.compile(r"cuda_?(\d{2})\d")
CUDA_WHEEL = re.compile(r"nvidia-[\w-]+-cu(\d+)|nvidia-cuda-\w+|cuda-toolkit")


def other_cuda_major(package: Package, context: Context) -> Iterator[Observation]:
    """C01. Requirement, build string and the torch build required must each fit."""
    claims = package.claims
    allowed, words = allowed_majors(claims)
    stated = [(allowed, words, "cuda-version")] if allowed is not None else []
    if claims.format is Format.CONDA:
        builds = [("build.string", claims.build, f"build {claims.build}")]
        builds += [("pytorch", r.build, r.text) for r in claims.restricted(*TORCH_NAMES)]
        stated += [
            (frozenset({int(m[1])}), text, line)
            for line, build, text in builds
            if (m := CUDA_LABEL.match(build))
        ]
    for path, soname, major in _tied(package):
        for majors, text, line in stated:
            if major not in majors:
                yield Observation(path, text, f"needs {soname}, of CUDA {major}", line)


def undeclared_cuda_major(package: Package, context: Context) -> Iterator[Observation]:
    """C02. One observation a package: the cure is one line."""
    allowed, _ = allowed_majors(package.claims)
    tied = [(path, soname) for path, soname, _ in _tied(package) if CUDA_RUNTIME.fullmatch(soname)]
    if allowed is None and tied:
        change = (
            "cuda-version" if package.claims.format is Format.CONDA else "Requires-Dist: nvidia-cuda-runtime"
        )
        yield Observation(tied[0][0], "any CUDA", f"needs {tied[0][1]} (in {len(tied)} files)", change)


def allowed_majors(claims: Claims) -> tuple[frozenset[int] | None, str]:
    """CUDA majors that the requirements allow, and their words; ``None`` when they speak of none."""
    if claims.format is Format.CONDA:
        required = claims.restricted("cuda-version")
        if not required:
            return None, ""
        return frozenset(m for m in MAJORS if _allows_major(required, m)), requirements_described(
            required, ""
        )
    label = re.search(r"(?:\+|-)cu(\d{2})", f"{claims.name}+{claims.version.partition('+')[2]}")
    if label:
        return frozenset({int(label[1])}), f"label {label[0]}"
    required = tuple(r for r in claims.requirements if CUDA_WHEEL.fullmatch(r.name))
    majors = {m for r in required for m in _wheel_majors(r)}
    return (frozenset(majors) if required else None), requirements_described(required, "")


def _allows_major(required: tuple[Requirement, ...], major: int) -> bool:
    return any(all(r.allows(f"{major}.{minor}") for r in required) for minor in range(15))


def _wheel_majors(requirement: Requirement) -> frozenset[int]:
    match = CUDA_WHEEL.fullmatch(requirement.name)
    if match and match[1]:
        return frozenset({int(match[1])})
    return frozenset(m for m in MAJORS if _allows_major((requirement,), m))


def _tied(package: Package) -> Iterator[tuple[str, str, int]]:
    for path, elf in package.elves.items():
        for soname in map(plain_name, elf.needed):
            if match := CUDA_MAJOR.fullmatch(soname):
                yield path, soname, int(match[1])


def cpu_torch_accepted(package: Package, context: Context) -> Iterator[Observation]:
    """C03. Conda only: a wheel's requirements cannot tell torch's builds apart."""
    claims = package.claims
    cuda = {path: elf for path, elf in torch_libraries(package).items() if _uses_cuda(elf)}
    if claims.format is Format.WHEEL or not (
        cuda or (torch_libraries(package) and device_label(claims) == "cuda")
    ):
        return
    where = next(iter(cuda or torch_libraries(package)))
    restricted = claims.restricted(*TORCH_NAMES)
    if not any(CUDA_BUILD.search(r.build) for r in restricted):
        accepted = requirements_described(restricted, "no requirement on torch")
        yield Observation(where, accepted, "CUDA code for torch", "pytorch * [build=cuda*]")
    if not claims.restricted("__cuda"):
        yield Observation(where, "no __cuda requirement", "CUDA code for torch", "__cuda")


def _uses_cuda(elf: Elf) -> bool:
    runtime = any(CUDA_RUNTIME.fullmatch(n) or n in CUDA_TORCH_LIBRARIES for n in elf.needed)
    return runtime or elf.holds_cuda_runtime or bool(elf.device_images)


def own_device_code(package: Package) -> dict[str, Elf]:
    """Libraries with GPU code, apart from NVIDIA's own that a package may carry."""
    return {
        path: elf
        for path, elf in package.elves.items()
        if elf.device_images and known_library(path.rpartition("/")[2]) is None
    }


def missing_architectures(package: Package, context: Context) -> Iterator[Observation]:
    """C04."""
    text, source = declared_architectures(package.claims, context)
    if not text:
        return
    declared = parse_architectures(text)
    for path, elf in own_device_code(package).items():
        missing = declared - set(elf.device_images)
        if missing:
            seen = f"lacks {described(missing)}; has {described(frozenset(elf.device_images))}"
            yield Observation(path, f"{source}: {text}", seen, "CMAKE_CUDA_ARCHITECTURES")


def declared_architectures(claims: Claims, context: Context) -> tuple[str, str]:
    """The list of architectures and who states it; empty when nobody does."""
    if context.architectures:
        return context.architectures, "declared"
    stated = [(k, v) for k, v in claims.variant.items() if ARCHITECTURE_KEYS.fullmatch(k) and v != "None"]
    return (stated[0][1], f"variant {stated[0][0]}") if stated else ("", "")


def no_forward_cover(package: Package, context: Context) -> Iterator[Observation]:
    """C05. PTX for ``9.0a`` or ``10.0f`` runs on no later architecture."""
    for path, elf in own_device_code(package).items():
        if not any(i.kind == "ptx" and i.architecture[-1].isdigit() for i in elf.device_images):
            seen = described(frozenset(elf.device_images))
            yield Observation(path, "runs on later GPUs", f"no PTX; has {seen}", "CMAKE_CUDA_ARCHITECTURES")


def no_device_code(package: Package, context: Context) -> Iterator[Observation]:
    """C06."""
    label = device_label(package.claims)
    if label == "cuda" and package.elves and not any(e.device_images for e in package.elves.values()):
        verified = not any(elf.unread for elf in package.elves.values())
        claim = package.claims.build or package.claims.version
        seen = f"no GPU code in {listed(sorted(package.elves), 3)}"
        yield Observation(
            next(iter(package.elves)), f"a CUDA build ({claim})", seen, "the .cu sources", verified
        )


def cuda_in_cpu_build(package: Package, context: Context) -> Iterator[Observation]:
    """C07."""
    if device_label(package.claims) != "cpu":
        return
    for path, elf in package.elves.items():
        libraries = [
            n for n in elf.needed if CUDA_RUNTIME.fullmatch(plain_name(n)) or n in CUDA_TORCH_LIBRARIES
        ]
        signs = [f"needs {name}" for name in libraries]
        signs += ["holds a CUDA runtime"] if elf.holds_cuda_runtime and not signs else []
        signs += [f"GPU code: {described(frozenset(elf.device_images))}"] if elf.device_images else []
        if signs:
            yield Observation(
                path, f"a CPU build ({package.claims.build})", "; ".join(signs), "the CPU variant"
            )


def second_opinion_differs(package: Package, context: Context) -> Iterator[Observation]:
    """C08. Without cuobjdump's opinion the GPU code counts as seen once, which is not verified."""
    for path, elf in own_device_code(package).items():
        own = {(i.kind, i.architecture.rstrip("f")) for i in elf.device_images}
        opinion = package.second_opinions.get(path)
        if opinion is None or opinion.problem:
            reason = opinion.problem if opinion else "no cuobjdump on PATH; give --cuobjdump"
            yield Observation(
                path, described(frozenset(elf.device_images)), reason, "cuobjdump", verified=False
            )
        elif {tuple(i) for i in opinion.images} != own:
            seen = f"cuobjdump sees {described(opinion.images)}"
            yield Observation(path, f"headers state {described(frozenset(elf.device_images))}", seen, path)


RULES = {
    "C01": other_cuda_major,
    "C02": undeclared_cuda_major,
    "C03": cpu_torch_accepted,
    "C04": missing_architectures,
    "C05": no_forward_cover,
    "C06": no_device_code,
    "C07": cuda_in_cpu_build,
    "C08": second_opinion_differs,
}
