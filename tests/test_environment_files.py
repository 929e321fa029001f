"""The environment files: every name exists, and the local channels solve them."""

import asyncio
import importlib.util
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
import rattler
import yaml
from extforge.virtual import solving_for_cuda

#: What no wheel offers and the bootstrap channel therefore lacks: package and feedstock of conda-forge.
ONLY_ON_CONDA_FORGE = {"conda-build": "conda-build-feedstock"}
FILES = ("environment.yml", "environment-dev.yml")


def read(source_root: Path, file: str) -> dict[str, Any]:
    return dict(yaml.safe_load((source_root / file).read_text()))


def local_directory(channel: str) -> Path | None:
    url = urlsplit(channel)
    directory = Path(url2pathname(url.path) if url.scheme == "file" else channel)
    return directory if directory.is_dir() else None


@pytest.fixture(scope="module")
def offered(test_channels: list[str]) -> set[str]:
    """The names of all packages in the channels, which lie here."""
    directories = [directory for channel in test_channels if (directory := local_directory(channel))]
    if len(directories) < len(test_channels):
        pytest.skip(f"not all channels are directories: {test_channels}")
    indexes = [json.loads(file.read_text()) for d in directories for file in d.glob("*/repodata.json")]
    return {entry["name"] for index in indexes for entry in index["packages.conda"].values()}


@pytest.mark.parametrize("file", FILES)
def test_packages_come_from_conda_forge(source_root: Path, file: str) -> None:
    assert read(source_root, file)["channels"] == ["conda-forge"]


@pytest.mark.parametrize("file", FILES)
def test_every_package_is_named_once_and_without_a_version(source_root: Path, file: str) -> None:
    specs = read(source_root, file)["dependencies"]
    assert sorted(set(specs)) == sorted(specs)
    names = [rattler.MatchSpec(spec).name.normalized for spec in specs]
    assert names == specs, "versions are pinned in conda_build_config.yaml alone"


@pytest.mark.parametrize("file", FILES)
def test_every_name_is_offered_or_known_on_conda_forge(
    source_root: Path, file: str, offered: set[str]
) -> None:
    missing = set(read(source_root, file)["dependencies"]) - offered
    assert missing <= ONLY_ON_CONDA_FORGE.keys()


def test_the_table_of_exceptions_is_that_of_the_build_command(source_root: Path, offered: set[str]) -> None:
    spec = importlib.util.spec_from_file_location("build_locally", source_root / "build-locally.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert set(module.NOT_IN_BOOTSTRAP) == ONLY_ON_CONDA_FORGE.keys()
    assert ONLY_ON_CONDA_FORGE.keys() & offered == set(), "the channel offers it now"


@pytest.mark.parametrize("file", FILES)
def test_the_channels_solve_it(
    source_root: Path, test_channels: list[str], file: str, offered: set[str], row: str
) -> None:
    specs = [spec for spec in read(source_root, file)["dependencies"] if spec not in ONLY_ON_CONDA_FORGE]
    with solving_for_cuda(None if row == "cpu" else "13.0"):
        records = asyncio.run(
            rattler.solve(
                test_channels,
                specs,
                platforms=["linux-64", "noarch"],
                virtual_packages=rattler.VirtualPackage.detect(rattler.VirtualPackageOverrides.from_env()),
            )
        )
    solved = {record.name.normalized: record for record in records}
    assert set(specs) <= solved.keys()
    assert "pytorch" in solved


def test_users_get_the_package_that_was_built(source_root: Path) -> None:
    assert "torch-sparse-ops" in read(source_root, "environment.yml")["dependencies"]


def test_developers_get_what_the_recipe_builds_with(source_root: Path) -> None:
    recipe = read(source_root, "recipe/recipe.yaml")
    developers = set(read(source_root, "environment-dev.yml")["dependencies"])
    needed = {
        spec.split()[0]
        for output in recipe["outputs"]
        for environment in ("build", "host")
        for spec in output["requirements"].get(environment, [])
        if isinstance(spec, str) and not spec.startswith("${{")
    }
    assert {"cmake", "ninja", "scikit-build-core"} <= needed
    assert needed <= developers
