"""The package file of the operators: what it claims, what it holds, and that every Python and torch takes it.

To try it under more interpreters, each with some torch::

    python3 build-locally.py test -- tests/test_package.py --matrix-python /path/to/python

With ``--variant cuda130`` it is the package for CUDA, which a torch for the CPU takes as well.
"""

import base64
import csv
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from conda_package_streaming.extract import extract

LARGEST = {"cpu": 150_000, "cuda130": 5_000_000}
LIBRARIES = {"cpu": {"libtorch_sparse_ops.so"}}
CUDA_LIBRARIES = {"libtorch_sparse_ops.so", "libtorch_sparse_ops_cuda.so"}
#: The Python files of the package are at home here in a version-independent package.
HOMES = ("site-packages/torch_sparse_ops/", "site-packages/torch_sparse_ops-", "etc/conda/test-files/")


@pytest.fixture(scope="module")
def package(test_channels: list[str]) -> Path:
    """The file from which torch-sparse-ops was installed here."""
    (record,) = Path(sys.prefix, "conda-meta").glob("torch-sparse-ops-*.json")
    facts = json.loads(record.read_text())
    found = [file for channel in test_channels for file in Path(channel).glob(f"*/{facts['fn']}")]
    assert found, f"{facts['fn']} is in none of {test_channels}"
    return found[0]


