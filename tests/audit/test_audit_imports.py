"""Who may import whom inside the audit; that no import goes round is tested for all of extforge."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = "extforge.audit"
SPEC = find_spec(PACKAGE)
assert SPEC is not None
assert SPEC.origin is not None
ROOT = Path(SPEC.origin).parent


def module_name(path: Path) -> str:
    parts = [PACKAGE, *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> set[str]:
    """Modules that a file imports at its top."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {part for part in parts if part in MODULES} or {node.module}
    return names


MODULES = {module_name(path) for path in ROOT.rglob("*.py")}
IMPORTS = {module_name(path): imported(path) for path in ROOT.rglob("*.py")}
RULES = sorted(name for name in MODULES if name.startswith(f"{PACKAGE}.rules."))


@pytest.mark.parametrize("rule", RULES)
def test_rules_neither_read_nor_print(rule: str) -> None:
    doors = {"pathlib", "os", "io", "subprocess", "tempfile", "shutil", f"{PACKAGE}.printing"}
    reading = {name for name in IMPORTS[rule] if name.startswith(f"{PACKAGE}.reading")}
    assert (IMPORTS[rule] & doors) | reading == set()


@pytest.mark.parametrize("name", sorted(n for n in MODULES if n.startswith(f"{PACKAGE}.reading")))
def test_readers_do_not_judge(name: str) -> None:
    assert {n for n in IMPORTS[name] if n.startswith((f"{PACKAGE}.rules", f"{PACKAGE}.checks"))} == set()
