"""Build, test and audit packages in a directory of their own; publish them together when all is well.

They are published as :mod:`~extforge.build.normalising` leaves them: equal sources give equal bytes.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from extforge.build.inputs import hash_inputs
from extforge.build.normalising import normalise
from extforge.build.process import build_in_process
from extforge.build.progress import Progress
from extforge.build.rendering import identity, newest_cuda
from extforge.channel.archive import TIMESTAMP
from extforge.channels import CACHE_VARIABLE, index_channel, rattler_cache
from extforge.errors import BadInputError, FailedCommand
from extforge.files import PARTIAL, hash_file, locked, write_atomically
from extforge.virtual import solving_for_cuda

if TYPE_CHECKING:
    from rattler_build import RenderedVariant

#: Where the output channel keeps its build logs and what each package was made from.
RECORDS = ".extforge"
LOG_LINES_SHOWN = 25


class Options(NamedTuple):
    """How to build; ``date`` is stamped on packages, in seconds since 1970.

    ``skip_unchanged`` keeps a package whose inputs are those of its last build; ``check`` builds each package
    twice and refuses two that are not byte-equal; ``strict`` lets warnings of the audit count as errors;
    ``architectures`` is the list of GPU architectures that the packages' device code must hold.
    """

    output: Path
    channels: tuple[str, ...]
    date: int = TIMESTAMP
    skip_unchanged: bool = False
    check: bool = False
    strict: bool = False
    architectures: str = ""


class Product(NamedTuple):
    """A package and what it was made from; ``built`` is where it waits for publication, if it is new."""

    variant: RenderedVariant
    inputs: str | None
    package: Path
    built: Path | None = None


def build(variants: Sequence[RenderedVariant], options: Options) -> list[Path]:
    """Build and test ``variants``, publish the packages in the output channel, and return their paths.

    Raises :class:`FailedCommand` when a build, a test, the check or the audit fails; the output is then as it
    was.
    """
    os.environ.setdefault(CACHE_VARIABLE, str(rattler_cache()))
    with locked(options.output), solving_for_cuda(newest_cuda(variants)):
        remove_leftovers(options.output)
        refuse_damaged(options.output, {identity(variant) for variant in variants})
        with staging_directory(options.output) as stage:
            products = [make(variant, stage, options) for variant in variants]
            fresh = finish(products, stage, options)
            if options.check:
                compare(fresh, build_again(fresh, stage, options))
            audit(fresh, options)
            publish(fresh, options.output)
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


def build_one(variant: RenderedVariant, stage: Path, options: Options, suffix: str = "") -> Path:
    """Build and test one package in ``stage`` and return its path there; ``suffix`` ends the log's name."""
    log = options.output / RECORDS / f"{identity(variant)}{suffix}.log"
    progress = Progress(f"{identity(variant)}{suffix}", log)
    channels = [*local_channel(options.output), *options.channels]
    forget_cached(variant)
    try:
        return build_in_process(variant, stage, channels, progress)
    except FailedCommand as failure:
        told = progress.tail(LOG_LINES_SHOWN)
        reason = f"{identity(variant)} failed: {failure}\n{told}\nthe whole log: {log}"
        raise FailedCommand(reason) from failure


def forget_cached(variant: RenderedVariant) -> None:
    """Remove an earlier package of the same name and build from the cache of unpacked packages.

    Where there is one, rattler-build installs the new package, but runs the tests of the old one.
    """
    cached = rattler_cache() / "pkgs" / identity(variant)
    if cached.exists():
        shutil.rmtree(cached)


def finish(products: Sequence[Product], stage: Path, options: Options) -> list[Product]:
    """Return the new ones of ``products``, as they are to be published.

    Not before all are built: rattler-build solves one output's requirements in an index of the others.
    """
    finished = stage / "finished"
    return [
        product._replace(built=normalise(product.built, finished / identity(product.variant), options.date))
        for product in products
        if product.built
    ]


def build_again(products: Sequence[Product], stage: Path, options: Options) -> list[Product]:
    """Build and test the same packages a second time, later and below a path of another length."""
    again = stage / "built" / "a" / "second" / "time"
    again.mkdir(parents=True)
    built = [
        product._replace(built=build_one(product.variant, again, options, suffix="-again"))
        for product in products
    ]
    return finish(built, again, options)


def compare(products: Sequence[Product], others: Sequence[Product]) -> None:
    """Compare two builds of the same packages.

    Raises :class:`FailedCommand`, which lists all that differs, when they are not byte-equal.
    """
    from extforge.audit.comparing import compare_packages

    told = []
    for product, other in zip(products, others, strict=True):
        assert product.built is not None, product
        assert other.built is not None, other
        differences = compare_packages(product.built, other.built)
        if not differences:
            print(f"{identity(product.variant)}: two builds are byte-equal", file=sys.stderr)
        told += [f"  {identity(product.variant)}: {difference.line}" for difference in differences]
    if told:
        raise FailedCommand("two builds of the same sources differ:\n" + "\n".join(told))


def audit(products: Sequence[Product], options: Options) -> None:
    """Compare what new packages claim with what they hold, their requirements solved in the channels.

    Raises :class:`FailedCommand` when one may not leave the house.
    """
    from extforge.audit.auditing import Options as AuditOptions
    from extforge.audit.auditing import audit_packages
    from extforge.audit.printing import as_text

    if not products:
        return
    paths = [product.built for product in products if product.built]
    wanted = AuditOptions(channels=options.channels, architectures=options.architectures)
    report = audit_packages(paths, wanted)
    told = as_text(report, options.strict)
    if report.failed(options.strict):
        raise FailedCommand(f"the audit found fault with what was built:\n{told}")
    print(told, end="", file=sys.stderr)


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
