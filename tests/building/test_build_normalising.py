"""Two builds of the same sources are byte-equal; where a recipe prevents that, what differs is named."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from conda_package_streaming.package_streaming import stream_conda_component
from extforge.build.normalising import (
    normalise,
    settle_about,
    settle_index,
    settle_rendered_recipe,
    source_date,
)
from extforge.channel.archive import TIMESTAMP
from extforge.errors import BadInputError

from .conftest import HELLO, PAIR, Bench, Extforge, content, info

SCRIPT = "script: mkdir -p $PREFIX/share/hello && cp -R data/* $PREFIX/share/hello/"
#: What a script may do beside its work, and how the difference that it makes is described for either build.
PLANTED = {
    "time": ("date +%s.%N > $PREFIX/share/hello/planted", r"file 644, 21 bytes, from byte \d+: b'[\d.\\n]+'"),
    "directory": ("pwd > $PREFIX/share/hello/planted", r"file 644, \d+ bytes, from byte \d+: b'.+'"),
    "name": ("touch $PREFIX/share/hello/planted-$(date +%N)", r"(absent|file 644, 0 bytes)"),
    "mode": (
        "cd $PREFIX/share/hello && touch planted && case $PWD in */second/*) chmod +x planted;; esac",
        r"file (644|755), 0 bytes",
    ),
}


def plant(bench: Bench, what: str) -> None:
    bench.write("recipe/recipe.yaml", HELLO.replace(SCRIPT, f"{SCRIPT} && {what}"))


def test_builds_at_other_times_in_other_directories_are_byte_equal(
    bench: Bench, tmp_path: Path, empty_channel: Path, extforge: Extforge
) -> None:
    other = Bench(tmp_path / "another" / "directory", empty_channel, extforge)
    other.write("recipe/recipe.yaml", HELLO)
    bench.built()
    time.sleep(2)  # the resolution of times in a zip archive
    other.built()
    assert other.packages() == bench.packages()
    assert len(bench.packages()) == 1


def test_a_check_that_succeeds_publishes(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", PAIR)
    result = bench.build("--check")
    assert result.returncode == 0, result.stderr
    equal = re.findall(r"^(\S+): two builds are byte-equal$", result.stderr, re.MULTILINE)
    assert [Path(line).stem for line in result.stdout.splitlines()] == equal
    assert len(equal) == 2
    assert bench.index() == bench.packages()
    assert bench.leftovers() == []


@pytest.mark.parametrize("what", PLANTED)
def test_a_check_that_fails_names_what_differs_and_publishes_nothing(bench: Bench, what: str) -> None:
    script, seen = PLANTED[what]
    plant(bench, script)
    result = bench.build("--check")
    assert result.returncode == 1
    told = result.stderr.partition("extforge build: two builds of the same sources differ:\n")[2]
    listed = [line.strip().split(": ", 2) for line in told.splitlines()]
    assert {package for package, _, _ in listed} == {"hello-1.0-h4616a5c_0"}
    planted = [difference for _, path, difference in listed if path.startswith("share/hello/planted")]
    assert len(planted) == (2 if what == "name" else 1)
    assert all(re.fullmatch(rf"{seen} \| {seen}", difference) for difference in planted), planted
    others = {path for _, path, _ in listed if not path.startswith("share/hello/planted")}
    assert others <= {"info/paths.json"}, "more is said to differ than what was planted"
    assert bench.packages() == {}
    assert bench.leftovers() == []


def test_a_check_builds_what_has_not_changed(bench: Bench) -> None:
    result = bench.build("--check", "--skip-unchanged")
    assert result.returncode == 2
    assert "--skip-unchanged: not allowed with argument --check" in result.stderr


def test_what_is_installed_stays_as_it_was(bench: Bench, tmp_path: Path) -> None:
    long = "x" * 120
    script = f"cd $PREFIX/share/hello && chmod +x words.txt && ln -s words.txt link && echo {long} > {long}"
    recipe = HELLO.replace(SCRIPT, f"{SCRIPT} && {script}").replace("noarch: generic", "number: 0")
    bench.write("recipe/recipe.yaml", recipe)
    bench.built()
    (package,) = bench.output.glob("linux-64/*.conda")
    members = {m.name: m for _, m in stream_conda_component(str(package), component="pkg")}
    assert content(package)[f"share/hello/{long}"] == f"{long}\n".encode()
    assert members["share/hello/words.txt"].mode & 0o111
    assert members["share/hello/link"].linkname == "words.txt"
    again = normalise(package, tmp_path / "again", TIMESTAMP)
    assert again.read_bytes() == package.read_bytes()


def test_no_note_of_the_build_remains(bench: Bench) -> None:
    (name,) = bench.built()
    package = bench.output / "noarch" / name
    for component in ("pkg", "info"):
        for tar, member in stream_conda_component(str(package), component=component):
            assert (member.mtime, member.uid, member.uname) == (TIMESTAMP, 0, "")
            extracted = tar.extractfile(member)
            assert extracted is not None
            assert str(bench.root).encode() not in extracted.read(), member.name
    assert info(package, "index.json")["timestamp"] == TIMESTAMP * 1000


def test_a_normalised_package_is_installed_and_audited(bench: Bench, tmp_path: Path) -> None:
    bench.built()
    (package,) = bench.output.glob("noarch/*.conda")
    installed = bench.extforge("install", "--prefix", tmp_path / "env", "hello", "--channel", bench.output)
    assert installed.returncode == 0, installed.stderr
    assert (tmp_path / "env" / "share" / "hello" / "words.txt").read_text() == "one\n"
    audited = bench.extforge("audit", "--strict", package)
    assert (audited.returncode, audited.stdout) == (0, f"{package.name}: OK\n")


def commit(directory: Path, date: int) -> None:
    """Make a repository of a directory; its one commit has this date."""
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(directory)]
    environment = {**os.environ, "GIT_COMMITTER_DATE": f"{date} +0200"}
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True, env=environment)


def test_the_date_is_that_of_the_last_commit(bench: Bench, tmp_path: Path) -> None:
    commit(bench.root, 1_600_000_000)
    result = bench.build()
    assert "packages are dated 2020-09-13 12:26:40 UTC (the last commit)\n" in result.stderr
    (package,) = bench.output.glob("noarch/*.conda")
    assert info(package, "index.json")["timestamp"] == 1_600_000_000_000
    subprocess.run(["git", "clone", "-q", "--depth=1", bench.root.as_uri(), tmp_path / "clone"], check=True)
    clone = Bench(tmp_path / "clone", bench.channel, bench.extforge)
    clone.built()
    assert clone.packages() == bench.packages()


def test_without_a_repository_the_date_is_fixed(tmp_path: Path) -> None:
    date = source_date(tmp_path)
    assert date.seconds == TIMESTAMP
    fixed = f"2020-01-01 00:00:00 UTC (fixed, because git knows of no commit in {tmp_path}: fatal: "
    assert str(date).startswith(fixed), "the last words are git's own"


def test_without_git_the_date_is_fixed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert source_date(tmp_path) == (TIMESTAMP, "fixed, because there is no git to ask for the last commit")


def test_the_date_is_the_one_that_was_given(bench: Bench) -> None:
    bench.built("--skip-unchanged", SOURCE_DATE_EPOCH="1700000000")
    (package,) = bench.output.glob("noarch/*.conda")
    assert info(package, "index.json")["timestamp"] == 1_700_000_000_000
    result = bench.build("--skip-unchanged", SOURCE_DATE_EPOCH="1800000000")
    assert "unchanged" not in result.stderr
    assert info(package, "index.json")["timestamp"] == 1_800_000_000_000


def test_a_date_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for wrong in ("", "yesterday", "-1", "1700000000.5", "17000000000"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        with pytest.raises(BadInputError, match=f"SOURCE_DATE_EPOCH is {wrong!r}; valid: seconds since 1970"):
            source_date(tmp_path)


def test_the_index_lists_requirements_in_alphabetical_order() -> None:
    index = {"name": "a", "depends": ["b", "a >=1"], "constrains": ["d", "c"], "timestamp": 5}
    assert json.loads(settle_index(json.dumps(index).encode(), 7)) == {
        "name": "a", "depends": ["a >=1", "b"], "constrains": ["c", "d"], "timestamp": 7000
    }  # fmt: skip


def test_channels_of_this_machine_are_not_told() -> None:
    about = {"summary": "ä", "channels": ["file:///home/me/channel", "https://conda.anaconda.org/conda-forge"]}
    settled = settle_about(json.dumps(about).encode(), 0)
    assert json.loads(settled) == {**about, "channels": ["https://conda.anaconda.org/conda-forge"]}


RENDERED = """
recipe:
  context: {directories: kept, version: '1.0', answer: 'yes', mode: 0755}
