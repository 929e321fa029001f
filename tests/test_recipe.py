"""The recipe: what every row renders to, the same in every reader; facts that are stated in several files."""

import importlib.metadata
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tomllib
import yaml

pytest.importorskip("extforge", reason="extforge is not installed here")

from extforge.audit.rules.architectures import described, parse_architectures
from extforge.build.rendering import identity, render, row_name
from rattler_build import JinjaConfig, RenderedVariant, Stage0Recipe, VariantConfig

BUILD_STRING = re.compile(r"string\"?: \"?([\w.]+_\d+)\b")


class Row(NamedTuple):
    """What sets a row of the variant table apart."""

    number: int
    string: str
    build: list[str]
    host: list[str]
    run: list[str]
    overdepending: str = "error"
    cuda_library: str = "ON"


TABLE = {
    "cpu": Row(
        number=0,
        string=r"cpu_h[0-9a-f]{7}_0",
        build=["gxx_linux-64 15.*", "sysroot_linux-64 2.17.*"],
        host=["pytorch * cpu*", "libtorch * cpu*"],
        run=[],
        cuda_library="OFF",
    ),
    "cuda129": Row(
        number=200,
        string=r"cuda129_h[0-9a-f]{7}_200",
        build=["gxx_linux-64 14.*", "sysroot_linux-64 2.17.*", "cuda-nvcc_linux-64 12.9.*"],
        host=["pytorch * cuda*", "libtorch * cuda*", "cuda-version ==12.9", "cuda-cudart-dev"],
        run=["pytorch * cuda*", "cuda-cudart_linux-64", "__cuda"],
        overdepending="ignore",
    ),
    "cuda130": Row(
        number=200,
        string=r"cuda130_h[0-9a-f]{7}_200",
        build=["gxx_linux-64 15.*", "sysroot_linux-64 2.28.*", "cuda-nvcc_linux-64 13.0.*"],
        host=["pytorch * cuda*", "libtorch * cuda*", "cuda-version ==13.0", "cuda-cudart-dev"],
        run=["pytorch * cuda*", "cuda-cudart_linux-64", "__cuda"],
        overdepending="ignore",
    ),
}
EVERY_ROW = Row(
    number=0,
    string="",
    build=["cmake", "ninja"],
    host=["python", "pip", "scikit-build-core", "pytorch", "libtorch"],
    run=["python >=3.10", "pytorch >=2.10,<3", "libtorch >=2.10,<3"],
)


@pytest.fixture(scope="module")
def variant_file(source_root: Path) -> Path:
    return source_root / "conda_build_config.yaml"


@pytest.fixture(scope="module")
def recipe_file(source_root: Path) -> Path:
    return source_root / "recipe" / "recipe.yaml"


@pytest.fixture(scope="module")
def rendered(recipe_file: Path, variant_file: Path) -> list[RenderedVariant]:
    return render(recipe_file, [variant_file])


@pytest.fixture(scope="module")
def operators(rendered: list[RenderedVariant]) -> dict[str | None, dict[str, Any]]:
    """Row to rendered recipe of torch-sparse-ops."""
    chosen = [variant for variant in rendered if variant.recipe.package.name == "torch-sparse-ops"]
    return {row_name(variant): variant.recipe.to_dict() for variant in chosen}


@pytest.fixture(scope="module")
def extforge_output(rendered: list[RenderedVariant]) -> dict[str, Any]:
    (variant,) = (variant for variant in rendered if variant.recipe.package.name == "extforge")
    return variant.recipe.to_dict()


def test_every_row_renders(operators: dict[str | None, dict[str, Any]]) -> None:
    assert set(operators) == set(TABLE)


@pytest.mark.parametrize("row", TABLE)
@pytest.mark.parametrize("environment", ["build", "host", "run"])
def test_requirements_of_a_row(
    operators: dict[str | None, dict[str, Any]], row: str, environment: str
) -> None:
    wanted = getattr(EVERY_ROW, environment) + getattr(TABLE[row], environment)
    assert sorted(operators[row]["requirements"][environment]) == sorted(wanted)


@pytest.mark.parametrize("row", TABLE)
def test_build_of_a_row(operators: dict[str | None, dict[str, Any]], row: str) -> None:
    build = operators[row]["build"]
    assert build.get("number", 0) == TABLE[row].number
    assert re.fullmatch(TABLE[row].string, build["string"])
    assert build["python"] == {"version_independent": True}
    assert build["dynamic_linking"]["overlinking_behavior"] == "error"
    assert build["dynamic_linking"].get("overdepending_behavior", "ignore") == TABLE[row].overdepending
    defined = build["script"]["env"]["SKBUILD_CMAKE_DEFINE"]
    assert defined == f"TORCH_SPARSE_OPS_CUDA={TABLE[row].cuda_library}"


@pytest.mark.parametrize("row", TABLE)
def test_no_pin_to_one_python_or_torch_is_exported(
    operators: dict[str | None, dict[str, Any]], row: str
) -> None:
    ignored = operators[row]["requirements"]["ignore_run_exports"]
    assert ignored == {"from_package": ["python", "pytorch", "libtorch"]}


