"""The package's own imports: no cycle, and nothing heavy before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.resources import files
from pathlib import Path

PACKAGE = Path(str(files("extforge.toolchain")))
HEAVY = ("rich", "elftools", "torch", "cuda.pathfinder", "jsonschema", "rattler_build", "asyncio")


def module_imports(path: Path) -> set[str]:
    """Return the toolchain modules that a file imports when it is loaded; not those inside functions."""
    tree = ast.parse(path.read_text())
    imported = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module]
    names = {node.module for node in imported if node.module.startswith("extforge.toolchain")}
    for node in imported:
        if node.module == "extforge.toolchain":
            names |= {f"extforge.toolchain.{alias.name}" for alias in node.names}
    return names - {"extforge.toolchain"}


def test_the_import_graph_has_no_cycle():
    graph = {f"extforge.toolchain.{path.stem}": module_imports(path) for path in PACKAGE.glob("[!_]*.py")}
    assert len(list(TopologicalSorter(graph).static_order())) >= len(graph)


def test_resolving_imports_nothing_heavy():
    script = (
        "import sys; from extforge.toolchain import resolve; resolve().to_dict();"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
