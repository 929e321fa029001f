"""All that the recipe makes: the audit finds nothing, and another build gives the same bytes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("extforge", reason="extforge is not installed here")

from conda_package_streaming.package_streaming import stream_conda_component
from extforge.audit import Options, audit_packages
from extforge.audit.comparing import compare_packages
from extforge.build.normalising import normalise
from extforge.channels import resolve_channel

NO_SOURCE = shutil.ignore_patterns(".*", "__pycache__")


@pytest.fixture(scope="module")
def outputs(test_channels: list[str]) -> dict[str, Path]:
    """File name to package, of those that are installed here; other rows may lie in the same channel."""
    found = {}
    for name in ("torch-sparse-ops", "extforge"):
        (record,) = Path(sys.prefix, "conda-meta").glob(f"{name}-*.json")
        file = json.loads(record.read_text())["fn"]
        (found[file],) = Path(test_channels[0]).glob(f"*/{file}")
    return found


def test_the_audit_finds_nothing(
    outputs: dict[str, Path], row: str, test_channels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a warning, or something that it could not verify."""
    if row != "cpu":
        monkeypatch.setenv("CONDA_OVERRIDE_CUDA", f"{row[4:-1]}.{row[-1]}")
    channels = tuple(map(resolve_channel, test_channels))
    report = audit_packages(list(outputs.values()), Options(channels=channels))
    assert report.findings == ()


@pytest.mark.slow
def test_a_build_elsewhere_and_later_gives_the_same_bytes(
    outputs: dict[str, Path], row: str, test_channels: list[str], source_root: Path, tmp_path: Path
) -> None:
    sources = shutil.copytree(source_root, tmp_path / "a" / "copy", ignore=NO_SOURCE)
    channels = [word for channel in test_channels[1:] for word in ("--channel", channel)]
    options = ["--variant", row, "--output", str(tmp_path / "output"), *channels]
    command = [sys.executable, "-m", "extforge", "build", "recipe", *options]
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = {package.name: package for package in map(Path, done.stdout.splitlines())}
    assert built.keys() == outputs.keys()
    for name, package in outputs.items():
        # The copy is no repository, and what was kept is dated as when it was built first.
        dated = normalise(built[name], tmp_path / name, date_of(package))
        assert [difference.line for difference in compare_packages(dated, package)] == []


def date_of(package: Path) -> int:
    """The date of a package, in seconds since 1970."""
    for tar, member in stream_conda_component(str(package), component="info"):
        if member.name == "info/index.json" and (content := tar.extractfile(member)):
            return int(json.load(content)["timestamp"]) // 1000
    raise AssertionError(f"no info/index.json in {package}")