@pytest.mark.parametrize("row", TABLE)
def test_nothing_of_a_driver_or_of_headers_is_needed_at_run_time(
    operators: dict[str | None, dict[str, Any]], row: str
) -> None:
    names = [spec.split()[0] for spec in operators[row]["requirements"]["run"]]
    assert not [name for name in names if name.endswith("-dev") or "driver" in name]


@pytest.mark.parametrize(("row", "torch"), [("cpu", "2.13"), ("cuda129", "2.13"), ("cuda130", "2.14")])
def test_torch_of_a_row(rendered: list[RenderedVariant], row: str, torch: str) -> None:
    (variant,) = (variant for variant in rendered if row_name(variant) == row)
    assert (variant.variant["pytorch"], variant.variant["libtorch"]) == (torch, torch)


def test_extforge_is_one_package_for_all_rows(extforge_output: dict[str, Any]) -> None:
    assert extforge_output["build"]["noarch"] == "python"
    assert re.fullmatch(r"pyh[0-9a-f]{7}_0", extforge_output["build"]["string"])


def test_every_output_is_tested_by_its_recipe(
    operators: dict[str | None, dict[str, Any]], extforge_output: dict[str, Any]
) -> None:
    for output in (*operators.values(), extforge_output):
        python, *scripts = output["tests"]
        assert python["python"].get("pip_check", True), "pip check is switched off"
        assert python["python"]["imports"]
        name = output["package"]["name"]
        assert f"extforge audit --strict --prefix $PREFIX {name}" in str(scripts[-1]["script"])


@pytest.mark.parametrize("row", TABLE)
def test_the_audit_of_a_row_has_what_it_needs(operators: dict[str | None, dict[str, Any]], row: str) -> None:
    """Without NVIDIA's cuobjdump it could not verify the GPU code, which is no pass."""
    audit = operators[row]["tests"][-1]
    assert audit["requirements"]["run"] == ["extforge", *(["cuda-cuobjdump"] if row != "cpu" else [])]


def test_the_output_that_the_tests_need_is_built_first(rendered: list[RenderedVariant]) -> None:
    assert rendered[0].recipe.package.name == "extforge"


def read_with_conda_build(recipe: Path, variants: Path) -> set[str]:
    """The reader of conda-build's v1 path."""
    return strings(Stage0Recipe.from_file(recipe).render(VariantConfig.from_file(variants)))


def read_with_several_files(recipe: Path, variants: Path) -> set[str]:
    return strings(Stage0Recipe.from_file(recipe).render(VariantConfig.from_files([variants])))


def read_as_conda_build_config(recipe: Path, variants: Path) -> set[str]:
    """The reader that knows selectors."""
    config = VariantConfig.from_conda_build_config(variants, JinjaConfig())
    return strings(Stage0Recipe.from_file(recipe).render(config))


def read_with_rattler_build(recipe: Path, variants: Path) -> set[str]:
    """The path of rattler-build's command line; it prints, and is run apart for that."""
    program = (
        "import sys; from rattler_build.cli_api import build_recipes; "
        "build_recipes([sys.argv[1]], variant_config=[sys.argv[2]], render_only=True)"
    )
    return printed_strings([sys.executable, "-c", program, recipe, variants])


def read_with_rattler_build_itself(recipe: Path, variants: Path) -> set[str]:
    if not shutil.which("rattler-build"):
        pytest.skip("no rattler-build on PATH")
    return printed_strings(["rattler-build", "build", "--render-only", "-r", recipe, "-m", variants])


def read_with_conda_build_itself(recipe: Path, variants: Path) -> set[str]:
    if not shutil.which("conda-render"):
        pytest.skip("no conda-build on PATH")
    return printed_strings(["conda", "render", recipe.parent, "-m", variants])


def strings(rendered: list[RenderedVariant]) -> set[str]:
    return {str(variant.recipe.build.string) for variant in rendered}


def printed_strings(command: list[object]) -> set[str]:
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
    return set(BUILD_STRING.findall(result.stdout))


@pytest.mark.parametrize(
    "read",
    [
        read_with_conda_build,
        read_with_several_files,
        read_as_conda_build_config,
        read_with_rattler_build,
        read_with_rattler_build_itself,
        read_with_conda_build_itself,
    ],
)
def test_every_reader_renders_the_same_hashes(
    rendered: list[RenderedVariant],
    recipe_file: Path,
    variant_file: Path,
    read: Callable[[Path, Path], set[str]],
) -> None:
    assert read(recipe_file, variant_file) == strings(rendered)
    assert len({identity(variant) for variant in rendered}) == len(TABLE) + 1


def test_the_local_build_offers_every_row(
    operators: dict[str | None, dict[str, Any]], source_root: Path
) -> None:
    rows = runpy.run_path(str(source_root / "build-locally.py"))["ROWS"]
    versions = {row: recipe["context"]["flavour"].removeprefix("cuda") for row, recipe in operators.items()}
    assert {row: version.replace(".", "") or "cpu" for row, version in rows.items()} == versions


