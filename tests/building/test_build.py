"""``extforge build`` on small recipes: packages, rows, failures, paths."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from extforge.build.rendering import render, row_name

from .conftest import HELLO, PAIR, Bench, content

ROWS = """
    package: {name: rows, version: "1.0"}
    build:
      noarch: generic
      string: ${{ "cpu" if cuda_compiler_version == "None" else "gpu" }}_${{ hash }}_0
      script: mkdir -p $PREFIX/share && echo ${{ cuda_compiler_version }} > $PREFIX/share/row
"""
ROWS_TABLE = 'cuda_compiler_version: ["None", "12.9", "13.0"]\n'
FOR_PYTHON = """
    package: {name: classic, version: "1.0"}
    build: {script: echo}
    requirements: {host: [python]}
"""
PYTHONS = 'python: ["3.11.* *_cpython", "3.12.* *_cpython"]\n'
FAILING = """
    package: {name: failing, version: "1.0"}
    build:
      noarch: generic
      script: echo the reason is told && false
"""
FAILING_TEST = """
    package: {name: failing, version: "1.0"}
    build:
      noarch: generic
      script: mkdir -p $PREFIX/share && echo x > $PREFIX/share/failing
    tests:
      - script: echo the reason is told && false
"""


def test_a_package_is_built_tested_indexed_and_printed(bench: Bench) -> None:
    result = bench.build()
    assert result.returncode == 0, result.stderr
    (package,) = (Path(line) for line in result.stdout.splitlines())
    assert package.parent == bench.output / "noarch"
    assert content(package) == {"share/hello/words.txt": b"one\n"}
    assert list(bench.index()) == [package.name]
    assert bench.index() == bench.packages()
    assert bench.leftovers() == []
    assert "words.txt" in (bench.output / ".extforge" / f"{package.stem}.log").read_text()


@pytest.mark.parametrize(
    ("row", "packages"),
    [
        ("cpu", ["rows-1.0-cpu"]),
        ("cuda130", ["rows-1.0-gpu"]),
        (None, ["rows-1.0-cpu", "rows-1.0-gpu", "rows-1.0-gpu"]),
    ],
)
def test_a_row_is_chosen_by_name(bench: Bench, row: str | None, packages: list[str]) -> None:
    bench.write("recipe/recipe.yaml", ROWS)
    bench.write("recipe/conda_build_config.yaml", ROWS_TABLE)
    options = [] if row is None else ["--variant", row]
    assert sorted(name.partition("_")[0] for name in bench.built(*options)) == packages
    assert bench.index() == bench.packages()


def test_render_prints_json_and_builds_nothing(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", ROWS)
    bench.write("recipe/variants.yaml", ROWS_TABLE)
    result = bench.build("--render")
    assert sorted(entry["row"] for entry in json.loads(result.stdout)) == ["cpu", "cuda129", "cuda130"]
    assert {entry["variant"]["cuda_compiler_version"] for entry in json.loads(result.stdout)} == {
        "None", "12.9", "13.0"
    }  # fmt: skip
    assert not bench.output.exists()


def test_a_python_is_chosen_by_its_version(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", FOR_PYTHON)
    result = bench.build("--render", "--python", "3.12", "-m", bench.write("pythons.yaml", PYTHONS))
    (package,) = json.loads(result.stdout)
    assert package["variant"]["python"] == "3.12.* *_cpython"


def test_the_last_variant_file_wins(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = bench.write("recipe/recipe.yaml", ROWS)
    monkeypatch.chdir(bench.root)
    bench.write("conda_build_config.yaml", 'cuda_compiler_version: ["1.0"]\n')
    assert [row_name(variant) for variant in render(recipe, [])] == ["cuda10"]
    bench.write("recipe/conda_build_config.yaml", 'cuda_compiler_version: ["2.0"]\n')
    assert [row_name(variant) for variant in render(recipe, [])] == ["cuda20"]
    named = bench.write("named.yaml", 'cuda_compiler_version: ["3.0"]\n')
    assert [row_name(variant) for variant in render(recipe, [named])] == ["cuda30"]


def one_row(bench: Bench) -> list[object]:
    bench.write("recipe/recipe.yaml", ROWS)
    bench.write("recipe/conda_build_config.yaml", ROWS_TABLE)
    return ["--variant", "cuda128"]


def row_of_a_plain_recipe(bench: Bench) -> list[object]:
    return ["--variant", "cpu"]


def unlisted_python(bench: Bench) -> list[object]:
    bench.write("recipe/recipe.yaml", FOR_PYTHON)
    return ["--python", "3.9", "-m", bench.write("pythons.yaml", PYTHONS)]


def no_recipe(bench: Bench) -> list[object]:
    (bench.root / "recipe" / "recipe.yaml").unlink()
    return []


def broken_yaml(bench: Bench) -> list[object]:
    bench.write("recipe/recipe.yaml", "package: [\n")
    return []


def unknown_key(bench: Bench) -> list[object]:
    bench.write("recipe/recipe.yaml", HELLO + "    sauce: x\n")
    return []


def missing_source(bench: Bench) -> list[object]:
    bench.write("recipe/recipe.yaml", HELLO.replace("../source", "../nowhere"))
    return []


def no_variant_file(bench: Bench) -> list[object]:
    return ["-m", bench.root / "absent.yaml"]


def broken_variant_file(bench: Bench) -> list[object]:
    return ["-m", bench.write("broken.yaml", "zip_keys: 3\n")]


def two_variant_files(bench: Bench) -> list[object]:
    bench.write("recipe/conda_build_config.yaml", ROWS_TABLE)
    bench.write("recipe/variants.yaml", ROWS_TABLE)
    return []


def no_channel(bench: Bench) -> list[object]:
    return ["--channel", bench.root / "source"]


def damaged_package(bench: Bench) -> list[object]:
    bench.write("output/noarch/other-1.0-0.conda", "no archive")
    return []


@pytest.mark.parametrize(
    ("prepare", "code", "told"),
    [
        (one_row, 2, r"no row 'cuda128' in the variant table; valid: cpu, cuda129, cuda130"),
        (row_of_a_plain_recipe, 2, r"no row 'cpu' .*valid: none, no package of this recipe depends on it"),
        (unlisted_python, 2, r"no Python '3.9' in the variant table; valid: 3.11, 3.12"),
        (no_recipe, 2, r"no recipe at \S+/recipe/recipe.yaml; valid: a v1 recipe.yaml or the directory"),
        (broken_yaml, 2, r"recipe.yaml cannot be rendered: "),
        (unknown_key, 2, r"recipe.yaml cannot be rendered: (?s:.*)sauce"),
        (missing_source, 1, r"hello-1.0-\w+ failed: (?s:.*)nowhere"),
        (no_variant_file, 2, r"no variant file at \S+/absent.yaml"),
        (broken_variant_file, 2, r"cannot be rendered: "),
        (two_variant_files, 2, r"both conda_build_config.yaml and variants.yaml lie in \S+/recipe; keep one"),
        (no_channel, 2, r"source is no channel: it has no noarch/repodata.json"),
        (damaged_package, 2, r"other-1.0-0.conda is damaged or no package; remove it"),
    ],
)
def test_what_cannot_be_used_is_named(
    bench: Bench, prepare: Callable[[Bench], list[object]], code: int, told: str
) -> None:
    result = bench.build(*prepare(bench))
    assert result.returncode == code, result.stderr
    assert re.search(r"^extforge build: .*" + told, result.stderr, re.MULTILINE), result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("recipe", [FAILING, FAILING_TEST])
def test_a_failure_is_told_and_changes_nothing(bench: Bench, recipe: str) -> None:
    bench.built()
    before = bench.files()
    bench.write("recipe/recipe.yaml", recipe)
    result = bench.build()
    assert result.returncode == 1
    assert "failing-1.0-h4616a5c_0 failed: " in result.stderr
    assert "\n  the reason is told\n" in result.stderr, "the tail of the log is missing"
    assert "conda_build.sh" not in result.stderr, "hints to a directory that is gone"
    (log,) = re.findall(r"the whole log: (.*)", result.stderr)
    assert "the reason is told" in Path(log).read_text()
    assert bench.files() == before
    assert bench.leftovers() == []


def test_an_output_that_fails_keeps_the_others_back(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", PAIR.replace("cp own.txt", "false && cp own.txt"))
    assert bench.build().returncode == 1
    assert bench.packages() == {}


def test_a_path_with_blanks(bench: Bench) -> None:
    bench.output = bench.root / "an output channel"
    bench.root.joinpath("recipe").rename(bench.root / "a recipe")
    (bench.root / "recipe").symlink_to("a recipe")
    (name,) = bench.built()
    assert content(bench.output / "noarch" / name) == {"share/hello/words.txt": b"one\n"}
    assert bench.index() == bench.packages()
    assert bench.kept() is not None
    assert bench.leftovers() == []


def test_a_blank_that_cannot_be_avoided_is_refused(bench: Bench) -> None:
    bench.output = bench.root / "an output channel"
    temporary = bench.root / "temporary files"
    temporary.mkdir()
    result = bench.build(TMPDIR=str(temporary))
    assert (result.returncode, result.stdout) == (2, "")
    assert f"cannot build packages below a path with blanks: {temporary}; set another TMPDIR" in result.stderr


def test_the_output_may_lie_inside_the_source(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", HELLO.replace("../source", ".."))
    bench.write("data/words.txt", "three\n")
    bench.built()
    assert bench.kept() is not None


def test_the_tests_are_those_of_the_recipe_and_not_of_a_package_installed_before(
    bench: Bench, tmp_path: Path
) -> None:
    bench.built()
    installed = bench.extforge("install", "--prefix", tmp_path / "env", "hello", "--channel", bench.output)
    assert installed.returncode == 0, installed.stderr
    bench.write("recipe/recipe.yaml", HELLO.replace("test -f", "echo the new test && test -d"))
    result = bench.build()
    assert result.returncode == 1
    assert "the new test" in result.stderr


def test_a_warning_of_the_audit_fails_where_it_is_to_be_strict(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", HELLO.replace(", license_file: data/words.txt", ""))
    assert "M07 warning" in bench.build().stderr
    packages = bench.packages()
    result = bench.build("--strict")
    assert result.returncode == 1
    assert "extforge build: the audit found fault with what was built:\nM07 warning" in result.stderr
    assert bench.packages() == packages
