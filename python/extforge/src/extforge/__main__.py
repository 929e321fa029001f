"""``python -m extforge`` and the ``extforge`` script."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from extforge.cli import run


def main() -> NoReturn:
    """Carry out the command line and end the process at once, without finalizing the interpreter.

    Threads of rattler's runtime still let go of Python objects when its last call has returned, and an
    interpreter that is torn down under them crashes: about every second time after an index was written.
    """
    code = run(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
