"""Text for shells, read back by the shells themselves."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from extforge.errors import BadInputError
from extforge.toolchain.shells import BACKUP, apply_changes, undo_changes, write_changes

NASTY = {
    "PLAIN": "/usr/bin/cc",
    "BLANK": "/my env/bin",
    "QUOTES": 'it\'s "quoted"',
    "DOLLAR": "$HOME `id` \\ end",
    "BANG": "wow! 100%",
    "SEMI": "a;b|c&d",
}
# How each shell is asked to run a script file without reading anybody's start-up files.
COMMANDS = {
    "bash": ["bash", "--norc", "--noprofile"],
    "zsh": ["zsh", "-f"],
    "fish": ["fish", "--no-config"],
    "csh": ["csh", "-f"],
    "powershell": ["pwsh", "-NoProfile", "-File"],
}


def environment_after(shell, script, tmp_path, environ):
    """Return the environment that a child of the shell sees after it ran the script."""
    command = COMMANDS[shell]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    path = tmp_path / "script.ps1"
    path.write_text(script + "env -0\n")
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **environ}
    done = subprocess.run([*command, path], env=environ, capture_output=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.decode().split("\0") if line)


@pytest.mark.parametrize("shell", COMMANDS)
def test_every_value_survives_the_shell(shell, tmp_path):
    seen = environment_after(shell, write_changes(NASTY, shell), tmp_path, {})
    assert {name: seen[name] for name in NASTY} == NASTY


@pytest.mark.parametrize("shell", COMMANDS)
def test_undo_restores_what_was_there(shell, tmp_path):
    before = {"BLANK": "mine", "EMPTY": ""}
    applied = environment_after(shell, write_changes(apply_changes(NASTY, before), shell), tmp_path, before)
    assert applied["BLANK"] == NASTY["BLANK"]
    undone = environment_after(shell, write_changes(undo_changes(applied), shell), tmp_path, applied)
    assert {name: undone.get(name) for name in (*NASTY, *before, BACKUP)} == {
        **dict.fromkeys((*NASTY, BACKUP)),
        **before,
    }


def test_applying_twice_keeps_the_first_backup_and_drops_what_is_no_longer_set():
    first = {**{"CC": "old"}, **apply_changes({"CC": "a", "CUDA_HOME": "a"}, {"CC": "old"})}
    second = apply_changes({"CC": "b"}, first)
    assert second["CUDA_HOME"] is None
    assert json.loads(second[BACKUP]) == {"CC": "old"}


def test_nothing_is_undone_where_nothing_was_done():
    assert undo_changes({"CC": "mine"}) == {}


def test_json_names_removals_with_null():
    assert json.loads(write_changes({"A": "1", "B": None}, "json")) == {"A": "1", "B": None}


@pytest.mark.parametrize("backup", ["nonsense", "[]", '{"a b": null}'])
def test_a_backup_that_is_not_ours_is_bad_input(backup):
    with pytest.raises(BadInputError, match=f"{BACKUP} is no .*unset it"):
        undo_changes({BACKUP: backup})
