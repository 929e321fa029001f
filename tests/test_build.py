"""``extforge build`` on small recipes: rows, failures, what counts as changed, what a killed run leaves."""

import hashlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

pytest.importorskip("extforge", reason="extforge is not installed here")

from conda_package_streaming.package_streaming import stream_conda_component
from extforge.build import find_recipe, find_unchanged, render, row_name
from extforge.build_inputs import hash_inputs
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
"""
ROWS = """
    package: {name: rows, version: "1.0"}
    build:
      noarch: generic
      string: ${{ "cpu" if cuda_compiler_version == "None" else "cuda" }}_${{ hash }}
      script: mkdir -p $PREFIX/share && echo ${{ cuda_compiler_version }} > $PREFIX/share/row
"""
ROWS_TABLE = 'cuda_compiler_version: ["None", "12.9", "13.0"]\n'
FOR_PYTHON = """
    package: {name: classic, version: "1.0"}
    build: {script: echo}
    requirements: {host: [python]}
"""
PYTHONS = 'python: ["3.11.* *_cpython", "3.12.* *_cpython"]\n'
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
FAILING = """
    package: {name: failing, version: "1.0"}
    build:
      noarch: generic
      script: echo the reason is told && false
"""
FAILING_TEST = """
    package: {name: failing, version: "1.0"}
    build:
      noarch: generic
      script: mkdir -p $PREFIX/share && echo x > $PREFIX/share/failing
    tests:
      - script: echo the reason is told && false
"""
SLOW = """
    package: {name: slow, version: "1.0"}
    build:
      noarch: generic
      script: echo begun && sleep 30
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
    """What a package installs."""
    return {
        member.name: extracted.read()
        for tar, member in stream_conda_component(str(package), component="pkg")
        if (extracted := tar.extractfile(member))
    }


def test_a_package_is_built_tested_indexed_and_printed(bench: Bench) -> None:
    result = bench.build()
    assert result.returncode == 0, result.stderr
    (package,) = (Path(line) for line in result.stdout.splitlines())
    assert package.parent == bench.output / "noarch"
    assert content(package) == {"share/hello/words.txt": b"one\n"}
    assert list(bench.index()) == [package.name]
    assert bench.index() == bench.packages()
    assert bench.leftovers() == []
    assert "words.txt" in (bench.output / ".extforge" / f"{package.stem}.log").read_text()


def test_a_log_gets_one_plain_line_a_step(bench: Bench) -> None:
    said = bench.build().stderr
    assert "\x1b" not in said
    steps = [line.partition(": ")[2] for line in said.splitlines()]
    assert steps[:3] == [
        "copying sources",
        "solving and installing build and host environments",
        "running the build script",
    ]
    assert re.fullmatch(r"built and tested in \d+\.\d s", steps[-1])


def test_a_terminal_gets_a_moving_line(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", HELLO.replace("mkdir -p", "sleep 0.5 && mkdir -p", 1))
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "extforge", *map(str, bench.command())]
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(command, stderr=end, stdout=subprocess.DEVNULL, env=environment)
    os.close(end)
    said = b"".join(iter(lambda: read_terminal(terminal), b"")).decode()
    os.close(terminal)
    assert process.wait() == 0, said
    spinner = set(re.findall("[\u2801-\u28ff]", said))
    assert len(spinner) > 2, f"the line did not move while the build script ran: {said!r}"
    assert said.rstrip().splitlines()[-1].endswith(" s")
    assert said.count("\x1b[?25h") >= said.count("\x1b[?25l") > 0, "the cursor stays hidden"


def read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the other end has been closed
        return b""


@pytest.mark.parametrize(
    ("row", "packages"),
    [
        ("cpu", ["rows-1.0-cpu"]),
        ("cuda130", ["rows-1.0-cuda"]),
        (None, ["rows-1.0-cpu", "rows-1.0-cuda", "rows-1.0-cuda"]),
    ],
)
def test_a_row_is_chosen_by_name(bench: Bench, row: str | None, packages: list[str]) -> None:
    bench.write("recipe/recipe.yaml", ROWS)
    bench.write("recipe/conda_build_config.yaml", ROWS_TABLE)
    options = [] if row is None else ["--variant", row]
    assert sorted(name.rpartition("_")[0] for name in bench.built(*options)) == packages
    assert bench.index() == bench.packages()