@pytest.fixture(scope="module")
def unpacked(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's files in a directory, as they are."""
    directory = tmp_path_factory.mktemp("unpacked")
    extract(str(package), str(directory))
    return directory


@pytest.fixture(scope="module")
def index(unpacked: Path) -> dict[str, Any]:
    return dict(json.loads((unpacked / "info" / "index.json").read_text()))


@pytest.fixture(scope="module")
def paths(unpacked: Path) -> list[str]:
    listing = json.loads((unpacked / "info" / "paths.json").read_text())
    return [entry["_path"] for entry in listing["paths"]]


def test_it_is_small(package: Path, row: str) -> None:
    assert package.stat().st_size <= LARGEST[row]


def test_it_claims_a_platform_and_no_python(index: dict[str, Any]) -> None:
    assert (index["subdir"], index["noarch"]) == ("linux-64", "python")
    needed = {spec.split()[0]: spec for spec in index["depends"]}
    assert needed["python"] == "python >=3.10"
    assert "python_abi" not in needed


def test_it_claims_a_range_of_torches(index: dict[str, Any], row: str) -> None:
    needed = {spec for spec in index["depends"] if "torch" in spec}
    flavour = set() if row == "cpu" else {"pytorch * cuda*"}
    assert needed == {"libtorch >=2.10,<3", "pytorch >=2.10,<3"} | flavour


def test_it_claims_the_cuda_of_its_row(index: dict[str, Any], row: str) -> None:
    needed = {spec.partition(" ")[0]: spec for spec in index["depends"] if "cuda" in spec.split()[0]}
    if row == "cpu":
        assert needed == {}
        return
    major = int(row.removeprefix("cuda")) // 10
    assert set(needed) == {"__cuda", "cuda-version", "cuda-cudart", "cuda-cudart_linux-64"}
    assert needed["cuda-version"] == f"cuda-version >={major}.{int(row[4:]) % 10},<{major + 1}"
    assert re.fullmatch(rf"cuda-cudart >={major}\.[\d.]+,<{major + 1}\.0a0", needed["cuda-cudart"])
    assert index["build_number"] >= 200


def test_it_claims_the_libraries_that_it_links(index: dict[str, Any]) -> None:
    assert {"libstdcxx", "libgcc", "__glibc"} <= {spec.split()[0] for spec in index["depends"]}


def test_every_file_has_a_home_in_any_python(paths: list[str]) -> None:
    assert [path for path in paths if not path.startswith(HOMES)] == []


def test_no_file_is_tagged_for_one_python(paths: list[str], unpacked: Path) -> None:
    tagged = re.compile(r"cpython-\d|abi3|cp3\d\d|\.pyc$|python3\.\d")
    assert [path for path in paths if tagged.search(path)] == []
    (wheel,) = (path for path in paths if path.endswith(".dist-info/WHEEL"))
    assert re.search(r"^Tag: py3-none-", (unpacked / wheel).read_text(), re.MULTILINE)


def test_the_record_of_the_wheel_is_true(unpacked: Path) -> None:
    (record,) = unpacked.rglob("*.dist-info/RECORD")
    rows = list(csv.reader(record.read_text().splitlines()))
    listed = {name: digest for name, digest, _ in rows}
    site = record.parents[1]
    held = {file.relative_to(site).as_posix() for file in site.rglob("*") if file.is_file()}
    assert listed.keys() == held
    untrue = [name for name, digest in listed.items() if digest and digest != wheel_digest(site / name)]
    assert set(untrue) <= {f"{record.parent.name}/INSTALLER"}  # the build tool writes conda over pip


def wheel_digest(file: Path) -> str:
    """The digest of a file as a wheel's RECORD writes it."""
    digest = hashlib.sha256(file.read_bytes()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def test_the_libraries_are_those_that_are_tested_here(unpacked: Path, library_path: Path, row: str) -> None:
    libraries = {library.name: library for library in unpacked.rglob("*.so")}
    assert set(libraries) == LIBRARIES.get(row, CUDA_LIBRARIES)
    for name, library in libraries.items():
        assert library.read_bytes() == (library_path.parent / name).read_bytes()


def test_no_file_knows_where_it_was_built(unpacked: Path, source_root: Path) -> None:
    written = rb"host_env_placehold|/build_env/|/\.stage-|file:///|"
    traces = re.compile(written + re.escape(bytes(source_root)))
    knowing = [
        file.relative_to(unpacked).as_posix()
        for file in unpacked.rglob("*")
        if file.is_file() and traces.search(file.read_bytes())
    ]
    assert knowing == []


def test_the_licence_is_in_it(unpacked: Path, source_root: Path) -> None:
    stated = (source_root / "LICENSE").read_text()
    assert (unpacked / "info" / "licenses" / "LICENSE").read_text() == stated


def run_checks(python: str, unpacked: Path) -> str:
    """Let an interpreter with a torch of its own run the recipe's test on the unpacked package."""
    checks = unpacked / "info" / "recipe" / "test_operators.py"
    return run_under(python, unpacked, str(checks))


def test_it_works_from_any_directory(unpacked: Path) -> None:
    assert re.match(r"torch_sparse_ops \S+ works under torch 2\.\d+", run_checks(sys.executable, unpacked))


def run_under(python: str, unpacked: Path, *arguments: str) -> str:
    """Let an interpreter with a torch of its own use the unpacked package."""
    environment = {**os.environ, "PYTHONPATH": str(unpacked / "site-packages")}
    done = subprocess.run([python, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_works_under_another_python_and_torch(matrix_python: str, unpacked: Path) -> None:
    where = "import torch_sparse_ops; print(torch_sparse_ops.__file__)"
    file = run_under(matrix_python, unpacked, "-c", where)
    assert PurePosixPath(file).is_relative_to(unpacked), "another installation was tried"
    print(matrix_python, run_checks(matrix_python, unpacked))


#: What is tried under another torch: the operators, and what meets torch's machinery, which changes often.
MEETS_TORCH = (
    *("ops", "registration", "derivatives", "vmap", "features", "reduction", "losses", "topk"),
    *("sparsity", "conversion"),
)


@pytest.mark.parametrize("name", MEETS_TORCH)
def test_the_suite_passes_under_another_python_and_torch(
    matrix_python: str, unpacked: Path, source_root: Path, name: str
) -> None:
    if subprocess.run([matrix_python, "-c", "import pytest"], capture_output=True).returncode:
        pytest.skip(f"{matrix_python} has no pytest: install it there")
    suite = str(source_root / "tests" / f"test_{name}.py")
    told = run_under(matrix_python, unpacked, "-m", "pytest", "-q", "-p", "no:cacheprovider", suite)
    print(told.splitlines()[-1])