def test_the_local_build_audits_for_the_architectures_of_cmake(source_root: Path) -> None:
    stated = runpy.run_path(str(source_root / "build-locally.py"))["read_architectures"]()
    assert described(parse_architectures(stated)) == "sass 7.5 8.0 8.6 8.9 9.0 10.0 12.0, ptx 12.0"


def test_the_row_file_of_the_readme_renders_the_cpu_row(
    recipe_file: Path,
    variant_file: Path,
    source_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    operators: dict[str | None, dict[str, Any]],
) -> None:
    readme = (source_root / "README.md").read_text()
    (text,) = re.findall(r"```yaml\n# row\.yaml\n(.*?)```", readme, re.DOTALL)
    (tmp_path / "row.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    variants = render(recipe_file, [variant_file, tmp_path / "row.yaml"])
    (found,) = [variant for variant in variants if row_name(variant) is not None]
    assert found.recipe.build.string == operators["cpu"]["build"]["string"]


def scalars(node: yaml.Node, is_key: bool = False) -> Iterator[yaml.ScalarNode]:
    """Every value below ``node``; the keys of mappings are none."""
    if isinstance(node, yaml.ScalarNode) and not is_key:
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from scalars(item)
    elif isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from scalars(value)


def test_every_value_of_the_variant_table_is_quoted(variant_file: Path) -> None:
    values = list(scalars(yaml.compose(variant_file.read_text())))
    assert len(values) > 20
    assert [node.value for node in values if node.style != '"'] == []


def test_the_variant_table_has_no_selector(variant_file: Path) -> None:
    lines = variant_file.read_text().splitlines()
    assert [line for line in lines if re.search(r"#\s*\[", line)] == []


def test_the_rows_are_zipped(variant_file: Path) -> None:
    table = yaml.safe_load(variant_file.read_text())
    assert table["zip_keys"] == [
        [
            *("cuda_compiler_version", "c_compiler_version", "cxx_compiler_version", "c_stdlib_version"),
            *("pytorch", "libtorch"),
        ],
    ]
    for keys in table["zip_keys"]:
        assert len({len(table[key]) for key in keys}) == 1, f"{keys} differ in length"


def test_the_version_is_the_same_everywhere(source_root: Path, recipe_file: Path) -> None:
    import torch_sparse_ops

    stated = {
        "pyproject.toml": project(source_root)["version"],
        "python/extforge/pyproject.toml": project(source_root / "python" / "extforge")["version"],
        "recipe/recipe.yaml": yaml.safe_load(recipe_file.read_text())["context"]["version"],
        "torch_sparse_ops.__version__": torch_sparse_ops.__version__,
        "installed torch-sparse-ops": importlib.metadata.version("torch-sparse-ops"),
        "installed extforge": importlib.metadata.version("extforge"),
    }
    assert len(set(stated.values())) == 1, stated


def project(directory: Path) -> dict[str, Any]:
    return dict(tomllib.loads((directory / "pyproject.toml").read_text())["project"])


def test_extforge_needs_the_same_from_conda_and_from_pip(
    source_root: Path, extforge_output: dict[str, Any]
) -> None:
    facts = project(source_root / "python" / "extforge")
    python, *needed = extforge_output["requirements"]["run"]
    assert python == f"python {facts['requires-python']}"
    from_pip = facts["dependencies"] + facts["optional-dependencies"]["channel"]
    assert sorted(needed) == sorted(requirement.partition(";")[0] for requirement in from_pip)


def test_the_operators_need_the_same_torch_from_conda_and_from_pip(
    source_root: Path, operators: dict[str | None, dict[str, Any]]
) -> None:
    facts = project(source_root)
    run = operators["cpu"]["requirements"]["run"]
    assert f"python {facts['requires-python']}" in run
    (torch,) = facts["dependencies"]
    assert torch.replace("torch", "pytorch") in [spec.partition(",")[0] for spec in run]


def test_every_source_filter_finds_something(
    source_root: Path, recipe_file: Path, rendered: list[RenderedVariant]
) -> None:
    for variant in rendered:
        for source in variant.recipe.to_dict()["source"]:
            folder = (recipe_file.parent / source["path"]).resolve()
            assert folder.is_relative_to(source_root)
            barren = [pattern for pattern in source["filter"] if not any(folder.glob(pattern))]
            assert barren == [], f"{identity(variant)}: nothing in {folder} matches"


def test_a_row_is_rendered_by_the_command(source_root: Path, extforge: Callable[..., Any]) -> None:
    result = extforge("build", "recipe", "--render", "--variant", "cuda130", cwd=source_root)
    packages = [(entry["row"], entry["package"].rpartition("-")[0]) for entry in json.loads(result.stdout)]
    assert sorted(packages, key=str) == [("cuda130", "torch-sparse-ops-0.1.0"), (None, "extforge-0.1.0")]