def test_render_prints_json_and_builds_nothing(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", ROWS)
    bench.write("recipe/variants.yaml", ROWS_TABLE)
    result = bench.build("--render")
    assert sorted(entry["row"] for entry in json.loads(result.stdout)) == ["cpu", "cuda129", "cuda130"]
    assert {entry["variant"]["cuda_compiler_version"] for entry in json.loads(result.stdout)} == {
        "None", "12.9", "13.0"
    }  # fmt: skip
    assert not bench.output.exists()


def test_a_python_is_chosen_by_its_version(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", FOR_PYTHON)
    result = bench.build("--render", "--python", "3.12", "-m", bench.write("pythons.yaml", PYTHONS))
    (package,) = json.loads(result.stdout)
    assert package["variant"]["python"] == "3.12.* *_cpython"


def test_the_last_variant_file_wins(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = bench.write("recipe/recipe.yaml", ROWS)
    monkeypatch.chdir(bench.root)
    bench.write("conda_build_config.yaml", 'cuda_compiler_version: ["1.0"]\n')
    assert [row_name(variant) for variant in render(recipe, [])] == ["cuda10"]
    bench.write("recipe/conda_build_config.yaml", 'cuda_compiler_version: ["2.0"]\n')
    assert [row_name(variant) for variant in render(recipe, [])] == ["cuda20"]
    named = bench.write("named.yaml", 'cuda_compiler_version: ["3.0"]\n')
    assert [row_name(variant) for variant in render(recipe, [named])] == ["cuda30"]


def one_row(bench: Bench) -> list[object]:
    bench.write("recipe/recipe.yaml", ROWS)
    bench.write("recipe/conda_build_config.yaml", ROWS_TABLE)
    return ["--variant", "cuda128"]


def row_of_a_plain_recipe(bench: Bench) -> list[object]:
    return ["--variant", "cpu"]


def unlisted_python(bench: Bench) -> list[object]:
    bench.write("recipe/recipe.yaml", FOR_PYTHON)
    return ["--python", "3.9", "-m", bench.write("pythons.yaml", PYTHONS)]


def no_recipe(bench: Bench) -> list[object]:
    (bench.root / "recipe" / "recipe.yaml").unlink()
    return []


def broken_yaml(bench: Bench) -> list[object]:
    bench.write("recipe/recipe.yaml", "package: [\n")
    return []


def unknown_key(bench: Bench) -> list[object]:
    bench.write("recipe/recipe.yaml", HELLO + "    sauce: x\n")
    return []


def missing_source(bench: Bench) -> list[object]:
    bench.write("recipe/recipe.yaml", HELLO.replace("../source", "../nowhere"))
    return []


def no_variant_file(bench: Bench) -> list[object]:
    return ["-m", bench.root / "absent.yaml"]


def broken_variant_file(bench: Bench) -> list[object]:
    return ["-m", bench.write("broken.yaml", "zip_keys: 3\n")]


def two_variant_files(bench: Bench) -> list[object]:
    bench.write("recipe/conda_build_config.yaml", ROWS_TABLE)
    bench.write("recipe/variants.yaml", ROWS_TABLE)
    return []


def no_channel(bench: Bench) -> list[object]:
    return ["--channel", bench.root / "source"]


def damaged_package(bench: Bench) -> list[object]:
    bench.write("output/noarch/other-1.0-0.conda", "no archive")
    return []


@pytest.mark.parametrize(
    ("prepare", "code", "told"),
    [
        (one_row, 2, r"no row 'cuda128' in the variant table; valid: cpu, cuda129, cuda130"),
        (row_of_a_plain_recipe, 2, r"no row 'cpu' .*valid: none, no package of this recipe depends on it"),
        (unlisted_python, 2, r"no Python '3.9' in the variant table; valid: 3.11, 3.12"),
        (no_recipe, 2, r"no recipe at \S+/recipe/recipe.yaml; valid: a v1 recipe.yaml or the directory"),
        (broken_yaml, 2, r"recipe.yaml cannot be rendered: "),
        (unknown_key, 2, r"recipe.yaml cannot be rendered: (?s:.*)sauce"),
        (missing_source, 1, r"hello-1.0-\w+ failed: (?s:.*)nowhere"),
        (no_variant_file, 2, r"no variant file at \S+/absent.yaml"),
        (broken_variant_file, 2, r"cannot be rendered: "),
        (two_variant_files, 2, r"both conda_build_config.yaml and variants.yaml lie in \S+/recipe; keep one"),
        (no_channel, 2, r"source is no channel: it has no noarch/repodata.json"),
        (damaged_package, 2, r"other-1.0-0.conda is damaged or no package; remove it"),
    ],
)
def test_what_cannot_be_used_is_named(
    bench: Bench, prepare: Callable[[Bench], list[object]], code: int, told: str
) -> None:
    result = bench.build(*prepare(bench))
    assert result.returncode == code, result.stderr
    assert re.search(r"^extforge build: .*" + told, result.stderr, re.MULTILINE), result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("recipe", [FAILING, FAILING_TEST])
def test_a_failure_is_told_and_changes_nothing(bench: Bench, recipe: str) -> None:
    bench.built()
    before = bench.files()
    bench.write("recipe/recipe.yaml", recipe)
    result = bench.build()
    assert result.returncode == 1
    assert "failing-1.0-h4616a5c_0 failed: " in result.stderr
    assert "\n  the reason is told\n" in result.stderr, "the tail of the log is missing"
    assert "conda_build.sh" not in result.stderr, "hints to a directory that is gone"
    (log,) = re.findall(r"the whole log: (.*)", result.stderr)
    assert "the reason is told" in Path(log).read_text()
    assert bench.files() == before
    assert bench.leftovers() == []


def test_an_output_that_fails_keeps_the_others_back(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", PAIR.replace("cp own.txt", "false && cp own.txt"))
    assert bench.build().returncode == 1
    assert bench.packages() == {}


def change_source(bench: Bench) -> None:
    bench.write("source/data/words.txt", "two\n")


def add_source(bench: Bench) -> None:
    bench.write("source/data/more/words.txt", "two\n")


def remove_source(bench: Bench) -> None:
    (bench.root / "source/data/spare.txt").unlink()


def make_source_executable(bench: Bench) -> None:
    (bench.root / "source/data/words.txt").chmod(0o755)


def change_recipe(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", HELLO.replace("test -f", "test -s"))


def change_file_beside_recipe(bench: Bench) -> None:
    bench.write("recipe/patch.diff", "changed\n")


def change_channel(bench: Bench) -> None:
    bench.channel = bench.root / "channel with blanks"
    (bench.channel / "noarch" / "repodata.json").write_text('{"packages": {}}')


def delete_package(bench: Bench) -> None:
    next(bench.output.glob("noarch/*.conda")).unlink()


def damage_package(bench: Bench) -> None:
    next(bench.output.glob("noarch/*.conda")).write_bytes(b"half")


def delete_index(bench: Bench) -> None:
    (bench.output / "noarch" / "repodata.json").unlink()


def empty_index(bench: Bench) -> None:
    (bench.output / "noarch" / "repodata.json").write_text('{"packages.conda": {}}')


def damage_record(bench: Bench) -> None:
    next((bench.output / ".extforge").glob("*.json")).write_text("{")


def change_nothing(bench: Bench) -> None:
    os.utime(bench.root / "source/data/words.txt")


def change_output(bench: Bench) -> None:
    bench.write("output/notes.txt", "not an input\n")


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (change_nothing, False),
        (change_output, False),
        (change_source, True),
        (add_source, True),
        (remove_source, True),
        (make_source_executable, True),
        (change_recipe, True),
        (change_file_beside_recipe, True),
        (change_channel, True),
        (delete_package, True),
        (damage_package, True),
        (delete_index, True),
        (empty_index, True),
        (damage_record, True),
    ],
)
def test_a_package_is_kept_while_nothing_has_changed(
    bench: Bench, change: Callable[[Bench], None], again: bool
) -> None:
    bench.write("source/data/spare.txt", "spare\n")
    bench.channel = bench.root / "channel with blanks"
    bench.write("channel with blanks/noarch/repodata.json", '{"info":{"subdir":"noarch"},"packages":{}}')
    bench.built()
    change(bench)
    assert (bench.kept() is None) == again


@pytest.mark.parametrize(
    ("change", "verdict"), [(change_nothing, "unchanged"), (damage_package, "built and tested")]
)
def test_what_has_not_changed_is_skipped(bench: Bench, change: Callable[[Bench], None], verdict: str) -> None:
    bench.built("--skip-unchanged")
    change(bench)
    result = bench.build("--skip-unchanged")
    assert result.returncode == 0, result.stderr
    assert verdict in result.stderr.splitlines()[-1]
    assert bench.index() == bench.packages()
    assert len(bench.packages()) == len(result.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("{path: ../source, filter: [data]}", "source/data/words.txt"),
        ("{path: ../source, filter: ['./data/**']}", "source/data/words.txt"),
        ("{path: ../source, filter: ['{data,x}/*.txt']}", "source/data/words.txt"),
        ("{path: ../source, filter: {include: ['data/*']}}", "source/data/words.txt"),
        ("{path: ../source, filter: {exclude: ['none']}}", "source/data/words.txt"),
        ("{path: ../source/data/words.txt, target_directory: data}", "source/data/words.txt"),
    ],
)
def test_every_kind_of_source_counts(bench: Bench, source: str, file: str) -> None:
    recipe = HELLO.replace("source:\n      path: ../source", f"source:\n      - {source}")
    bench.write("recipe/recipe.yaml", recipe)
    (name,) = bench.built()
    assert bench.kept() == bench.output / "noarch" / name
    bench.write(file, "two\n")
    assert bench.kept() is None


def test_a_file_that_the_filter_leaves_out_does_not_count(bench: Bench) -> None:
    source = "path: ../source"
    bench.write("recipe/recipe.yaml", HELLO.replace(source, f"{source}\n      filter: ['data/**']"))
    bench.built()
    bench.write("source/README.md", "new\n")
    assert bench.kept() is not None


def test_a_source_that_nobody_pinned_is_always_built(bench: Bench) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(bench.root / "source")]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "words"]):
        subprocess.run([*git, *words], check=True)
    url = (bench.root / "source").as_uri()
    bench.write("recipe/recipe.yaml", HELLO.replace("path: ../source", f"git: {url}\n      branch: main"))
    bench.built()
    assert bench.kept() is None


