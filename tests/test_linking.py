"""rattler-build's check of what the operator libraries link.

It checks what it relocates, and the recipe leaves the run paths to CMake: the package itself goes unchecked.
So the installed libraries are packed here once more, under the recipe's requirements, and relocated.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("extforge", reason="extforge is not installed here")

from extforge.build.process import build_in_process
from extforge.build.progress import Progress
from extforge.build.rendering import render, row_name
from extforge.channels import resolve_channel
from extforge.errors import FailedCommand
from extforge.virtual import solving_for_cuda

pytestmark = pytest.mark.slow

COPY = ["mkdir -p $SP_DIR/torch_sparse_ops", "cp *.so $SP_DIR/torch_sparse_ops/"]


@pytest.fixture
def pack(
    tmp_path: Path, source_root: Path, library_path: Path, row: str, test_channels: list[str]
) -> Callable[[Callable[[list[Any]], object]], None]:
    """Pack the installed libraries with the recipe's requirements, those of the run changed."""
    recipe = yaml.safe_load((source_root / "recipe" / "recipe.yaml").read_text())
    output = recipe["outputs"][0]
    for library in library_path.parent.glob("*.so"):
        shutil.copy(library, tmp_path)
    output["package"]["name"] = "linking"  # under its own name, a cache would give the real one
    output["source"] = {"path": ".", "filter": ["*.so"]}
    output["build"]["script"] = COPY
    output["build"]["dynamic_linking"].pop("binary_relocation")
    recipe["outputs"] = [{key: output[key] for key in ("package", "source", "build", "requirements")}]

    def run(change: Callable[[list[Any]], object]) -> None:
        change(output["requirements"]["run"])
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
        rendered = render(tmp_path / "recipe.yaml", [source_root / "conda_build_config.yaml"])
        (variant,) = (variant for variant in rendered if row_name(variant) == row)
        channels = [resolve_channel(channel) for channel in test_channels]
        (tmp_path / "stage").mkdir()
        with solving_for_cuda(variant.variant["cuda_compiler_version"].replace("None", "") or None):
            build_in_process(variant, tmp_path / "stage", channels, Progress("linking", tmp_path / "log"))

    return run


def test_what_is_linked_is_required_and_what_is_required_is_linked(pack: Callable[..., None]) -> None:
    pack(lambda run: None)


def test_a_torch_that_is_not_required_is_found_out(pack: Callable[..., None]) -> None:
    with pytest.raises(FailedCommand, match=r"Overlinking against: lib/libtorch_\w+\.so"):
        pack(lambda run: run.remove("libtorch >=2.10,<3"))


def test_a_library_that_nothing_links_is_found_out(pack: Callable[..., None], row: str) -> None:
    if row != "cpu":
        pytest.skip("with CUDA, the check would fail on what a -dev package exports: see the recipe")
    with pytest.raises(FailedCommand, match="Overdepending against: libgomp"):
        pack(lambda run: run.append("libgomp"))


def test_a_cuda_runtime_that_is_not_required_is_found_out(pack: Callable[..., None], row: str) -> None:
    if row == "cpu":
        pytest.skip("the CPU's library links no CUDA runtime")
    with pytest.raises(FailedCommand, match=r"Overlinking against: targets/x86_64-linux/lib/libcudart\.so"):
        pack(lambda run: run[-1]["then"].remove("cuda-cudart_${{ target_platform }}"))
