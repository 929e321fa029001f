"""``extforge channel``."""

from __future__ import annotations

import argparse
from pathlib import Path

from extforge.channel import catalogue_cuda

DESCRIPTION = """\
The channel holds python (the running interpreter), torch and its dependencies, build tools and the
system's compilers under conda-forge's names, layout and run_exports. Wheels come from pip as it is
configured here and are kept in the cache; what is up to date is not made again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = DESCRIPTION
    parser.add_argument("directory", type=Path,
                        help="where the channel is made; new, empty or made by this command")
    parser.add_argument("--cache", type=Path, default=None, metavar="DIR",
                        help="where wheels are kept (default: DIRECTORY/../cache/wheels)")
    parser.add_argument("--cuda", choices=[catalogue_cuda.VERSION], metavar="VERSION",
                        help="hold the packages of this CUDA too, two gigabytes of them; valid: "
                             + catalogue_cuda.VERSION)


def run(arguments: argparse.Namespace) -> int:
    from extforge.channel.make import make_channel

    directory = arguments.directory.resolve()
    cache = arguments.cache or directory.parent / "cache" / "wheels"
    make_channel(directory, cache.resolve(), cuda=arguments.cuda is not None)
    print(directory.as_uri())
    return 0
