"""``python -m extforge`` and the ``extforge`` script."""

from __future__ import annotations

import sys

from extforge.cli import run


def main() -> int:
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
