"""The ``extforge`` command line: cheap help, exit codes, and an end that no thread can spoil."""

import argparse
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

pytest.importorskip("extforge", reason="extforge is not installed here")

from extforge import cli, errors
from extforge.cli import SUBCOMMANDS, Subcommand

Extforge = Callable[..., subprocess.CompletedProcess[str]]

HEAVY = {"rattler", "rattler_build", "rich", "torch", "yaml", "elftools", "asyncio", "zstandard"}


def modules_after(program: str) -> set[str]:
    """The modules that ``program`` leaves loaded."""
    listing = f"{program}\nimport sys\nprint(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_help_imports_nothing_heavy() -> None:
    loaded = modules_after("from extforge.cli import build_parser\nbuild_parser(['--help'])[0].format_help()")
    assert "extforge.cli" in loaded
    assert loaded & HEAVY == set()


@pytest.mark.parametrize("subcommand", SUBCOMMANDS, ids=lambda s: s.name)
def test_help_of_a_subcommand_leaves_the_others_alone(subcommand: Subcommand) -> None:
    loaded = modules_after(f"from extforge.cli import build_parser\nbuild_parser([{subcommand.name!r}])")
    assert subcommand.module in loaded
    assert {other.module for other in SUBCOMMANDS if other != subcommand} & loaded == set()
    assert loaded & {"rattler_build", "torch"} == set()


def test_help_names_every_subcommand_and_exit_code(extforge: Extforge) -> None:
    result = extforge("--help")
    assert (result.returncode, result.stderr) == (0, "")
    for subcommand in SUBCOMMANDS:
        assert f"{subcommand.name} " in result.stdout
        assert subcommand.sentence in result.stdout
    assert {f"  {kind.exit_code}  " for kind in KINDS} <= {line[:5] for line in result.stdout.splitlines()}


@pytest.mark.parametrize("subcommand", SUBCOMMANDS, ids=lambda s: s.name)
def test_help_of_a_subcommand_explains_every_argument(subcommand: Subcommand) -> None:
    child = argparse.ArgumentParser()
    importlib.import_module(subcommand.module).add_arguments(child)
    _, _, *groups = child._action_groups  # the first two are argparse's own
    titled = {id(action) for group in groups for action in group._group_actions}
    explained = [bool(a.help or a.choices or id(a) in titled) for a in child._actions]
    assert [a.dest for a, known in zip(child._actions, explained, strict=True) if not known] == []


def test_a_command_without_arguments_shows_the_help(extforge: Extforge) -> None:
    result = extforge()
    assert result.returncode == 2
    assert "usage: extforge" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["bild"], "bild"),
        (["build"], "required: recipe"),
        (["build", "recipe", "--no-such-option"], "unrecognized arguments: --no-such-option"),
    ],
)
def test_wrong_usage_exits_with_2(extforge: Extforge, arguments: list[str], told: str) -> None:
    result = extforge(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert told in result.stderr


KINDS = {
    errors.NotFoundError: 1,
    errors.FailedCommand: 1,
    errors.BadInputError: 2,
    errors.ConflictError: 3,
    errors.FailedProbe: 4,
}


def test_the_table_of_kinds_is_whole() -> None:
    assert set(KINDS) == set(errors.ExtforgeError.__subclasses__())


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[argparse.Namespace], int]], None]:
    """Replace the subcommands by one, ``act``, that calls a function."""

    def replace(function: Callable[[argparse.Namespace], int]) -> None:
        module = ModuleType("extforge_act")
        module.add_arguments = lambda parser: None  # type: ignore[attr-defined]
        module.run = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "extforge_act", module)
        monkeypatch.setattr(cli, "SUBCOMMANDS", (Subcommand("act", "act", "extforge_act"),))

    return replace


Command = Callable[[Callable[[argparse.Namespace], int]], None]


@pytest.mark.parametrize(("kind", "code"), KINDS.items(), ids=lambda value: getattr(value, "__name__", value))
def test_an_error_is_one_message_and_its_exit_code(
    command: Command, capsys: pytest.CaptureFixture[str], kind: type[errors.ExtforgeError], code: int
) -> None:
    def fail(arguments: argparse.Namespace) -> int:
        raise kind("the reason")

    command(fail)
    assert cli.run(["act"]) == code
    assert capsys.readouterr() == ("", "extforge act: the reason\n")


def test_an_interrupt_exits_as_shells_expect(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(arguments: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    command(interrupt)
    assert cli.run(["act"]) == 130
    assert capsys.readouterr().err == "extforge act: interrupted\n"


def test_a_fault_of_ours_is_not_hidden(command: Command) -> None:
    def blunder(arguments: argparse.Namespace) -> int:
        raise ZeroDivisionError

    command(blunder)
    with pytest.raises(ZeroDivisionError):
        cli.run(["act"])


def test_a_reader_that_has_gone_is_no_traceback(source_root: os.PathLike[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "extforge", "build", "recipe", "--render"]
    result = subprocess.run(command, cwd=source_root, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, "")


def test_the_process_ends_without_finalizing_the_interpreter(source_root: os.PathLike[str]) -> None:
    """Threads of rattler's runtime would crash in an interpreter that is torn down under them."""
    program = (
        "import atexit, sys; atexit.register(print, 'finalized', flush=True)\n"
        "from extforge.__main__ import main\n"
        "sys.argv[1:] = ['build', 'recipe', '--render', '--variant', 'cpu']\n"
        "main()"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=source_root, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.rstrip().endswith("]"), "what was printed has been lost"
    assert "finalized" not in result.stdout
