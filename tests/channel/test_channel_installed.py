"""What the small channel installs works where it was installed, as an installer put it there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from extforge.install import install
from packaging.version import Version

from .conftest import Small, run


@pytest.mark.parametrize("script", ["greeter", "greeter-script", "native", "native-script"])
def test_script_runs(small_prefix: Path, script: str) -> None:
    done = run(small_prefix / "bin" / script, env={"PATH": "/usr/bin:/bin"})
    assert (done.returncode, done.stdout) == (0, f"hello from {script.partition('-')[0]}\n"), done.stderr


def test_scripts_run_below_a_path_with_blanks(small: Small, tmp_path: Path) -> None:
    prefix = tmp_path / "my environment"
    install(prefix, ["python", "native"], [small.channel.as_uri()])
    for script in ("greeter", "greeter-script", "native", "native-script"):
        done = run(prefix / "bin" / script, env={"PATH": f"{prefix / 'bin'}:/usr/bin:/bin"})
        assert (done.returncode, done.stdout) == (0, f"hello from {script.partition('-')[0]}\n"), done.stderr


def test_pip_sees_a_consistent_environment(small_prefix: Path) -> None:
    done = run(small_prefix / "bin" / "pip", "check")
    assert (done.returncode, done.stdout) == (0, "No broken requirements found.\n")


def test_pip_leaves_packages_of_conda_alone(small_prefix: Path) -> None:
    done = run(small_prefix / "bin" / "pip", "uninstall", "--yes", "greeter")
    assert done.returncode == 1
    assert "The package was installed by conda" in done.stderr


def test_installed_links_lead_somewhere(small_prefix: Path) -> None:
    links = [path for path in small_prefix.rglob("*") if path.is_symlink()]
    assert {"python", "python3"} <= {path.name for path in links}
    assert [path for path in links if not path.exists()] == []


def test_records_tell_of_the_channel(small: Small, small_prefix: Path) -> None:
    records = {record["name"]: record for record in map(read_json, small_prefix.glob("conda-meta/*.json"))}
    assert {record["channel"].rstrip("/") for record in records.values()} == {small.channel.as_uri()}
    assert Version(records["greeter"]["version"]) == Version("1.0")


def read_json(path: Path) -> dict[str, str]:
    return dict(json.loads(path.read_text()))
