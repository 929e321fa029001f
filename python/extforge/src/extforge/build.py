"""``extforge build``: build, test and index the packages of a recipe, through the API that conda-build uses.

The recipe is rendered with ``Stage0Recipe.render`` from the same variant files that ``conda build`` reads, so the
package hashes agree. Packages are built and tested in a directory of their own and move to the output channel
only when every test has passed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.markup import escape

from extforge.channels import CACHE_VARIABLE, add_channel_arguments, index_channel, rattler_cache, read_channels
from extforge.errors import BadInputError, FailedCommand
from extforge.files import hash_file, write_atomically

if TYPE_CHECKING:
    from rattler_build import RenderedVariant

#: The variant key whose value names a row of the table: "None" is ``cpu``, "13.0" is ``cuda130``.
ROW_KEY = "cuda_compiler_version"
VARIANT_FILE = "conda_build_config.yaml"
#: Where the output channel keeps its build logs and the inputs of each package.
RECORDS = ".extforge"
LOG_LINES_SHOWN = 25
#: What the spans of rattler-build's log mean to a reader.
STEPS = {
    "Fetching source code": "copying sources",
    "Running build for": "solving and installing build and host environments",
    "Running build script": "running the build script",
    "Packaging new files": "packaging",
    "Running script test for": "testing",
}
#: Directories that hold no source, whatever a recipe's filter says.
NO_SOURCE = {"__pycache__", ".git", ".local"}


class Options(NamedTuple):
    """How a build is carried out; ``skip_unchanged`` keeps a package whose inputs are those of its last build."""

    output: Path
    channels: tuple[str, ...]
    skip_unchanged: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, help="a recipe.yaml, or the directory that holds it")
    parser.add_argument("--variant", metavar="NAME", help="build one row of the variant table only: cpu, cuda130, ...")
    parser.add_argument("--variant-config", "-m", type=Path, action="append", default=[], metavar="FILE",
                        help=f"a variant file, later ones win (read before: {VARIANT_FILE} here and beside the recipe)")
    parser.add_argument("--output", type=Path, default=Path("output"), metavar="DIR",
                        help="the channel that takes the packages (default: ./output)")
    parser.add_argument("--skip-unchanged", action="store_true",
                        help="keep a package whose sources, recipe, variant and channels have not changed")
    parser.add_argument("--render", action="store_true", help="print what would be built as JSON and build nothing")
    add_channel_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    recipe = find_recipe(arguments.recipe)
    variants = select_row(render(recipe, arguments.variant_config), arguments.variant)
    if arguments.render:
        print(json.dumps([describe(variant) for variant in variants], indent=1))
        return 0
    options = Options(arguments.output.resolve(), tuple(read_channels(arguments)), arguments.skip_unchanged)
    for package in build(variants, options):
        print(package)
    return 0


def find_recipe(path: Path) -> Path:
    """Return the recipe file that ``path`` names.

    Raises :class:`BadInputError` where there is none.
    """
    recipe = path / "recipe.yaml" if path.is_dir() else path
    if not recipe.is_file():
        raise BadInputError(f"no recipe at {recipe}; valid: a v1 recipe.yaml or the directory that holds one")
    return recipe.resolve()


def render(recipe: Path, variant_files: Sequence[Path]) -> list[RenderedVariant]:
    """Return every output of ``recipe`` for every row of the variant files, each package once.

    Raises :class:`BadInputError` for a recipe or a variant file that cannot be used.
    """
    from rattler_build import RattlerBuildError, Stage0Recipe, VariantConfig

    config = VariantConfig()
    try:
        for file in find_variant_files(recipe, variant_files):
            config = config.merge(VariantConfig.from_file(file))
        rendered = Stage0Recipe.from_file(recipe).render(config)
    except RattlerBuildError as error:
        raise BadInputError(f"{recipe} cannot be rendered: {error}") from error
    return list({identity(variant): variant for variant in rendered}.values())


def find_variant_files(recipe: Path, named: Sequence[Path]) -> list[Path]:
    """Return the variant files in the order in which ``conda build`` reads them; later ones win."""
    absent = [file for file in named if not file.is_file()]
    if absent:
        raise BadInputError(f"no variant file at {absent[0]}")
    implicit = [Path.cwd() / VARIANT_FILE, recipe.parent / VARIANT_FILE]
    return [*(file for file in implicit if file.is_file()), *named]


def select_row(variants: list[RenderedVariant], name: str | None) -> list[RenderedVariant]:
    """Return the packages of one row, and those that are the same in every row.

    Raises :class:`BadInputError` for a name that the table does not have.
    """
    rows = {row_name(variant) for variant in variants} - {None}
    if name is None:
        return variants
    if name not in rows:
        valid = ", ".join(sorted(filter(None, rows))) or "none, because the recipe does not depend on the table"
        raise BadInputError(f"no row {name!r} in the variant table; valid: {valid}")
    return [variant for variant in variants if row_name(variant) in (name, None)]


def row_name(variant: RenderedVariant) -> str | None:
    """Return the row's name, such as ``cpu`` or ``cuda130``; ``None`` for an output that is the same in all rows."""
    value = variant.variant.get(ROW_KEY)
    if value is None:
        return None
    return "cpu" if value == "None" else "cuda" + value.replace(".", "")


