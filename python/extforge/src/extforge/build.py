"""``extforge build``: build, test and index the packages of a recipe, through the API that conda-build uses.

The recipe is rendered with ``Stage0Recipe.render`` from the same variant files that ``conda build`` reads, so
the package hashes agree. Packages are built and tested in a directory of their own and move to the output
channel together, when every test has passed.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from extforge.build_inputs import hash_inputs
from extforge.build_process import build_in_process
from extforge.build_progress import Progress
from extforge.channels import (
    CACHE_VARIABLE,
    add_channel_arguments,
    index_channel,
    rattler_cache,
    read_channels,
)
from extforge.errors import BadInputError, FailedCommand
from extforge.files import PARTIAL, hash_file, locked, write_atomically

if TYPE_CHECKING:
    from rattler_build import RenderedVariant

#: The variant key whose value names a row of the table: "None" is ``cpu``, "13.0" is ``cuda130``.
ROW_KEY = "cuda_compiler_version"
VARIANT_FILE = "conda_build_config.yaml"
#: The names under which a variant file may lie beside its recipe.
RECIPE_VARIANT_FILES = (VARIANT_FILE, "variants.yaml")
#: Where the output channel keeps its build logs and what each package was made from.
RECORDS = ".extforge"
LOG_LINES_SHOWN = 25


class Options(NamedTuple):
    """How to build; ``skip_unchanged`` keeps a package whose inputs are those of its last build."""

    output: Path
    channels: tuple[str, ...]
    skip_unchanged: bool = False


class Product(NamedTuple):
    """A package and what it was made from; ``built`` is where it waits for publication, if it is new."""

    variant: RenderedVariant
    inputs: str | None
    package: Path
    built: Path | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``extforge build`` takes."""
    parser.add_argument("recipe", type=Path, help="a recipe.yaml, or the directory that holds it")
    parser.add_argument("--variant", metavar="NAME",
                        help="build one row of the variant table only: cpu, cuda130, ...")
    parser.add_argument("--python", metavar="VERSION",
                        help="build for this Python only, of those that the variant files list: 3.12, ...")
    parser.add_argument("--variant-config", "-m", type=Path, action="append", default=[], metavar="FILE",
                        help="a variant file, later ones win "
                             f"(read before: {VARIANT_FILE} here and beside the recipe)")
    parser.add_argument("--output", "--output-folder", type=Path, default=Path("output"), metavar="DIR",
                        help="the channel that takes the packages (default: ./output)")
    parser.add_argument("--skip-unchanged", action="store_true",
                        help="keep a package whose sources, recipe, variant and channels have not changed")
    parser.add_argument("--render", action="store_true",
                        help="print what would be built as JSON and build nothing")
    add_channel_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Build what the arguments ask for, and print the paths of the packages."""
    recipe = find_recipe(arguments.recipe)
    variants = render(recipe, arguments.variant_config)
    variants = select(variants, arguments.variant, row_name, "row")
    variants = select(variants, arguments.python, python_version, "Python")
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
    """Return the variant files in the order in which ``conda build`` reads them; later ones win.

    Raises :class:`BadInputError` for one that is named and absent, and for two beside the recipe, which every
    tool reads in an order of its own.
    """
    absent = [file for file in named if not file.is_file()]
    if absent:
        raise BadInputError(f"no variant file at {absent[0]}")
    beside = [file for name in RECIPE_VARIANT_FILES if (file := recipe.parent / name).is_file()]
    if len(beside) > 1:
        raise BadInputError(f"both {' and '.join(RECIPE_VARIANT_FILES)} lie in {recipe.parent}; keep one")
    here = [file] if (file := Path.cwd() / VARIANT_FILE).is_file() else []
    return [*here, *beside, *named]


def select(
    variants: list[RenderedVariant],
    wanted: str | None,
    read: Callable[[RenderedVariant], str | None],
    what: str,
) -> list[RenderedVariant]:
    """Return the packages in which ``read`` finds ``wanted``, and those that are the same for all values.

    Raises :class:`BadInputError` for a value that the variant table does not have.
    """
    if wanted is None:
        return variants
    listed = {value for variant in variants if (value := read(variant))}
    if wanted not in listed:
        valid = ", ".join(sorted(listed)) or "none, no package of this recipe depends on it"
        raise BadInputError(f"no {what} {wanted!r} in the variant table; valid: {valid}")
    return [variant for variant in variants if read(variant) in (wanted, None)]


def python_version(variant: RenderedVariant) -> str | None:
    """Return the minor version that the variant pins, such as ``3.12``; ``None`` if it serves any."""
    value = variant.variant.get("python")
    return None if value is None else ".".join(value.split()[0].split(".")[:2])


def row_name(variant: RenderedVariant) -> str | None:
    """Return the row's name, such as ``cpu`` or ``cuda130``; ``None`` for a package that all rows share."""
    value = variant.variant.get(ROW_KEY)
    if value is None:
        return None
    return "cpu" if value == "None" else "cuda" + value.replace(".", "")


def identity(variant: RenderedVariant) -> str:
    """Return name, version and build string: the package's file name without its ending."""
    package = variant.recipe.package
    return f"{package.name}-{package.version}-{variant.recipe.build.string}"


