"""A row for CUDA is built on a machine without a driver, and audited for its architectures."""

from pathlib import Path

import pytest

pytest.importorskip("extforge", reason="extforge is not installed here")

from extforge.build.rendering import find_recipe, newest_cuda, render, row_name
from extforge.channel.archive import Entry, PlannedPackage, write_package
from extforge.channels import index_channel
from extforge.virtual import driver_version

from .conftest import Bench

NEEDY = """
    package: {name: needy, version: "1.0"}
    source: {path: ../source}
    build:
      noarch: generic
      string: ${{ "cuda" if cuda_compiler_version != "None" else "cpu" }}_h${{ hash }}_0
      script: mkdir -p $PREFIX/share/needy && cp data/* $PREFIX/share/needy/
    requirements:
      host:
        - if: cuda_compiler_version != "None"
          then: runtime
    about: {license: MIT, license_file: data/words.txt}
"""
ROWS = 'cuda_compiler_version: ["None", "9.9", "13.0"]\n'


@pytest.fixture
def needy(bench: Bench, tmp_path: Path) -> Bench:
    """A recipe whose CUDA rows need a package that needs a driver."""
    package = PlannedPackage(
        *("runtime", "1.0", "h0_0", "noarch", "needs a driver", "MIT"),
        entries=lambda: iter([Entry("share/runtime.txt", text="x")]),
        depends=("__cuda >=13",),
        noarch="generic",
    )
    channel = tmp_path / "needy channel"
    write_package(package, channel / "noarch")
    index_channel(channel)
    bench.channel = channel
    bench.write("recipe/recipe.yaml", NEEDY)
    bench.write("recipe/conda_build_config.yaml", ROWS)
    return bench


def test_the_newest_cuda_is_that_of_the_rows(needy: Bench) -> None:
    variants = render(find_recipe(needy.root / "recipe"), [])
    assert newest_cuda(variants) == "13.0"
    assert newest_cuda([variant for variant in variants if row_name(variant) == "cpu"]) is None


def test_a_driver_is_assumed_and_told(needy: Bench) -> None:
    if driver_version() is not None:
        pytest.skip("this machine has a driver")
    result = needy.build("--variant", "cuda130")
    assert result.returncode == 0, result.stderr
    assert "no driver for CUDA 13.0 here: packages are chosen as if there were" in result.stderr


def test_no_driver_is_assumed_for_the_cpu(needy: Bench) -> None:
    result = needy.build("--variant", "cpu")
    assert result.returncode == 0, result.stderr
    assert "no driver" not in result.stderr


def test_a_user_who_says_that_there_is_none_is_believed(needy: Bench) -> None:
    result = needy.build("--variant", "cuda130", CONDA_OVERRIDE_CUDA="")
    assert result.returncode == 1
    assert "Failed to resolve dependencies" in result.stderr
    assert "no driver" not in result.stderr


def test_a_list_of_architectures_that_is_none_is_refused(needy: Bench) -> None:
    result = needy.build("--variant", "cpu", "--archs", "hopper")
    assert result.returncode == 2
    assert "architecture 'hopper' in 'hopper' is not valid; valid are 9.0, 9.0+PTX" in result.stderr