def identity(variant: RenderedVariant) -> str:
    package = variant.recipe.package
    return f"{package.name}-{package.version}-{variant.recipe.build.string}"


def describe(variant: RenderedVariant) -> dict[str, Any]:
    requirements = variant.recipe.requirements
    return {
        "package": identity(variant),
        "row": row_name(variant),
        "variant": dict(variant.variant),
        "build": requirements.build,
        "host": requirements.host,
        "run": requirements.run,
    }


def build(variants: Sequence[RenderedVariant], options: Options) -> list[Path]:
    """Build and test ``variants``, move the packages into the output channel, index it, and return their paths.

    Raises :class:`FailedCommand` when a build or a test fails; the output channel is then as it was before.
    """
    os.environ.setdefault(CACHE_VARIABLE, str(rattler_cache()))
    packages = []
    with staging_directory(options.output) as stage:
        for variant in variants:
            inputs = hash_inputs(variant, options.channels)
            package = find_unchanged(variant, inputs, options) if options.skip_unchanged else None
            if package is None:
                package = publish(build_one(variant, stage, options), variant, inputs, options.output)
            else:
                print(f"{identity(variant)}: unchanged", file=sys.stderr)
            packages.append(package)
    return packages


@contextmanager
def staging_directory(output: Path) -> Iterator[Path]:
    """Give a directory for unfinished packages, beside the output unless a blank in its path forbids that.

    Compilers and build scripts read flags as words, so that no prefix with a blank in it can be built in.
    """
    output.mkdir(parents=True, exist_ok=True)
    parent = tempfile.gettempdir() if " " in str(output) else str(output)
    if " " in parent:
        raise BadInputError(f"packages cannot be built below a path with blanks: {parent}; set TMPDIR to one without")
    with tempfile.TemporaryDirectory(prefix=".stage-", dir=parent, ignore_cleanup_errors=True) as stage:
        yield Path(stage)


def build_one(variant: RenderedVariant, stage: Path, options: Options) -> Path:
    """Build and test one package in ``stage`` and return its path there."""
    from rattler_build import RattlerBuildError, ToolConfiguration

    log = options.output / RECORDS / f"{identity(variant)}.log"
    progress = Progress(identity(variant), log)
    try:
        with progress:
            result = variant.run_build(
                tool_config=ToolConfiguration(test_strategy="native"),
                output_dir=stage,
                channels=list(options.channels),
                progress_callback=progress,
            )
    except RattlerBuildError as error:
        tail = "\n".join(f"  {line}" for line in progress.lines[-LOG_LINES_SHOWN:])
        raise FailedCommand(f"{identity(variant)} failed: {error}\n{tail}\nthe whole log: {log}") from error
    return Path(result.packages[0])