def describe(variant: RenderedVariant) -> dict[str, Any]:
    """Return what ``--render`` prints of a package."""
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
    """Build and test ``variants``, publish the packages in the output channel, and return their paths.

    Raises :class:`FailedCommand` when a build or a test fails; the output channel is then as it was before.
    """
    os.environ.setdefault(CACHE_VARIABLE, str(rattler_cache()))
    with locked(options.output):
        remove_leftovers(options.output)
        refuse_damaged(options.output, {identity(variant) for variant in variants})
        with staging_directory(options.output) as stage:
            products = [make(variant, stage, options) for variant in variants]
            publish([product for product in products if product.built], options.output)
    return [product.package for product in products]


def remove_leftovers(output: Path) -> None:
    """Remove what killed runs left: unfinished packages, and directories in which packages were built."""
    for partial in output.glob(f"*/{PARTIAL}*"):
        partial.unlink()
    note = stage_note(output)
    if note.exists():
        shutil.rmtree(note.read_text(), ignore_errors=True)
        note.unlink()


def refuse_damaged(output: Path, replaced: Collection[str]) -> None:
    """Refuse a file that cannot be indexed before a build is begun; one that is replaced may be damaged."""
    for package in sorted(output.glob("*/*.conda")):
        if package.stem not in replaced and not zipfile.is_zipfile(package):
            raise BadInputError(f"{package} is damaged or no package; remove it")


def partial_name(name: str) -> str:
    """Return the name of an unfinished copy: by its end, no indexer takes it for a package."""
    return f"{PARTIAL}{name}.tmp"


def stage_note(output: Path) -> Path:
    """Return the file that says in which directory packages are being built."""
    return output / RECORDS / "stage"


@contextmanager
def staging_directory(output: Path) -> Iterator[Path]:
    """Give a directory for unfinished packages, inside the output unless a blank in its path forbids that.

    Compilers and build scripts read flags as words, so that no prefix with a blank in it can be built in. A
    note in the output channel, written before, says where the directory is.
    """
    parent = tempfile.gettempdir() if " " in str(output) else str(output)
    if " " in parent:
        raise BadInputError(f"cannot build packages below a path with blanks: {parent}; set another TMPDIR")
    stage = Path(parent) / f".stage-{secrets.token_hex(4)}"
    write_atomically(stage_note(output), str(stage))
    stage.mkdir(mode=0o700)
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        if not stage.exists():
            stage_note(output).unlink()


def make(variant: RenderedVariant, stage: Path, options: Options) -> Product:
    """Build and test one package in ``stage``, or find that it is there already."""
    inputs = hash_inputs(variant, options.channels, options.output)
    package = find_unchanged(variant, inputs, options.output) if options.skip_unchanged else None
    if package is not None:
        print(f"{identity(variant)}: unchanged", file=sys.stderr)
        return Product(variant, inputs, package)
    built = build_one(variant, stage, options)
    return Product(variant, inputs, options.output / built.parent.name / built.name, built)


def build_one(variant: RenderedVariant, stage: Path, options: Options) -> Path:
    """Build and test one package in ``stage`` and return its path there."""
    log = options.output / RECORDS / f"{identity(variant)}.log"
    progress = Progress(identity(variant), log)
    channels = [*local_channel(options.output), *options.channels]
    try:
        return build_in_process(variant, stage, channels, progress)
    except FailedCommand as failure:
        told = progress.tail(LOG_LINES_SHOWN)
        reason = f"{identity(variant)} failed: {failure}\n{told}\nthe whole log: {log}"
        raise FailedCommand(reason) from failure


def local_channel(output: Path) -> list[str]:
    """Return the output as a channel, once it is one: outputs of a recipe may need each other."""
    return [output.as_uri()] if (output / "noarch" / "repodata.json").exists() else []


def publish(products: Sequence[Product], output: Path) -> None:
    """Move tested packages into the output channel, index it, and note what they were made from.

    The notes come last: without its note, a package that a killed run left unindexed is built again.
    """
    for product in products:
        assert product.built is not None, product
        product.package.parent.mkdir(exist_ok=True)
        partial = product.package.with_name(partial_name(product.package.name))
        try:
            shutil.copyfile(product.built, partial)  # the stage may lie on another file system
            partial.replace(product.package)
        finally:
            partial.unlink(missing_ok=True)
    if products or not local_channel(output):
        index_channel(output)
    for variant, inputs, package, _ in products:
        place = package.relative_to(output).as_posix()
        record = {"inputs": inputs, "package": place, "sha256": hash_file(package)}
        write_atomically(record_path(variant, output), json.dumps(record, indent=1))


def record_path(variant: RenderedVariant, output: Path) -> Path:
    """Return the file that says what a package was made from."""
    return output / RECORDS / f"{identity(variant)}.json"


def find_unchanged(variant: RenderedVariant, inputs: str | None, output: Path) -> Path | None:
    """Return the package of an earlier build from these inputs, if it is whole and indexed as it is."""
    try:
        record = json.loads(record_path(variant, output).read_text())
        package: Path = output / record["package"]
        index = json.loads((package.parent / "repodata.json").read_text())
        indexed = index["packages.conda"][package.name]["sha256"]
        unchanged = inputs is not None and record["inputs"] == inputs
        whole = hash_file(package) == record["sha256"] == indexed
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return package if unchanged and whole else None
