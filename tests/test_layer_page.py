"""docs/layer.md: every test that it names exists, and its code runs."""

import ast
import re
from pathlib import Path
from typing import Any

import torch
from torch_sparse_ops.losses import LinearCrossEntropyLoss
from torch_sparse_ops.nn import FixedFanInLinear

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "layer.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE)
    missing = [f"{file}::{name}" for file, name in named if name not in find_functions(file)]
    assert len(named) > 40
    assert missing == []


def find_functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_feature_has_a_test() -> None:
    (table,) = re.findall(r"\| feature \| tested in \|\n\|---\|---\|\n(.*)", PAGE, re.DOTALL)
    rows = [line for line in table.splitlines() if line]
    assert len(rows) > 30
    assert [row for row in rows if "::test_" not in row] == []


def test_the_code_of_the_page_runs() -> None:
    _, training, conversion = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    loss = LinearCrossEntropyLoss(FixedFanInLinear(64, 50, 8))
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    batches = [(torch.randn(5, 64), torch.arange(5))] * 3
    names: dict[str, Any] = {"model": loss, "loss": loss, "batches": batches, "optimizer": optimizer}
    exec(training, names)
    assert names["rigl"].calls == 3
    part = torch.nn.ModuleDict({"output": torch.nn.Linear(64, 50)})
    model = torch.nn.ModuleDict({"decoder": torch.nn.Sequential(part)})
    names = {"model": model, "matrix": torch.randn(6, 64).relu().to_sparse_csr()}
    exec(conversion, names)
    assert type(part.get_submodule("output")) is torch.nn.Linear
    assert names["layer"].fan_in == 32
    assert names["matrix"].values().shape == (6 * 32,)
