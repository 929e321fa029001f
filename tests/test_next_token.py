"""The example that trains a dense and a fixed fan-in output layer on the standard library's source."""

import importlib.util
import io
import json
import runpy
import subprocess
import sys
import sysconfig
import tokenize
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "next_token.py"
LIBRARY = Path(sysconfig.get_path("stdlib"))
STEPS = 30
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("next_token", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def run_example(*arguments: object) -> str:
    """Run it, and return its table."""
    command = [sys.executable, str(EXAMPLE), *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Path]]:
    """Tables and directories of two equal runs on a small text."""
    directories = [tmp_path_factory.mktemp("results") / "made" for _ in range(2)]
    options = ("--steps", STEPS, "--fan-in", 16, "--text", LIBRARY / "asyncio")
    return [(run_example(*options, "--output", directory), directory) for directory in directories]


def read_models(directory: Path) -> list[dict[str, Any]]:
    models: list[dict[str, Any]] = json.loads((directory / "next_token.json").read_text())["models"]
    return models


def read_losses(directory: Path) -> list[list[float]]:
    return [[step[0] for step in model["steps"]] for model in read_models(directory)]


def test_both_models_learn(results: list[tuple[str, Path]]) -> None:
    for losses in read_losses(results[0][1]):
        assert len(losses) == STEPS
        assert fmean(losses[-10:]) < fmean(losses[:5]), losses


def test_equal_runs_have_equal_losses(results: list[tuple[str, Path]]) -> None:
    first, second = (read_losses(directory) for _, directory in results)
    assert first == second


def test_both_models_see_the_same_trunk(results: list[tuple[str, Path]]) -> None:
    trunks = {model["parameters"] - model["output_parameters"] for model in read_models(results[0][1])}
    assert len(trunks) == 1, trunks


@pytest.mark.parametrize(
    ("title", "key", "shown"),
    [
        ("parameters of the output layer", "output_parameters", "{:,}"),
        ("parameters in total", "parameters", "{:,}"),
        ("held-out loss", "held_out_loss", "{:.3f}"),
        ("held-out accuracy, first guess", "held_out_top1", "{:.1%}"),
        ("held-out accuracy, first five", "held_out_top5", "{:.1%}"),
    ],
)
def test_table_shows_the_numbers_written(
    results: list[tuple[str, Path]], title: str, key: str, shown: str
) -> None:
    table, directory = results[0]
    cells = [line.removeprefix(title).split() for line in table.splitlines() if line.startswith(title)]
    assert cells == [[shown.format(model[key]) for model in read_models(directory)]]


def test_figure_is_a_large_png(results: list[tuple[str, Path]]) -> None:
    picture = (results[0][1] / "next_token.png").read_bytes()
    assert picture.startswith(PNG_SIGNATURE)
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    assert width >= 1200
    assert height >= 700


def test_nothing_else_is_left(results: list[tuple[str, Path]]) -> None:
    assert {path.name for path in results[0][1].iterdir()} == {"next_token.json", "next_token.png"}


def test_without_logits_and_with_other_connections(tmp_path: Path, results: list[tuple[str, Path]]) -> None:
    steps = ("--steps", 60, "--fan-in", 16, "--text", LIBRARY / "asyncio")
    table = run_example(*steps, "--fused", "--rigl", 60, "--output", tmp_path)
    assert "fixed fan-in 16, fused, RigL" in table
    _, fixed_fan_in = read_losses(tmp_path)
    assert fixed_fan_in[:STEPS] == pytest.approx(read_losses(results[0][1])[1], rel=1e-3)
    assert fmean(fixed_fan_in[50:]) < fmean(fixed_fan_in[:5]), "it learns after the exchange, too"
    assert 0 < read_models(tmp_path)[1]["held_out_top1"] < read_models(tmp_path)[1]["held_out_top5"]


