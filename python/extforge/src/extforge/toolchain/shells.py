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


class Shell(NamedTuple):
    assign: Callable[[str, str], str]
    remove: Callable[[str], str]


def quote_fish(value: str) -> str:
    return "'" + re.sub(r"(['\\])", r"\\\1", value) + "'"


def quote_csh(value: str) -> str:
    return "'" + value.replace("'", "'\\''").replace("!", "\\!").replace("\n", "\\\n") + "'"


def quote_powershell(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


POSIX = Shell(lambda name, value: f"export {name}={shlex.quote(value)}", lambda name: f"unset {name}")
SHELLS: Mapping[str, Shell] = {
    "bash": POSIX,
    "zsh": POSIX,
    "fish": Shell(lambda name, value: f"set -gx {name} {quote_fish(value)}", lambda name: f"set -e {name}"),
    "csh": Shell(lambda name, value: f"setenv {name} {quote_csh(value)};", lambda name: f"unsetenv {name};"),
    "powershell": Shell(
        lambda name, value: f"$Env:{name} = {quote_powershell(value)}",
        lambda name: f"Remove-Item -ErrorAction Ignore Env:{name}",
    ),
}
SHELL_NAMES = (*SHELLS, "json")


def apply_changes(variables: Mapping[str, str], environ: Mapping[str, str]) -> Changes:
    """Return the changes that set ``variables``, put back what an earlier call had set, and remember both."""
    before = read_backup(environ)
    restored: Changes = {name: value for name, value in before.items() if name not in variables}
    backup = {name: before.get(name, environ.get(name)) for name in variables}
    return {**restored, **variables, BACKUP: json.dumps(backup)}


def undo_changes(environ: Mapping[str, str]) -> Changes:
    """Return the changes that restore the environment before the first :func:`apply_changes`."""
    before = read_backup(environ)
    return {**before, BACKUP: None} if BACKUP in environ else {}


def read_backup(environ: Mapping[str, str]) -> dict[str, str | None]:
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
