"""The linter and the type checker find nothing."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("tool", [("ruff", "check"), ("mypy",)], ids=lambda words: words[0])
def test_nothing_is_found(tool: tuple[str, ...], source_root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", *tool, "--cache-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=source_root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
