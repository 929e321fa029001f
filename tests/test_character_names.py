"""The example that guesses the words in the names of characters."""

import importlib.util
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLE = Path(__file__).parents[1] / "examples" / "character_names.py"
STEPS = 40


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("character_names", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("connections", ["rigl", "set"])
def test_a_short_run_beats_the_most_frequent_words(connections: str) -> None:
    options = ("--steps", str(STEPS), "--batch", "128", "--fan-in", "16", "--connections", connections)
    run = subprocess.run(
        [sys.executable, str(EXAMPLE), *options], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    first, last = re.findall(r"training loss (\S+) at first, (\S+) at last", run.stdout)[0]
    assert float(last) < float(first) - 3
    shares = re.findall(r"^  [135]: (\S+)% \((\S+)%\)$", run.stdout, re.MULTILINE)
    assert len(shares) == 3
    assert all(float(learned) > 1.2 * float(blindly) for learned, blindly in shares), run.stdout


def test_words_and_properties_are_those_of_unicodedata(example: ModuleType) -> None:
    data = example.read_characters(seed=0)
    characters = data.train
    rows = range(0, len(characters.code_points), 1000)
    for row in rows:
        character = chr(int(characters.code_points[row]))
        words = {data.words[i] for i in characters.words[row].tolist() if i != example.NO_LABEL}
        assert words == set(unicodedata.name(character).split())
        known = {data.properties[i] for i in characters.properties[row].tolist() if i != example.NO_LABEL}
        assert f"category {unicodedata.category(character)}" in known
    assert len(rows) > 20
    assert len(data.words) > 5000, "distinct words"
    assert 0.05 < len(data.held_out.words) / len(characters.words) < 0.2
    assert not set(data.held_out.code_points.tolist()) & set(characters.code_points.tolist())


def test_no_name_made_by_rule_is_among_them(example: ModuleType) -> None:
    data = example.read_characters(seed=0)
    both = torch.cat((data.train.code_points, data.held_out.code_points)).tolist()
    assert not {ord("一"), ord("가")} & set(both)
    assert {ord("é"), ord("€")} <= set(both)


def test_the_name_is_no_property(example: ModuleType) -> None:
    described = example.describe("É")
    assert {"category Lu", "part 0045", "part 0301", "lower 32", "numeric None"} <= set(described)
    assert not any("LATIN" in text or "ACUTE" in text for text in described)


def test_right_guesses_are_counted_once(example: ModuleType) -> None:
    guessed = torch.tensor([[3, 1, 2], [0, 5, 4]])
    words = torch.tensor([[2, 3, -1], [5, -1, -1]])
    assert example.is_right(guessed, words).tolist() == [[True, False, True], [False, True, False]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "argument --steps: received 0, accepted is 1 to"),
        (["--batch", "0"], "argument --batch: received 0, accepted is 1 to"),
        (["--fan-in", "257"], "argument --fan-in: received 257, accepted is 1 to 256"),
        (["--seed", "-1"], "argument --seed: received -1, accepted is 0 to"),
        (["--connections", "all"], "invalid choice: 'all'"),
    ],
)
def test_wrong_input_is_refused(
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["character_names.py", *arguments])
    with pytest.raises(SystemExit) as stopped:
        example.main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
