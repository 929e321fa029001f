"""What counts as changed: the sources, the recipe, the channels, and whether the package is still whole."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import HELLO, PAIR, Bench


def change_source(bench: Bench) -> None:
    bench.write("source/data/words.txt", "two\n")


def add_source(bench: Bench) -> None:
    bench.write("source/data/more/words.txt", "two\n")


def remove_source(bench: Bench) -> None:
    (bench.root / "source/data/spare.txt").unlink()


def make_source_executable(bench: Bench) -> None:
    (bench.root / "source/data/words.txt").chmod(0o755)


def change_recipe(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", HELLO.replace("test -f", "test -s"))


def change_file_beside_recipe(bench: Bench) -> None:
    bench.write("recipe/patch.diff", "changed\n")


def change_channel(bench: Bench) -> None:
    bench.channel = bench.root / "channel with blanks"
    (bench.channel / "noarch" / "repodata.json").write_text('{"packages": {}}')


def delete_package(bench: Bench) -> None:
    next(bench.output.glob("noarch/*.conda")).unlink()


def damage_package(bench: Bench) -> None:
    next(bench.output.glob("noarch/*.conda")).write_bytes(b"half")


def delete_index(bench: Bench) -> None:
    (bench.output / "noarch" / "repodata.json").unlink()


def empty_index(bench: Bench) -> None:
    (bench.output / "noarch" / "repodata.json").write_text('{"packages.conda": {}}')


def damage_record(bench: Bench) -> None:
    next((bench.output / ".extforge").glob("*.json")).write_text("{")


def change_nothing(bench: Bench) -> None:
    os.utime(bench.root / "source/data/words.txt")


def change_output(bench: Bench) -> None:
    bench.write("output/notes.txt", "not an input\n")


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (change_nothing, False),
        (change_output, False),
        (change_source, True),
        (add_source, True),
        (remove_source, True),
        (make_source_executable, True),
        (change_recipe, True),
        (change_file_beside_recipe, True),
        (change_channel, True),
        (delete_package, True),
        (damage_package, True),
        (delete_index, True),
        (empty_index, True),
        (damage_record, True),
    ],
)
def test_a_package_is_kept_while_nothing_has_changed(
    bench: Bench, change: Callable[[Bench], None], again: bool
) -> None:
    bench.write("source/data/spare.txt", "spare\n")
    bench.channel = bench.root / "channel with blanks"
    bench.write("channel with blanks/noarch/repodata.json", '{"info":{"subdir":"noarch"},"packages":{}}')
    bench.built()
    change(bench)
    assert (bench.kept() is None) == again


@pytest.mark.parametrize(
    ("change", "verdict"), [(change_nothing, "unchanged"), (damage_package, "built and tested")]
)
def test_what_has_not_changed_is_skipped(bench: Bench, change: Callable[[Bench], None], verdict: str) -> None:
    bench.built("--skip-unchanged")
    change(bench)
    result = bench.build("--skip-unchanged")
    assert result.returncode == 0, result.stderr
    assert verdict in result.stderr
    assert bench.index() == bench.packages()
    assert len(bench.packages()) == len(result.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("{path: ../source, filter: [data]}", "source/data/words.txt"),
        ("{path: ../source, filter: ['./data/**']}", "source/data/words.txt"),
        ("{path: ../source, filter: ['{data,x}/*.txt']}", "source/data/words.txt"),
        ("{path: ../source, filter: {include: ['data/*']}}", "source/data/words.txt"),
        ("{path: ../source, filter: {exclude: ['none']}}", "source/data/words.txt"),
        ("{path: ../source/data/words.txt, target_directory: data}", "source/data/words.txt"),
    ],
)
def test_every_kind_of_source_counts(bench: Bench, source: str, file: str) -> None:
    recipe = HELLO.replace("source:\n      path: ../source", f"source:\n      - {source}")
    bench.write("recipe/recipe.yaml", recipe)
    (name,) = bench.built()
    assert bench.kept() == bench.output / "noarch" / name
    bench.write(file, "two\n")
    assert bench.kept() is None


def test_a_file_that_the_filter_leaves_out_does_not_count(bench: Bench) -> None:
    source = "path: ../source"
    bench.write("recipe/recipe.yaml", HELLO.replace(source, f"{source}\n      filter: ['data/**']"))
    bench.built()
    bench.write("source/README.md", "new\n")
    assert bench.kept() is not None


def test_a_source_that_nobody_pinned_is_always_built(bench: Bench) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(bench.root / "source")]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "words"]):
        subprocess.run([*git, *words], check=True)
    url = (bench.root / "source").as_uri()
    bench.write("recipe/recipe.yaml", HELLO.replace("path: ../source", f"git: {url}\n      branch: main"))
    bench.built()
    assert bench.kept() is None


def test_outputs_of_a_recipe_find_each_other_when_one_is_kept(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", PAIR)
    first = bench.built("--skip-unchanged")
    bench.write("user/own.txt", "changed\n")
    result = bench.build("--skip-unchanged")
    assert result.returncode == 0, result.stderr
    assert re.search(r"^pair-data-\S+: unchanged$", result.stderr, re.MULTILINE)
    assert [Path(line).name for line in result.stdout.splitlines()] == first
    assert bench.index() == bench.packages()
