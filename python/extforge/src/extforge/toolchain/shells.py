"""Setting and restoring environment variables in the words of a shell.

What the variables were before is kept in one variable, ``EXTFORGE_BACKUP``, as JSON (null for unset), so
that undoing needs nothing but the environment and works the same in every shell.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import NamedTuple

from extforge.errors import BadInputError

BACKUP = "EXTFORGE_BACKUP"
Changes = Mapping[str, str | None]  # None removes the variable


class _Shell(NamedTuple):
    assign: Callable[[str, str], str]
    remove: Callable[[str], str]


def _quote_fish(value: str) -> str:
    return "'" + re.sub(r"(['\\])", r"\\\1", value) + "'"


def _quote_csh(value: str) -> str:
    return "'" + value.replace("'", "'\\''").replace("!", "\\!").replace("\n", "\\\n") + "'"


def _quote_powershell(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


POSIX = _Shell(lambda name, value: f"export {name}={shlex.quote(value)}", lambda name: f"unset {name}")
SHELLS: Mapping[str, _Shell] = {
    "bash": POSIX,
    "zsh": POSIX,
    "fish": _Shell(lambda name, value: f"set -gx {name} {_quote_fish(value)}", lambda name: f"set -e {name}"),
    "csh": _Shell(
        lambda name, value: f"setenv {name} {_quote_csh(value)};", lambda name: f"unsetenv {name};"
    ),
    "powershell": _Shell(
        lambda name, value: f"$Env:{name} = {_quote_powershell(value)}",
        lambda name: f"Remove-Item -ErrorAction Ignore Env:{name}",
    ),
}
SHELL_NAMES = (*SHELLS, "json")


def apply_changes(variables: Mapping[str, str], environ: Mapping[str, str]) -> Changes:
    """Return the changes that set ``variables``, put back what an earlier call had set, and remember both."""
    before = _read_backup(environ)
    restored: Changes = {name: value for name, value in before.items() if name not in variables}
    backup = {name: before.get(name, environ.get(name)) for name in variables}
    return {**restored, **variables, BACKUP: json.dumps(backup)}


def undo_changes(environ: Mapping[str, str]) -> Changes:
    """Return the changes that restore the environment before the first :func:`apply_changes`."""
    before = _read_backup(environ)
    return {**before, BACKUP: None} if BACKUP in environ else {}


def _read_backup(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return what the variables were; raises :class:`BadInputError` when somebody else wrote the backup."""
    text = environ.get(BACKUP) or "{}"
    try:
        backup = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInputError(f"{BACKUP} is no JSON ({error}); unset it") from error
    if not isinstance(backup, dict) or not all(re.fullmatch(r"[A-Za-z_]\w*", name) for name in backup):
        raise BadInputError(f"{BACKUP} is no object of variable names: {text[:80]}; unset it")
    return backup


def write_changes(changes: Changes, shell: str) -> str:
    """Return the text to evaluate in ``shell``, one statement a line."""
    if shell == "json":
        return json.dumps(dict(changes), indent=2) + "\n"
    words = SHELLS[shell]
    lines = [
        words.remove(name) if value is None else words.assign(name, value) for name, value in changes.items()
    ]
    return "".join(line + "\n" for line in lines)
