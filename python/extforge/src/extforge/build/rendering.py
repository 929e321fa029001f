"""Render a recipe and choose among the rows of its variant table.

The recipe is rendered with ``Stage0Recipe.render`` from the variant files that ``conda build`` reads, so that
the package hashes agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from extforge.errors import BadInputError

if TYPE_CHECKING:
    from rattler_build import RenderedVariant

#: The variant key whose value names a row of the table: "None" is ``cpu``, "13.0" is ``cuda130``.
ROW_KEY = "cuda_compiler_version"
VARIANT_FILE = "conda_build_config.yaml"
#: The names under which a variant file may lie beside its recipe.
RECIPE_VARIANT_FILES = (VARIANT_FILE, "variants.yaml")


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


def newest_cuda(variants: Iterable[RenderedVariant]) -> str | None:
    """Return the newest CUDA that some of the packages are compiled for, such as ``13.0``."""
    values = [variant.variant.get(ROW_KEY) for variant in variants]
    return max((value for value in values if value not in (None, "None")), key=Version, default=None)


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
