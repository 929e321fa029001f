"""Small recipes and an output channel, on which ``extforge build`` is tried."""

import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

pytest.importorskip("extforge", reason="extforge is not installed here")

from conda_package_streaming.package_streaming import stream_conda_component
from extforge.build.building import find_unchanged
from extforge.build.inputs import hash_inputs
from extforge.build.rendering import find_recipe, render
from extforge.channels import index_channel

Extforge = Callable[..., subprocess.CompletedProcess[str]]

HELLO = """
    package: {name: hello, version: "1.0"}
    source:
      path: ../source
    build:
      noarch: generic
      script: mkdir -p $PREFIX/share/hello && cp -R data/* $PREFIX/share/hello/
    tests:
      - script: test -f $PREFIX/share/hello/words.txt
    about: {license: MIT, license_file: data/words.txt}
"""
PAIR = """
    recipe: {name: pair, version: "1.0"}
    outputs:
      - package: {name: pair-data}
        source: {path: ../source}
        build:
          noarch: generic
          script: mkdir -p $PREFIX/share && cp data/words.txt $PREFIX/share/
      - package: {name: pair-user}
        source: {path: ../user}
        build:
          noarch: generic
          script: mkdir -p $PREFIX/share && cp own.txt $PREFIX/share/
        requirements: {run: [pair-data]}
        tests:
          - script: test -f $PREFIX/share/words.txt
"""


@pytest.fixture(scope="session")
def empty_channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel without packages."""
    directory = tmp_path_factory.mktemp("empty-channel")
    index_channel(directory)
    return directory


class Bench:
    """A recipe, its sources, and an output channel in a directory of one test."""

    def __init__(self, root: Path, channel: Path, extforge: Extforge) -> None:
        self.root, self.channel, self.extforge = root, channel, extforge
        self.output = root / "output"
        self.write("source/data/words.txt", "one\n")
        self.write("user/own.txt", "own\n")

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
        return file

    def command(self, *options: object) -> list[object]:
        return ["build", self.root / "recipe", "--channel", self.channel, "--output", self.output, *options]

    def build(self, *options: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.extforge(*self.command(*options), cwd=self.root, **variables)

    def built(self, *options: object, **variables: str) -> list[str]:
        """Build, insist that it works, and return the names of the packages printed."""
        result = self.build(*options, **variables)
        assert result.returncode == 0, result.stderr
        return [Path(line).name for line in result.stdout.splitlines()]

    def kept(self) -> Path | None:
        """Return the package that ``--skip-unchanged`` would not build again."""
        (variant,) = render(find_recipe(self.root / "recipe"), [])
        inputs = hash_inputs(variant, [self.channel.as_uri()], self.output)
        return find_unchanged(variant, inputs, self.output)

    def files(self) -> dict[str, bytes]:
        """Everything in the output channel that an installer may read."""
        found = sorted(path for path in self.output.glob("*/*") if not path.parent.name.startswith("."))
        return {path.relative_to(self.output).as_posix(): path.read_bytes() for path in found}

    def index(self) -> dict[str, str]:
        """File name to hash, as the index has it."""
        packages: dict[str, str] = {}
        for repodata in self.output.glob("*/repodata.json"):
            entries = json.loads(repodata.read_text())["packages.conda"]
            packages |= {name: entry["sha256"] for name, entry in entries.items()}
        return packages

    def packages(self) -> dict[str, str]:
        """File name to hash, as the packages are."""
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in self.output.glob("*/*.conda")}

    def leftovers(self) -> list[str]:
        """What only an unfinished run may have."""
        found = [*self.output.glob(".stage-*"), *self.output.glob("**/.partial-*")]
        return [str(path) for path in [*found, self.output / ".extforge" / "stage"] if path.exists()]


@pytest.fixture
def bench(tmp_path: Path, empty_channel: Path, extforge: Extforge) -> Bench:
    bench = Bench(tmp_path, empty_channel, extforge)
    bench.write("recipe/recipe.yaml", HELLO)
    return bench


def content(package: Path) -> dict[str, bytes]:
    """The files that a package installs; links are left out."""
    return {
        member.name: extracted.read()
        for tar, member in stream_conda_component(str(package), component="pkg")
        if member.isreg() and (extracted := tar.extractfile(member))
    }


def info(package: Path, name: str) -> dict[str, object]:
    for tar, member in stream_conda_component(str(package), component="info"):
        if member.name == f"info/{name}" and (extracted := tar.extractfile(member)):
            return dict(json.load(extracted))
    raise AssertionError(f"no info/{name} in {package}")
