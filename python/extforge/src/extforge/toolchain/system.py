"""The world as the resolver may see it: an environment mapping, a file-system root, programs to ask.

Nothing else in the package reads ``os.environ`` or names a fixed place of the system, so a test can
hand in both and the answer depends on nothing besides.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 20.0  # seconds until a program that does not answer is given up
# nvcc obeys these: what it is asked about itself must not depend on the flags of somebody's build.
HIDDEN_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")


@dataclass(frozen=True)
class System:
    """``sysroot`` stands before the fixed places of the system only, never before a user's path."""

    environ: Mapping[str, str]
    sysroot: Path = Path("/")

    def at(self, place: str) -> Path:
        """Return the fixed system place ``place`` under the sysroot."""
        return self.sysroot / place.lstrip("/")

    def variable(self, name: str) -> str | None:
        """Return an environment variable; an empty one counts as unset."""
        return self.environ.get(name) or None

    def directories(self, name: str) -> list[Path]:
        """Return the absolute directories of a list variable such as PATH, in order."""
        entries = (self.variable(name) or "").split(os.pathsep)
        return [Path(entry) for entry in dict.fromkeys(entries) if entry.startswith("/")]

    def on_path(self, *names: str) -> Iterator[Path]:
        """Yield every file on PATH with one of these names; a name's hits come before the next's."""
        for name in names:
            for directory in self.directories("PATH"):
                if os.path.lexists(directory / name):
                    yield directory / name

    def ask(self, *command: str | Path) -> tuple[bool, str]:
        """Run a program and return whether it succeeded, with all it wrote."""
        environ = {key: value for key, value in self.environ.items() if key not in HIDDEN_VARIABLES}
        try:
            answer = subprocess.run(
                [str(word) for word in command],
                env={**environ, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=PATIENCE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return False, str(error)
        return answer.returncode == 0, answer.stdout.decode(errors="replace")