build_configuration:
  host_platform: {platform: linux-64, virtual_packages: [__linux=6.1=0]}
  variant: {python: '3.10'}
  directories: {host_prefix: /tmp/x}
  channels: ['file:///home/me/channel', 'https://conda.anaconda.org/conda-forge']
  timestamp: 2026-11-30T15:45:51Z
finalized_dependencies:
  host:
    specs: [{spec: b, from: build}, {spec: a, from: build}]
    resolved:
    - {name: b, version: '1.10', url: file:///home/me/channel/b.conda, depends: [z, y]}
    - {name: a, version: '2', url: 'https://conda.anaconda.org/a.conda', timestamp: 5}
"""
SETTLED = """
recipe:
  context: {directories: kept, version: '1.0', answer: 'yes', mode: 0755}
build_configuration:
  host_platform: {platform: linux-64}
  variant: {python: '3.10'}
  channels: ['https://conda.anaconda.org/conda-forge']
finalized_dependencies:
  host:
    specs: [{spec: a, from: build}, {spec: b, from: build}]
    resolved:
    - {name: a, version: '2', url: 'https://conda.anaconda.org/a.conda'}
    - {name: b, version: '1.10', depends: [y, z]}
"""


def test_the_rendered_recipe_keeps_what_is_true_of_every_build() -> None:
    settled = settle_rendered_recipe(RENDERED.encode(), 0).decode()
    assert yaml.safe_load(settled) == yaml.safe_load(SETTLED)
    assert "mode: 0755" in settled, "a value was spelled anew"
    assert settle_rendered_recipe(settled.encode(), 0).decode() == settled
