"""What one resolution depends on: its arguments, the system it may see, the interpreter that runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from extforge.toolchain import interpreter as interpreters
from extforge.toolchain.elf import read_kind
from extforge.toolchain.interpreter import Interpreter
from extforge.toolchain.system import System


@dataclass(frozen=True)
class Query:
    """``running`` is this interpreter; ``native`` the machine whose programs can run here."""

    system: System
    running: Interpreter
    native: str
    prefix: str | None = None
    cuda: str | None = None
    target: str | None = None
    prefer: str = "prefix"
    overrides: Mapping[str, str] = field(default_factory=dict)
    allow_unsupported_compiler: bool = False
    generate_stub: bool = False


def interpreter_of(query: Query, prefix: Path) -> Interpreter:
    """Return the interpreter of ``prefix``: this one, or the one that is asked for its facts."""
    if prefix in (Path(query.running.prefix), Path(query.running.base_prefix)):
        return query.running
    python = prefix / "bin" / "python"
    answered, text = query.system.ask(python, "-I", interpreters.__file__)
    return interpreters.parse(text) if answered else query.running._replace(
        executable=str(python), prefix=str(prefix), includes=(), library_directories=(), site_packages=()
    )  # fmt: skip


def machine_of(executable: str, default: str) -> str:
    """Return the machine of a program by its ELF header, or ``default`` for what is no ELF file."""
    path = Path(executable)
    kind = read_kind(path) if path.is_file() else None
    return kind.machine if kind else default
