"""Which environment is meant: from the arguments, the package build, or the interpreter itself.

An environment need not be activated: the interpreter that runs knows where it lives.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from extforge.toolchain.model import Finding
from extforge.toolchain.query import Query


class Prefixes(NamedTuple):
    """``tools`` holds the programs and ``prefix`` the headers and libraries; equal but in package builds."""

    prefix: Path
    tools: Path
    via: str
    conda: bool
    findings: tuple[Finding, ...] = ()


def choose_prefixes(query: Query) -> Prefixes:
    """Return the prefix: argument, package build, the interpreter's own, then ``CONDA_PREFIX``."""
    for step in (_from_argument, _from_package_build, _from_interpreter, _from_activation):
        chosen = step(query)
        if chosen is not None:
            return chosen
    prefix = Path(query.running.prefix)
    return Prefixes(prefix, prefix, "interpreter", False)


def _is_conda(prefix: Path) -> bool:
    return (prefix / "conda-meta").is_dir()


def _from_argument(query: Query) -> Prefixes | None:
    if query.prefix is None:
        return None
    prefix = Path(query.prefix)
    findings: tuple[Finding, ...] = ()
    if not prefix.is_absolute() or not prefix.is_dir():
        text = f"the prefix {query.prefix!r} is no absolute path of a directory"
        findings = (Finding("prefix-unusable", "refused", text, "name an existing environment"),)
    return Prefixes(prefix, prefix, "argument", _is_conda(prefix), findings)


def _from_package_build(query: Query) -> Prefixes | None:
    """Under conda-build and rattler-build: tools from BUILD_PREFIX, headers and libraries from PREFIX."""
    if query.system.variable("CONDA_BUILD") != "1" or query.system.variable("BUILD_PREFIX") is None:
        return None  # the test of a built package has CONDA_BUILD, too, but one environment only
    values = [query.system.variable(name) for name in ("PREFIX", "BUILD_PREFIX")]
    findings = tuple(
        Finding(
            "prefix-unusable", "refused", f"{name} is empty or no absolute path in a package build: {value!r}"
        )
        for name, value in zip(("PREFIX", "BUILD_PREFIX"), values, strict=True)
        if not (value or "").startswith("/")
    )
    prefix, tools = (Path(value or query.running.prefix) for value in values)
    return Prefixes(prefix, tools, "env:PREFIX", True, findings)


def _from_interpreter(query: Query) -> Prefixes | None:
    """A venv counts for itself, on a conda Python for the environment that holds its compilers."""
    for prefix in dict.fromkeys((query.running.prefix, query.running.base_prefix)):
        if _is_conda(Path(prefix)):
            return Prefixes(
                Path(prefix), Path(prefix), "interpreter", True, _activation_findings(query, prefix)
            )
    return None


def _from_activation(query: Query) -> Prefixes | None:
    prefix = query.system.variable("CONDA_PREFIX")
    if prefix is None or query.running.prefix != query.running.base_prefix or not _is_conda(Path(prefix)):
        return None
    return Prefixes(Path(prefix), Path(prefix), "env:CONDA_PREFIX", True)


def _activation_findings(query: Query, prefix: str) -> tuple[Finding, ...]:
    active = query.system.variable("CONDA_PREFIX")
    if active is None or Path(active).resolve() == Path(prefix).resolve():
        return ()
    text = f"{active} is activated, but the interpreter lives in {prefix}, which is used"
    return (Finding("other-prefix-active", "warning", text, f"conda activate {prefix}"),)