@pytest.mark.slow
def test_default_text_is_the_standard_library(tmp_path: Path) -> None:
    run_example("--steps", 2, "--batch", 16, "--output", tmp_path)
    names = json.loads((tmp_path / "next_token.json").read_text())["names"]
    dense, fixed_fan_in = read_models(tmp_path)
    assert names > 10_000, "distinct names of the standard library"
    assert dense["output_parameters"] == names * (256 + 1)
    assert fixed_fan_in["output_parameters"] == names * (32 + 1)
    assert fixed_fan_in["memory_peak"] < dense["memory_peak"]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("a = 'b c'  # d e", ["a"]),
        ("'''a\n'b' c''' + d", ["d"]),
        ('"a\\"b" + c', ["c"]),
        ("f'{a}' + Rb'b' + u'c' + e", ["e"]),
        ("0x1F if a else 1e5j", ["if", "a", "else"]),
        ("1_000.5e-3.real", ["real"]),
        ("naïve = café_1", ["naïve", "café_1"]),
        ("# it's\nx = \"it's\"", ["x"]),
    ],
)
def test_read_names_of_a_line(example: ModuleType, tmp_path: Path, source: str, names: list[str]) -> None:
    path = tmp_path / "source.py"
    path.write_text(source, encoding="utf-8")
    assert example.read_names(path) == names


def tokenize_names(path: Path) -> list[str]:
    """Names outside of strings; since Python 3.12 tokenize shows those in formatted strings as well."""
    start, end = (getattr(tokenize, kind, None) for kind in ("FSTRING_START", "FSTRING_END"))
    names, depth = [], 0
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(io.StringIO(file.read()).readline):
            depth += (token.type == start) - (token.type == end)
            if token.type == tokenize.NAME and depth == 0:
                names.append(token.string)
    return names


def test_read_names_agrees_with_tokenize(example: ModuleType) -> None:
    paths = sorted(LIBRARY.glob("*.py"))[::5]
    differing = [path.name for path in paths if example.read_names(path) != tokenize_names(path)]
    assert len(paths) > 20
    assert differing == []


def test_text_is_split_by_file(example: ModuleType) -> None:
    text = example.read_text(LIBRARY / "asyncio", seed=0)
    again = example.read_text(LIBRARY / "asyncio", seed=0)
    total = sum(len(example.read_names(path)) for path in (LIBRARY / "asyncio").rglob("*.py"))
    assert sum((stream < text.names).sum() for stream in (text.train, text.held_out)) == total
    assert 0 < len(text.held_out) < len(text.train)
    assert (text.held_out == again.held_out).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "argument --steps: received 0, accepted is 1 to"),
        (["--steps", "-3"], "argument --steps: received -3, accepted is 1 to"),
        (["--steps", "many"], "argument --steps: invalid int value: 'many'"),
        (["--seconds", "nan"], "argument --seconds: received nan, accepted is"),
        (["--batch", "0"], "argument --batch: received 0, accepted is 1 to"),
        (["--fan-in", "257"], "argument --fan-in: received 257, accepted is 1 to 256"),
        (["--seed", "-1"], "argument --seed: received -1, accepted is 0 to"),
        (["--rigl", "0"], "argument --rigl: received 0, accepted is 1 to"),
        (["--stesp", "3"], "unrecognized arguments: --stesp 3"),
        (["--output", str(EXAMPLE / "results")], f"{EXAMPLE / 'results'}"),
        (["--text", str(Path(__file__).parent / "nowhere")], "nowhere: 0 source files are too few"),
    ],
)
def test_wrong_input_is_refused(
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["next_token.py", *arguments])
    with pytest.raises(SystemExit) as stopped:
        example.main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["torch_sparse_ops", "matplotlib", "numpy"])
def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in [name, *(module for module in sys.modules if module.startswith(f"{name}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit, match=rf"{name}(?s:.*)conda install .*torch-sparse-ops") as stopped:
        runpy.run_path(str(EXAMPLE))
    assert isinstance(stopped.value.code, str), "a message, hence exit code 1"
