"""The table agrees with the other places that name versions and packages, and its channel holds together."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import runpy
import sys
from pathlib import Path

import pytest
import yaml
from extforge.channel import assembled, catalogue, catalogue_cuda, compilers
from extforge.channel.archive import PLACEHOLDER
from extforge.channel.make import STAMP
from extforge.install import read_environment_file, solve
from packaging.utils import canonicalize_name
from packaging.version import Version
from rattler import MatchSpec

from .conftest import read_package, run

#: Projects whose package has another name on conda-forge.
RENAMED = {"tzdata": "python-tzdata", "matplotlib": "matplotlib-base", "librt": "python-librt"}
#: Packages of the channel that no row of the catalogue names, and the outputs of the recipe.
OTHERS = {"python", "python_abi", "libgcc", "libstdcxx", "sysroot_linux-64"}
OUTPUTS = {"torch-sparse-ops", "extforge"}

#: Programs that an environment of the whole channel offers: the command, and what it says.
PROGRAMS = [
    ("python --version", "Python 3"),
    ("pip --version", "pip "),
    ("cmake --version", "cmake version"),
    ("ninja --version", "1."),
    ("patchelf --version", "patchelf"),
    ("torchrun --help", "usage: torchrun"),
    ("f2py -v", "2."),
    ("pytest --version", "pytest"),
    ("ruff --version", "ruff"),
    ("mypy --version", "mypy"),
    ("pybind11-config --includes", "-I"),
    ("x86_64-conda-linux-gnu-c++ --version", "g++"),
    ("x86_64-conda-linux-gnu-ld --version", "GNU ld"),
    ("readelf.py --version", "readelf.py"),
]


@pytest.fixture(scope="module")
def variants(source_root: Path) -> dict[str, list[str]]:
    return dict(yaml.safe_load((source_root / "conda_build_config.yaml").read_text()))


@pytest.fixture(scope="module")
def whole_channel() -> Path:
    """The channel that ``build-locally.py test`` has made of the whole catalogue."""
    for place in os.environ.get("TEST_CHANNELS", "").splitlines():
        if (Path(place) / STAMP).exists():
            return Path(place)
    pytest.skip("TEST_CHANNELS names no bootstrap channel; `build-locally.py test` makes and names one")


@pytest.fixture(scope="module")
def whole_prefix(whole_channel: Path) -> Path:
    """The environment of these tests, if it came from that channel."""
    records = [json.loads(path.read_text()) for path in Path(sys.prefix).glob("conda-meta/python-3*.json")]
    if not any(record["channel"].rstrip("/") == whole_channel.resolve().as_uri() for record in records):
        pytest.skip(f"the tests run in {sys.prefix}, which was not installed from {whole_channel}")
    return Path(sys.prefix)


def test_names_are_unique_and_conda_forges() -> None:
    names = [row.name for row in (*catalogue.ROWS, *compilers.ROWS, *assembled.ROWS)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9_.-]+", name) for name in names)
    for row in catalogue.ROWS:
        if row.wheel_project != "torch":
            project = canonicalize_name(row.wheel_project)
            assert canonicalize_name(row.name) == RENAMED.get(project, project)


def test_every_file_of_a_wheel_meets_a_rule() -> None:
    assert {row.name for row in catalogue.ROWS if row.rules[-1].pattern != "*"} == set()


@pytest.mark.parametrize(
    ("cuda", "torch"), [("None", catalogue.TORCH), (catalogue_cuda.VERSION, catalogue_cuda.TORCH)]
)
def test_torch_is_the_one_that_a_row_builds_against(
    variants: dict[str, list[str]], cuda: str, torch: str
) -> None:
    row = variants["cuda_compiler_version"].index(cuda)
    minor = ".".join(map(str, Version(torch).release[:2]))
    assert variants["pytorch"][row] == variants["libtorch"][row] == minor


def test_torch_of_the_cpu_row_is_a_build_for_the_cpu() -> None:
    assert Version(catalogue.TORCH).local == "cpu"


def test_torch_exports_a_pin_to_its_minor_version() -> None:
    libtorch, pytorch = catalogue.torch_rows("2.9.3+cpu", "cpu_x_")
    assert libtorch.run_exports == ("libtorch >=2.9.3,<2.10.0a0",)
    assert pytorch.run_exports == ("libtorch >=2.9.3,<2.10.0a0", "pytorch >=2.9.3,<2.10.0a0")
    assert "libtorch 2.9.3 cpu_x_*" in pytorch.depends


def test_compilers_are_those_that_the_cpu_row_asks_for(variants: dict[str, list[str]]) -> None:
    row = variants["cuda_compiler_version"].index("None")
    versions = {compiler.name: compiler.version for compiler in compilers.ROWS}
    for key, name in (("c_compiler_version", "gcc_linux-64"), ("cxx_compiler_version", "gxx_linux-64")):
        assert versions[name].split(".")[0] == variants[key][row]
    assert variants["c_stdlib_version"][row] in compilers.SYSROOT_VERSIONS


def test_tools_of_build_locally_are_those_of_the_channel(source_root: Path) -> None:
    tools = runpy.run_path(str(source_root / "build-locally.py"))["TOOLS"]
    pins = {canonicalize_name(row.wheel_project): row.version for row in catalogue.ROWS}
    pinned = {canonicalize_name(name): version for name, version in (tool.split("==") for tool in tools)}
    assert {name: pins.get(name) for name in pinned} == pinned


@pytest.mark.parametrize("file", ["environment.yml", "environment-dev.yml"])
def test_environment_files_name_packages_of_the_channel(source_root: Path, file: str) -> None:
    absent = set(runpy.run_path(str(source_root / "build-locally.py"))["NOT_IN_BOOTSTRAP"])
    offered = {row.name for row in (*catalogue.ROWS, *compilers.ROWS, *assembled.ROWS)} | OTHERS | OUTPUTS
    specs = read_environment_file(source_root / file)
    assert {str(MatchSpec(spec).name.normalized) for spec in specs} - offered <= absent


def test_all_packages_can_be_installed_at_once(whole_channel: Path) -> None:
    indexes = [json.loads(path.read_text()) for path in whole_channel.glob("*/repodata.json")]
    packages = [record for index in indexes for record in index["packages.conda"].values()]
    for package in packages:
        for spec in (*package["depends"], *package.get("constrains", ())):
            MatchSpec(spec, strict=True)
    names = {package["name"] for package in packages}
    records = asyncio.run(solve(sorted(names), [whole_channel.resolve().as_uri()]))
    assert {record.name.normalized for record in records} == names


def test_index_and_packages_are_true(whole_channel: Path) -> None:
    for index in whole_channel.glob("*/repodata.json"):
        for name, record in json.loads(index.read_text())["packages.conda"].items():
            path = index.parent / name
            assert hashlib.sha256(path.read_bytes()).hexdigest() == record["sha256"], name
            if record["size"] < 20_000_000:
                check_paths(path)


def check_paths(package: Path) -> None:
    contents = read_package(package)
    assert sorted(contents.paths) == sorted(contents.members), package
    for name, content in contents.content.items():
        record = contents.paths[name]
        assert record["sha256"] == hashlib.sha256(content).hexdigest(), (package, name)
        assert (PLACEHOLDER.encode() in content) == ("prefix_placeholder" in record), (package, name)


@pytest.mark.parametrize(("command", "answer"), PROGRAMS, ids=[command.split()[0] for command, _ in PROGRAMS])
def test_program_runs(whole_prefix: Path, command: str, answer: str) -> None:
    name, *arguments = command.split()
    done = run(whole_prefix / "bin" / name, *arguments, env={"PATH": f"{whole_prefix / 'bin'}:/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(answer)


def test_pip_finds_every_requirement(whole_prefix: Path) -> None:
    done = run(whole_prefix / "bin" / "pip", "check")
    assert (done.returncode, done.stdout) == (0, "No broken requirements found.\n")


def test_no_link_leads_nowhere(whole_prefix: Path) -> None:
    assert [path for path in whole_prefix.rglob("*") if path.is_symlink() and not path.exists()] == []