def publish(built: Path, variant: RenderedVariant, inputs: str, output: Path) -> Path:
    """Move a tested package into the output channel, index it, and last note what it was made from."""
    package = output / built.parent.name / built.name
    package.parent.mkdir(exist_ok=True)
    partial = package.parent / f".partial-{built.name}"
    shutil.copyfile(built, partial)  # the stage may lie on another file system
    partial.replace(package)
    index_channel(output)
    record = {"inputs": inputs, "package": f"{package.parent.name}/{package.name}", "sha256": hash_file(package)}
    write_atomically(record_path(variant, output), json.dumps(record, indent=1))
    return package


def record_path(variant: RenderedVariant, output: Path) -> Path:
    return output / RECORDS / f"{identity(variant)}.json"


def find_unchanged(variant: RenderedVariant, inputs: str, options: Options) -> Path | None:
    """Return the package of an earlier build from the same inputs, if it is there and whole."""
    try:
        record = json.loads(record_path(variant, options.output).read_text())
        package = options.output / record["package"]
        whole = record["inputs"] == inputs and hash_file(package) == record["sha256"]
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return package if whole else None


def hash_inputs(variant: RenderedVariant, channels: Sequence[str]) -> str:
    """Return a digest of all that a package is made from: sources, recipe, variant, local channels, tools."""
    import rattler_build

    digest = hashlib.sha256(repr((rattler_build.rattler_build_version(), variant.recipe.to_dict(), dict(variant.variant))).encode())
    for file in source_files(variant):
        digest.update(f"{file}\0{hash_file(file)}\n".encode())
    for channel in channels:
        digest.update(f"{channel}\0".encode())
        if channel.startswith("file://"):
            for index in sorted(Path(channel.removeprefix("file://")).glob("*/repodata.json")):
                digest.update(index.read_bytes())
    return digest.hexdigest()


def source_files(variant: RenderedVariant) -> Iterator[Path]:
    """Yield the local files of the recipe and of its sources; at least those that the build copies."""
    folder = variant.recipe_path.parent
    yield from tree_files(folder, ["*"])
    for source in variant.recipe.to_dict().get("source", []):
        if "path" in source:
            yield from tree_files((folder / source["path"]).resolve(), source.get("filter") or ["*"])


def tree_files(root: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """Yield the files below ``root`` whose relative path matches a pattern; ``*`` crosses directories."""
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in NO_SOURCE)
        for name in sorted(files):
            path = Path(directory) / name
            if any(fnmatchcase(path.relative_to(root).as_posix(), pattern) for pattern in patterns):
                yield path


class Progress:
    """Receives the events of a build: everything goes to the log, one line a step to the screen."""

    def __init__(self, title: str, log: Path) -> None:
        self.title, self.log = title, log
        self.lines: list[str] = []
        self.step = ""
        self.start = time.monotonic()

    def __enter__(self) -> Progress:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.stream = self.log.open("w")
        self.console = Console(stderr=True, highlight=False)
        self.status = self.console.status(self.title) if self.console.is_terminal else None
        if self.status:
            self.status.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self.status:
            self.status.stop()
        self.stream.close()
        verdict = "failed" if failure[0] else "built and tested"
        self.say(f"{verdict} in {time.monotonic() - self.start:.1f} s")

    def say(self, what: str) -> None:
        self.console.print(f"{self.title}: {what}", markup=False, soft_wrap=True)

    def on_log(self, event: Any) -> None:
        for line in event.message.splitlines():
            self.lines.append(line)
            print(line, file=self.stream, flush=True)
        self.show(event.span or "", event.message)

    def show(self, span: str, message: str) -> None:
        step = STEPS.get(span, self.step)
        if self.status:
            self.status.update(f"{self.title}: {step}  [dim]{escape(message.strip()[:80])}")
        elif step != self.step:
            self.say(step)
        self.step = step

    def on_download_start(self, event: Any) -> None:
        print(f"download {event.url}", file=self.stream)

    def on_download_progress(self, event: Any) -> None:
        """Downloads come from local or cached channels; their bytes are not shown."""

    def on_download_complete(self, event: Any) -> None:
        """See :meth:`on_download_progress`."""

    def on_build_step(self, event: Any) -> None:
        self.show(event.step_name, event.message)
