"""Plan the packages of CUDA: NVIDIA's wheels, a torch that links their libraries, what ties them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from extforge.channel import catalogue_cuda
from extforge.channel.archive import PlannedPackage
from extforge.channel.assembled import plan_assembled
from extforge.channel.driver import plan_driver
from extforge.channel.repack import match_spec, plan, requirements
from extforge.channel.wheels import Pin, Wheel, fetch_wheels

#: Packages whose libraries link others: those of NVIDIA, and torch's.
LINKING = {library.name for library in catalogue_cuda.LIBRARIES} | {catalogue_cuda.LIBTORCH.name}


def plan_cuda(cache: Path, names: Mapping[str, str]) -> list[PlannedPackage]:
    """Return the packages of CUDA; wheels that ``cache`` lacks are fetched.

    ``names`` maps projects to conda packages.
    """
    rows = catalogue_cuda.ROWS
    toolkit = Pin(catalogue_cuda.TOOLKIT_PROJECT, catalogue_cuda.TOOLKIT)
    wheels = fetch_wheels([toolkit, *(Pin(row.wheel_project, row.version) for row in rows)], cache)
    repacked = []
    for row in rows:
        wheel = wheels[Pin(row.wheel_project, row.version)]
        linked = linked_libraries(wheel, wheels[toolkit]) if row.name in LINKING else ()
        repacked.append(plan(row._replace(depends=(*row.depends, *linked)), wheel, names))
    runtime = wheels[Pin(catalogue_cuda.RUNTIME_PROJECT, catalogue_cuda.CUDART)]
    return [plan_driver(runtime), *map(plan_assembled, catalogue_cuda.ASSEMBLED), *repacked]


def linked_libraries(wheel: Wheel, toolkit: Wheel) -> tuple[str, ...]:
    """Return NVIDIA's libraries that ``wheel`` requires, as match specs.

    ``toolkit`` is the wheel whose extras stand for some of them.
    """
    return tuple(dict.fromkeys(_linked_libraries(wheel, toolkit)))


def _linked_libraries(wheel: Wheel, toolkit: Wheel, *extras: str) -> Iterator[str]:
    for requirement in requirements(wheel, *extras):
        project = canonicalize_name(requirement.name)
        if project == catalogue_cuda.TOOLKIT_PROJECT:
            yield from _linked_libraries(toolkit, toolkit, *sorted(requirement.extras))
        elif project in catalogue_cuda.PACKAGES:
            yield match_spec(catalogue_cuda.PACKAGES[project], requirement.specifier)
