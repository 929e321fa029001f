"""``extforge json``: the whole resolution as one document."""

from __future__ import annotations

import argparse
import json

from extforge.toolchain.options import add_query_arguments, survey_from
from extforge.toolchain.outputs import document


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "--why", action="store_true", help="add the candidates that were not taken, with reasons"
    )
    add_query_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the document, contradictions included; exit with 3 when there are any."""
    toolchain = survey_from(arguments)
    print(json.dumps(document(toolchain, arguments.why), indent=2))
    toolchain.refuse()
    return 0