def test_outputs_of_a_recipe_find_each_other_when_one_is_kept(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", PAIR)
    first = bench.built("--skip-unchanged")
    bench.write("user/own.txt", "changed\n")
    result = bench.build("--skip-unchanged")
    assert result.returncode == 0, result.stderr
    assert re.search(r"^pair-data-\S+: unchanged$", result.stderr, re.MULTILINE)
    assert [Path(line).name for line in result.stdout.splitlines()] == first
    assert bench.index() == bench.packages()


def test_a_path_with_blanks(bench: Bench) -> None:
    bench.output = bench.root / "an output channel"
    bench.root.joinpath("recipe").rename(bench.root / "a recipe")
    (bench.root / "recipe").symlink_to("a recipe")
    (name,) = bench.built()
    assert content(bench.output / "noarch" / name) == {"share/hello/words.txt": b"one\n"}
    assert bench.index() == bench.packages()
    assert bench.kept() is not None
    assert bench.leftovers() == []


def test_a_blank_that_cannot_be_avoided_is_refused(bench: Bench) -> None:
    bench.output = bench.root / "an output channel"
    temporary = bench.root / "temporary files"
    temporary.mkdir()
    result = bench.build(TMPDIR=str(temporary))
    assert (result.returncode, result.stdout) == (2, "")
    assert f"cannot build packages below a path with blanks: {temporary}; set another TMPDIR" in result.stderr


def test_the_output_may_lie_inside_the_source(bench: Bench) -> None:
    bench.write("recipe/recipe.yaml", HELLO.replace("../source", ".."))
    bench.write("data/words.txt", "three\n")
    bench.built()
    assert bench.kept() is not None


def test_a_build_installs_the_same_files_twice(bench: Bench) -> None:
    """The packages differ in what rattler-build notes of the build: its time and its directory."""
    bench.built()
    (package,) = bench.output.glob("noarch/*.conda")
    contents, paths = content(package), info(package, "paths.json")
    index = {**info(package, "index.json"), "timestamp": None}
    time.sleep(0.01)
    bench.built()
    assert content(package) == contents
    assert info(package, "paths.json") == paths
    assert {**info(package, "index.json"), "timestamp": None} == index


def info(package: Path, name: str) -> dict[str, object]:
    for tar, member in stream_conda_component(str(package), component="info"):
        if member.name == f"info/{name}" and (extracted := tar.extractfile(member)):
            return dict(json.load(extracted))
    raise AssertionError(f"no info/{name} in {package}")


@pytest.fixture
def running(bench: Bench) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start builds that the test may kill; each has a session of its own, like a terminal's."""
    processes = []

    def start(*options: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "extforge", *map(str, bench.command(*options))]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def wait_for_log(bench: Bench, text: str) -> None:
    """Wait until the log of a running build has a line ``text``."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if any(text in log.read_text().splitlines() for log in (bench.output / ".extforge").glob("*.log")):
            return
        time.sleep(0.02)
    raise AssertionError(f"the log never said {text!r}")


def children(parent: int) -> list[int]:
    """The processes below ``parent``, as far down as they go."""
    direct = [
        int(stat.parent.name)
        for stat in Path("/proc").glob("[0-9]*/stat")
        if (text := read_or_nothing(stat)) and int(text.rpartition(")")[2].split()[1]) == parent
    ]
    return direct + [below for child in direct for below in children(child)]


def read_or_nothing(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.parametrize("whole_group", [True, False])
def test_an_interrupt_ends_all_at_once(
    bench: Bench, running: Callable[..., subprocess.Popen[str]], whole_group: bool
) -> None:
    bench.write("recipe/recipe.yaml", SLOW)
    process = running()
    wait_for_log(bench, "begun")
    family = children(process.pid)
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 130
    assert re.search(r"slow-\S+: interrupted in .* s\nextforge build: interrupted\n$", said), said
    assert len(family) > 1, "the build script was not found"
    assert not [pid for pid in family if read_or_nothing(Path(f"/proc/{pid}/cmdline"))]
    assert bench.leftovers() == []


def test_two_builds_at_once_take_turns(bench: Bench, running: Callable[..., subprocess.Popen[str]]) -> None:
    bench.write("recipe/recipe.yaml", HELLO.replace("mkdir -p", "echo begun && sleep 1 && mkdir -p", 1))
    first = running("--skip-unchanged")
    wait_for_log(bench, "begun")
    second = running("--skip-unchanged")
    outcomes = [process.communicate(timeout=60)[1] for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], outcomes
    assert f"another process works in {bench.output}; waiting until it ends" in outcomes[1]
    assert "unchanged" in outcomes[1]
    assert bench.index() == bench.packages()


def test_what_a_killed_build_left_is_removed(
    bench: Bench, running: Callable[..., subprocess.Popen[str]]
) -> None:
    bench.output = bench.root / "an output channel"
    bench.write("recipe/recipe.yaml", SLOW)
    process = running()
    wait_for_log(bench, "begun")
    stage = Path((bench.output / ".extforge" / "stage").read_text())
    assert (stage / "bld").is_dir()
    process.kill()
    process.wait()
    bench.write("an output channel/noarch/.partial-slow-1.0-h4616a5c_0.conda.tmp", "half")
    bench.write("an output channel/.extforge/.partial-x7y", "half")
    bench.write("recipe/recipe.yaml", HELLO)
    bench.built()
    assert not stage.exists()
    assert bench.leftovers() == []


def test_killed_at_any_moment_the_next_build_succeeds(
    bench: Bench, running: Callable[..., subprocess.Popen[str]]
) -> None:
    bench.built("--skip-unchanged")
    duration = time.monotonic()
    bench.write("source/data/words.txt", "0\n")
    bench.built("--skip-unchanged")
    duration = time.monotonic() - duration
    for moment in range(1, 11):
        bench.write("source/data/words.txt", f"{moment}\n")
        process = running("--skip-unchanged")
        time.sleep(duration * moment / 10)
        process.kill()
        process.wait()
        for package in bench.output.glob("*/*.conda"):
            assert zipfile.is_zipfile(package), f"half a package after {moment} tenths"
        assert set(bench.index()) == set(bench.packages())
    (name,) = bench.built("--skip-unchanged")
    assert content(bench.output / "noarch" / name) == {"share/hello/words.txt": b"10\n"}
    assert bench.index() == bench.packages()
    assert bench.leftovers() == []


def test_a_crash_is_no_success(bench: Bench) -> None:
    """The script ends the process that builds, as a fault in native code would."""
    recipe = HELLO.replace("mkdir -p", "kill -SEGV $PPID; sleep 5; mkdir -p", 1)
    bench.write("recipe/recipe.yaml", recipe)
    result = bench.build()
    assert result.returncode == 1
    assert "the process that built it crashed" in result.stderr
    assert bench.packages() == {}
