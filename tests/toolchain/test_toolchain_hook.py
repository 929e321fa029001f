"""Activation scripts, sourced by real shells in the order in which conda sources them."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from extforge.errors import BadInputError, NotFoundError
from extforge.toolchain.hook import SCRIPTS, hook_environ, install_hook, remove_hook

# conda runs activate.d in name order and deactivate.d in reverse.
CONDA = """\
activate() { for script in "$1"/etc/conda/activate.d/*.sh; do . "$script"; done; }
deactivate() {
  set -- $(ls "$1"/etc/conda/deactivate.d | sort -r | sed "s|^|$1/etc/conda/deactivate.d/|")
  for script; do . "$script"; done
}
"""
SHELLS = {
    "bash": ["bash", "--norc", "--noprofile"],
    "zsh": ["zsh", "-f", "-o", "SH_WORD_SPLIT"],
    "dash": ["dash"],
    "bash as sh": ["bash", "--posix", "--norc"],
}
# + activates, - deactivates; A and B are two prefixes.
ORDERS = {
    "alone": "+A -A",
    "one after the other": "+A -A +B -B",
    "stacked": "+A +B -B -A",
    "stacked, inner one twice": "+A +B -B +B -B -A",
    "activated again without deactivation": "+A +A -A",
    "reactivated": "+A -A +A -A",
}
PRESETS = {
    "nothing": {},
    "a user's CUDA_HOME": {"CUDA_HOME": "/my toolkit"},
    "empty values": {"CUDA_HOME": "", "CC": ""},
    "a user's compilers": {"CC": "/usr/bin/clang", "CXX": "/usr/bin/clang++"},
}
# What the compiler packages of conda-forge do beside us.
NEIGHBOURS = {
    "etc/conda/activate.d/activate-gcc.sh": 'CONDA_BACKUP_CC="${CC-}"; export CONDA_BACKUP_CC CC=conda-cc\n',
    "etc/conda/deactivate.d/deactivate-gcc.sh": (
        'if [ -n "${CONDA_BACKUP_CC-}" ]; then CC="$CONDA_BACKUP_CC"; else unset CC; fi\n'
        "unset CONDA_BACKUP_CC\n"
    ),
    "etc/conda/activate.d/~cuda-nvcc_activate.sh": 'export NVCC_PREPEND_FLAGS="-ccbin=$CC"\n',
    "etc/conda/deactivate.d/~cuda-nvcc_deactivate.sh": "unset NVCC_PREPEND_FLAGS\n",
}


@pytest.fixture
def prefixes(world):
    """Two hooked environments; what A lacks, B sets."""
    first, second = world.conda(world.top / "A"), world.conda(world.top / "B", "13.1.2")
    world.program(second / "bin/ninja", "#!/bin/sh\n")
    for prefix in (first, second):
        install_hook(world.resolve(prefix=str(prefix)))
    return {"A": first, "B": second}


def run_shell(shell, script, environ):
    command = SHELLS[shell]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(
        [*command, "-c", CONDA + script], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [parse(part) for part in done.stdout.split("\0\0") if part.strip("\0")]


def parse(text):
    variables = dict(line.split("=", 1) for line in text.strip("\0").split("\0"))
    return {name: value for name, value in variables.items() if name not in ("_", "SHLVL", "PWD", "OLDPWD")}


def script_of(order, prefixes):
    """Print the environment before, after every step, and so at the end."""
    words = {"+": "activate", "-": "deactivate"}
    steps = [f"{words[step[0]]} '{prefixes[step[1]]}'" for step in order.split()]
    return "set -eu\n" + "\n".join(f"env -0; printf '\\0'\n{step}" for step in (*steps, ":")) + "\nenv -0\n"


def base_environ(world, preset):
    return {"PATH": "/usr/bin:/bin", "HOME": str(world.top / "home"), **preset}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("preset", PRESETS)
def test_the_environment_after_is_the_environment_before(world, prefixes, shell, order, preset):
    states = run_shell(shell, script_of(ORDERS[order], prefixes), base_environ(world, PRESETS[preset]))
    assert len(states) == len(ORDERS[order].split()) + 2
    assert states[-1] == states[0]
    assert any(state != states[0] for state in states)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_innermost_environment_wins_and_the_outer_one_comes_back(world, prefixes, shell):
    states = run_shell(shell, script_of("+A +B -B", prefixes), base_environ(world, {}))
    homes = [state.get("CUDA_HOME") for state in states]
    view = {name: next((prefixes[name] / "share/extforge/views").iterdir()) for name in "AB"}
    assert homes[:4] == [None, str(view["A"]), str(view["B"]), str(view["A"])]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_users_value_is_never_overwritten(world, prefixes, shell):
    states = run_shell(shell, script_of("+A", prefixes), base_environ(world, {"CUDA_HOME": "/mine"}))
    assert states[1]["CUDA_HOME"] == "/mine"
    assert (
        states[1]["TRITON_PTXAS_PATH"]
        == states[1]["TRITON_PTXAS_BLACKWELL_PATH"]
        == f"{prefixes['A']}/bin/ptxas"
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_a_value_that_the_user_sets_in_between_stays(world, prefixes, shell):
    script = f"activate '{prefixes['A']}'; export CUDA_HOME=/mine; deactivate '{prefixes['A']}'; env -0"
    (state,) = run_shell(shell, script, base_environ(world, {}))
    assert state["CUDA_HOME"] == "/mine"
    assert not [name for name in state if "EXTFORGE" in name]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("order", ["+A -A", "+A +B -B -A"])
def test_compiler_packages_beside_the_hook_keep_their_own_values(world, prefixes, shell, order):
    for prefix in prefixes.values():
        for name, text in NEIGHBOURS.items():
            world.file(prefix / name, text)
    states = run_shell(shell, script_of(order, prefixes), base_environ(world, {}))
    assert states[1]["CC"] == "conda-cc"
    assert states[-1] == states[0]


def test_a_login_shell_starts_and_lives_on(world, prefixes):
    profile = "".join(f". '{prefixes['A'] / path}'\n" for path in SCRIPTS.values())
    world.file(world.top / "home/.profile", f"set -eu\n{profile}")
    environ = base_environ(world, {})
    done = subprocess.run(
        ["sh", "-l", "-c", "echo alive"], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("alive\n")


def test_a_prefix_with_a_blank_and_a_quote(world):
    prefix = world.conda(world.top / "it's my env")
    install_hook(world.resolve(prefix=str(prefix)))
    script = (
        "set -eu\n"
        + "env -0; printf '\\0'\n".join(f'. "{prefix / path}"\n' for path in SCRIPTS.values())
        + "env -0"
    )
    during, after = run_shell("bash", script, base_environ(world, {}))
    assert during["TRITON_PTXAS_PATH"] == f"{prefix}/bin/ptxas"
    assert "TRITON_PTXAS_PATH" not in after


def test_the_scripts_sort_behind_those_of_nvcc():
    assert sorted(["~cuda-nvcc_activate.sh", SCRIPTS["activate"].name])[-1] == SCRIPTS["activate"].name


def test_caches_follow_the_user_who_activates(world, prefixes):
    environ = base_environ(world, {"XDG_CACHE_HOME": "/scratch/me"})
    states = run_shell("bash", script_of("+A", prefixes), environ)
    assert states[1]["TRITON_CACHE_DIR"].startswith("/scratch/me/extforge/triton/")


def test_installing_again_replaces_the_view_of_another_toolkit(world):
    prefix = world.conda(world.top / "A")
    install_hook(world.resolve(prefix=str(prefix)))
    (before,) = (prefix / "share/extforge/views").iterdir()
    world.library(prefix / "targets/x86_64-linux/lib/libcublas.so.13")
    install_hook(world.resolve(prefix=str(prefix)))
    (after,) = (prefix / "share/extforge/views").iterdir()
    assert after != before


def test_removing_leaves_nothing(world, prefixes):
    written = remove_hook(prefixes["A"])
    assert written == [prefixes["A"] / path for path in SCRIPTS.values()]
    assert not [path for path in prefixes["A"].rglob("*extforge*") if path.is_file()]
    with pytest.raises(NotFoundError, match="has no hook of extforge"):
        remove_hook(prefixes["A"])


def test_elsewhere_than_in_a_conda_environment_it_is_refused(world):
    with pytest.raises(
        BadInputError, match=r'is no conda environment; elsewhere use: eval "\$\(extforge env\)"'
    ):
        install_hook(world.resolve())


def test_nothing_of_the_callers_environment_is_baked_in():
    environ = hook_environ(
        "/env", {"CC": "mine", "CUDA_HOME": "/mine", "HOME": "/home/me", "LD_LIBRARY_PATH": "/x"}
    )
    assert environ == {"PATH": "/env/bin:/usr/local/bin:/usr/bin:/bin", "HOME": "/home/me"}
