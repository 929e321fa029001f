"""What cuda-pathfinder would answer, beside what we answer.

It runs in a child process with the environment under study, because it remembers every answer for the
life of its process and reads nothing but that process's environment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from extforge.toolchain.model import Finding, Found, Toolchain

# Part -> an expression that gives pathfinder's answer as text or None.
QUESTIONS = {
    "nvcc": "pathfinder.find_nvidia_binary_utility('nvcc')",
    "cuobjdump": "pathfinder.find_nvidia_binary_utility('cuobjdump')",
    "nvdisasm": "pathfinder.find_nvidia_binary_utility('nvdisasm')",
    "cuda_include": "pathfinder.find_nvidia_header_directory('cudart')",
}
SCRIPT = "import json; from cuda import pathfinder; print(json.dumps({%s}))"


def _ask_pathfinder(toolchain: Toolchain) -> dict[str, str | None] | None:
    """Return part -> path, or None where the interpreter has no cuda-pathfinder."""
    expressions = ", ".join(f"{name!r}: {expression}" for name, expression in QUESTIONS.items())
    answered, text = toolchain.system.ask(toolchain.interpreter.executable, "-c", SCRIPT % expressions)
    answers: dict[str, str | None] | None = json.loads(text.splitlines()[-1]) if answered else None
    return answers


def cross_check(toolchain: Toolchain) -> Iterator[Finding]:
    """Yield a note for every part that programs using cuda-pathfinder will take from elsewhere."""
    for name, answer in (_ask_pathfinder(toolchain) or {}).items():
        part = toolchain.get(name)
        ours = part.path.resolve() if isinstance(part, Found) else None
        if answer is not None and Path(answer).resolve() != ours:
            text = f"users of cuda-pathfinder (numba, cupy) take {name} from {answer}, not {ours or 'any'}"
            reason = f"the one root is {toolchain.root.path}" if toolchain.root else "there is no root"
            yield Finding("pathfinder-differs", "note", text, "", (reason,))
