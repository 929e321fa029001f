"""The two questions about libcuda: what to link against, and what the loader will map.

Linking wants the stub of the chosen root, running wants the driver of this machine. One answer for
both is what breaks tools: a stub on the loader's path fails with error 34, a driver's directory on
the linker's path drags the system's libc under a conda compiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from extforge.toolchain.catalogue import DRIVER_PLACES, MULTIARCH, WSL_DRIVER
from extforge.toolchain.examine import examine, is_stub
from extforge.toolchain.model import Finding, Found, Missing, Tried
from extforge.toolchain.system import System

SONAME = "libcuda.so.1"


def find_runtime_driver(system: System, machine: str) -> tuple[Found | Missing, tuple[Finding, ...]]:
    """Return the driver a process would run with; a stub is never an answer."""
    tried: list[Tried] = []
    usable: list[tuple[Path, str]] = []
    for directory, via in _runtime_places(system, machine):
        path = directory / SONAME
        fault = examine(path, "library", machine)
        if fault is None and is_stub(path):
            fault = Tried(str(path), "stub")
        if fault is None:
            usable.append((path, via))
        elif fault.reason != "absent":
            tried.append(fault)
    findings = (*_stub_findings(system), *_wsl_findings(system, usable))
    if not usable:
        return Missing(
            "libcuda_runtime", tuple(tried), "install NVIDIA's driver; without a GPU none is needed"
        ), findings
    path, via = next((offer for offer in usable if _on_wsl(system, offer[0])), usable[0])
    return Found(path, _driver_version(path), via, tried=tuple(tried)), findings


def _runtime_places(system: System, machine: str) -> Iterator[tuple[Path, str]]:
    for directory in system.directories("LD_LIBRARY_PATH"):
        yield directory, "env:LD_LIBRARY_PATH"
    for place in DRIVER_PLACES:
        yield system.at(place.format(multiarch=MULTIARCH.format(machine=machine))), "loader"


def _on_wsl(system: System, path: Path) -> bool:
    return path.is_relative_to(system.at(WSL_DRIVER))


def _driver_version(path: Path) -> str | None:
    """Return the version in the name of the file behind the link, where the driver carries one."""
    version = path.resolve().name.removeprefix("libcuda.so.")
    return version if "." in version and version[0].isdigit() else None


def link_with_driver(stub: Found | Missing, runtime: Found | Missing) -> Found | Missing:
    """Return the stub, else this machine's driver: either gives the linker the same names."""
    if isinstance(stub, Found) or isinstance(runtime, Missing):
        return stub
    return Found(runtime.path, runtime.version, "loader", tried=(*stub.tried, *runtime.tried))


def _stub_findings(system: System) -> Iterator[Finding]:
    for directory in system.directories("LD_LIBRARY_PATH"):
        stubs = [
            path for name in ("libcuda.so", SONAME) if (path := directory / name).exists() and is_stub(path)
        ]
        if stubs:
            text = f"LD_LIBRARY_PATH holds driver stubs, which fail at run time with error 34: {directory}"
            yield Finding("stub-on-loader-path", "warning", text, f"remove {directory} from LD_LIBRARY_PATH")


def _wsl_findings(system: System, usable: list[tuple[Path, str]]) -> Iterator[Finding]:
    others = [str(path) for path, _ in usable if not _on_wsl(system, path)]
    if others and len(others) < len(usable):
        text = "a Linux driver is installed inside WSL and shadows the one of Windows"
        fix = "remove the distribution's driver package (libnvidia-compute-*, libcuda1)"
        yield Finding("driver-inside-wsl", "warning", text, fix, tuple(others))
