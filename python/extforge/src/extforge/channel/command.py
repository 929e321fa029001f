"""``extforge channel``."""

from __future__ import annotations

import argparse
from pathlib import Path

from extforge.channel import catalogue_cuda
from extforge.errors import NotFoundError

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
    parser.add_argument("--cuda", metavar="VERSION",
                        help="hold the packages of this CUDA and a torch for it too, three gigabytes; "
                             f"valid: {catalogue_cuda.VERSION}")


def run(arguments: argparse.Namespace) -> int:
    if arguments.cuda not in (None, catalogue_cuda.VERSION):
        raise NotFoundError(
            f"no channel for CUDA {arguments.cuda} can be made: NVIDIA's wheels hold a whole compiler for "
            f"{catalogue_cuda.VERSION} alone. Another one needs a channel that has it, such as conda-forge."
        )
    from extforge.channel.make import make_channel

    directory = arguments.directory.resolve()
    cache = arguments.cache or directory.parent / "cache" / "wheels"
    make_channel(directory, cache.resolve(), cuda=arguments.cuda is not None)
    print(directory.as_uri())
    return 0
