"""Choosing the one CUDA toolkit root.

Candidates come from a tuple of steps in order of authority. The first that holds any part of a
toolkit is taken, and all the rest is reported as overruled: a root that lacks nvcc is not completed
from another, because headers of one toolkit under the compiler of another fail far from the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from extforge.toolchain.catalogue import SYSTEM_ROOT, SYSTEM_ROOTS
from extforge.toolchain.kinds import Layouts, open_root, with_version
from extforge.toolchain.model import Finding, Root, Tried
from extforge.toolchain.prefixes import Prefixes
from extforge.toolchain.query import Query


class Candidate(NamedTuple):
    """``explicit`` ones must work; a failure is refused and never passed over."""

    value: str
    via: str
    explicit: bool = False


class _Choice(NamedTuple):
    root: Root | None
    tried: tuple[Tried, ...]
    findings: tuple[Finding, ...]


class Search(NamedTuple):
    """The query, the prefixes chosen for it, and how toolkits are laid out here."""

    query: Query
    prefixes: Prefixes
    layouts: Layouts


def _from_argument(search: Search) -> Iterator[Candidate]:
    if search.query.cuda is not None:
        yield Candidate(search.query.cuda, "argument", explicit=True)


def _from_own_variable(search: Search) -> Iterator[Candidate]:
    value = search.query.system.variable("EXTFORGE_CUDA_ROOT")
    if value:
        yield Candidate(value, "env:EXTFORGE_CUDA_ROOT", explicit=True)


def _from_conda_prefix(search: Search) -> Iterator[Candidate]:
    if search.prefixes.conda:
        yield Candidate(str(search.prefixes.prefix), "conda")


def _from_wheels(search: Search) -> Iterator[Candidate]:
    """Unified wheels, newest first, then split ones; those of torch's own CUDA major lead."""
    found: list[Path] = []
    for site in map(Path, search.layouts.interpreter.site_packages):
        found += sorted(site.glob("nvidia/cu[0-9]*"), reverse=True)
        found += [site / "nvidia"] if any(site.glob("nvidia/cuda_*")) else []
    major = (search.layouts.torch_cuda or "").split(".")[0]
    wanted = {"cu" + major, "nvidia" if major == "12" else ""}
    for path in sorted(found, key=lambda path: path.name not in wanted):
        yield Candidate(str(path), "wheel")


def _from_variables(search: Search) -> Iterator[Candidate]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        value = search.query.system.variable(name)
        if value:
            yield Candidate(value, f"env:{name}")


def _from_path(search: Search) -> Iterator[Candidate]:
    """Every nvcc on PATH is asked where its toolkit is: links and wrapper scripts mislead."""
    for nvcc in search.query.system.on_path("nvcc"):
        yield Candidate(str(nvcc), "nvcc")


def _from_system(search: Search) -> Iterator[Candidate]:
    """The unversioned directory, or the versioned one when there is exactly one."""
    system = search.query.system
    if system.at(SYSTEM_ROOT).exists():
        yield Candidate(str(system.at(SYSTEM_ROOT)), "default")
    versioned = sorted(system.sysroot.glob(SYSTEM_ROOTS.lstrip("/")))
    if len(versioned) == 1:
        yield Candidate(str(versioned[0]), "default")


def _from_triton(search: Search) -> Iterator[Candidate]:
    for site in map(Path, search.layouts.interpreter.site_packages):
        if (site / "triton/backends/nvidia").is_dir():
            yield Candidate(str(site / "triton/backends/nvidia"), "bundled")


Step = Callable[[Search], Iterator[Candidate]]
EXPLICIT: tuple[Step, ...] = (_from_argument, _from_own_variable)
ENVIRONMENT: tuple[Step, ...] = (_from_conda_prefix, _from_wheels)
# A package build must not borrow from the machine that it happens to run on.
STEPS: dict[str, tuple[Step, ...]] = {
    "package build": (*EXPLICIT, _from_conda_prefix),
    "prefix": (*EXPLICIT, *ENVIRONMENT, _from_variables, _from_path, _from_system, _from_triton),
    "env": (*EXPLICIT, _from_variables, _from_path, *ENVIRONMENT, _from_system, _from_triton),
}


def choose_root(search: Search) -> _Choice:
    """Return the first candidate that is a toolkit, with the fate of all the others."""
    chosen: Root | None = None
    tried: list[Tried] = []
    findings: list[Finding] = []
    seen: set[Path] = set()
    steps = STEPS["package build" if search.prefixes.via == "env:PREFIX" else search.query.prefer]
    for candidate in (candidate for step in steps for candidate in step(search)):
        opened = open_root(search.layouts, candidate.value, candidate.via)
        if isinstance(opened, Tried):
            tried.append(opened)
            findings += _report_unusable(candidate, opened, chosen)
            continue
        if opened.path.resolve() in seen:
            continue
        seen.add(opened.path.resolve())
        opened = with_version(search.layouts, opened)
        if chosen is None:
            chosen = opened
        else:
            tried.append(Tried(candidate.value, "shadowed", f"via {candidate.via}: {_describe(opened)}"))
            findings += _report_overruled(candidate, opened, chosen)
    return _Choice(chosen, tuple(tried), tuple(findings))


def _describe(root: Root) -> str:
    return f"{root.kind} {root.version or 'of unknown version'}"


def _report_unusable(candidate: Candidate, fault: Tried, chosen: Root | None) -> Iterator[Finding]:
    """Refuse what was named explicitly; a variable that was overruled anyway is only a warning."""
    named = candidate.explicit or candidate.via.startswith("env:")
    if not named:
        return
    level = "refused" if candidate.explicit or chosen is None else "warning"
    name = candidate.via.removeprefix("env:")
    variable = name if name != candidate.via else "--cuda"
    text = f"{variable} cannot be used: {fault}"
    yield Finding(
        "cuda-root-unusable", level, text, f"let {variable} name one toolkit directory, or unset it"
    )


def _report_overruled(candidate: Candidate, opened: Root, chosen: Root) -> Iterator[Finding]:
    """Overruling a variable that somebody set deserves a warning, the rest a note."""
    if candidate.via in ("default", "bundled"):
        return
    text = (
        f"{candidate.value} ({_describe(opened)}, via {candidate.via}) is overruled by "
        f"{chosen.path} ({_describe(chosen)}, via {chosen.via})"
    )
    level = "warning" if candidate.via.startswith("env:") else "note"
    yield Finding(
        "cuda-root-overruled", level, text, f"to use it instead: export EXTFORGE_CUDA_ROOT={opened.path}"
    )
