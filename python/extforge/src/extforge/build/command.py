"""``extforge build``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from extforge.build.rendering import (
    VARIANT_FILE,
    describe,
    find_recipe,
    python_version,
    render,
    row_name,
    select,
)
from extforge.channels import add_channel_arguments, read_channels


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
    parser.add_argument("--strict", action="store_true",
                        help="fail on warnings of the audit, and on what it could not verify")
    parser.add_argument("--archs", default="", metavar="LIST",
                        help="GPU architectures that the audit must find, such as 80-real,90 or 8.0;9.0+PTX")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--skip-unchanged", action="store_true",
                       help="keep a package whose sources, recipe, variant and channels have not changed")
    again.add_argument("--check", action="store_true",
                       help="build everything twice, in two directories, and fail unless both builds are "
                            "byte-equal; what differs is listed")
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
    from extforge.build.building import Options, build
    from extforge.build.normalising import source_date

    date = source_date(recipe.parent)
    print(f"packages are dated {date}", file=sys.stderr)
    options = Options(
        arguments.output.resolve(),
        tuple(read_channels(arguments)),
        date.seconds,
        skip_unchanged=arguments.skip_unchanged,
        check=arguments.check,
        strict=arguments.strict,
        architectures=arguments.archs,
    )
    for package in build(variants, options):
        print(package)
    return 0
