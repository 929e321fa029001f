"""The structure: imports form a shallow acyclic graph, the two packages are strangers, pieces are small."""

import ast
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

pytest.importorskip("extforge", reason="extforge is not installed here")

import extforge
import torch_sparse_ops

PACKAGES = {package.__name__: Path(package.__path__[0]) for package in (extforge, torch_sparse_ops)}
#: Modules of nothing but data may be long.
TABLES = {"extforge.channel.catalogue"}
LONGEST_FUNCTION, LONGEST_FILE, DEEPEST = 70, 400, 12
#: The layers of extforge from the ground up: a module imports from its own layer or from a lower one.
LAYERS = (
    {"errors", "files"},
    {"channels", "toolchain", "virtual"},
    {"channel", "build", "install", "audit"},
    {"cli"},
    {"__main__"},
)


def sources(package: str) -> dict[str, ast.Module]:
    """Module name to syntax tree, of the package as it is installed."""
    trees = {}
    for file in sorted(PACKAGES[package].rglob("*.py")):
        parts = file.relative_to(PACKAGES[package].parent).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        trees[name] = ast.parse(file.read_text())
    return trees


def imported(nodes: Iterable[ast.AST], module: str) -> Iterator[str]:
    """Names of the modules that these nodes import, with the names that they take from them."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph(package: str) -> dict[str, set[str]]:
    """Module to the modules of the same package that are loaded with it."""
    trees = sources(package)
    edges: dict[str, set[str]] = {}
    for module, tree in trees.items():
        names = imported(tree.body, module)
        owners = (name if name in trees else name.rpartition(".")[0] for name in names)
        edges[module] = {owner for owner in owners if owner in trees} - {module}
    return edges


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_form_a_shallow_acyclic_graph(package: str) -> None:
    edges = graph(package)
    assert sum(map(len, edges.values())) > 3, "no import was found at all"
    depth: dict[str, int] = {}
    for module in TopologicalSorter(edges).static_order():  # raises CycleError
        depth[module] = 1 + max((depth[other] for other in edges[module]), default=0)
    assert max(depth.values()) <= DEEPEST, depth


def layer(module: str) -> int:
    """The number of a module's layer; that of the package itself is the ground."""
    area = module.partition(".")[2].partition(".")[0] or "errors"
    numbers = [number for number, areas in enumerate(LAYERS) if area in areas]
    assert len(numbers) == 1, f"{module} belongs to one layer; say in LAYERS to which"
    return numbers[0]


def test_no_module_imports_from_a_higher_layer() -> None:
    edges = graph("extforge")
    upward = [(m, other) for m, others in edges.items() for other in others if layer(other) > layer(m)]
    assert upward == []


@pytest.mark.parametrize(
    ("package", "stranger"),
    [("extforge", "torch"), ("extforge", "torch_sparse_ops"), ("torch_sparse_ops", "extforge")],
)
def test_strangers_do_not_import_each_other(package: str, stranger: str) -> None:
    importers = [
        module
        for module, tree in sources(package).items()
        if any(name.split(".")[0] == stranger for name in imported(ast.walk(tree), module))
    ]
    assert importers == []


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_and_files_are_short(package: str) -> None:
    long = []
    for module, tree in sources(package).items():
        length = max((node.end_lineno or 0 for node in tree.body), default=0)
        if length > LONGEST_FILE and module not in TABLES:
            long.append(f"{module}: {length} lines")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > LONGEST_FUNCTION:
                    long.append(f"{module}.{node.name}: {lines} lines")
    assert long == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_handler_catches_everything(package: str) -> None:
    broad = [
        f"{module}:{node.lineno}"
        for module, tree in sources(package).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in BROAD))
        and not isinstance(node.body[-1], ast.Raise)
    ]
    assert broad == []


BROAD = {"Exception", "BaseException"}
