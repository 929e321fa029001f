"""Facts of a Python interpreter. Run as a script, it prints those of the one that runs it.

Every value is what the interpreter *says*; stand-alone builds say wrong things (include directories
of their build machine), so nothing here may be used before it has been looked at.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple


class Interpreter(NamedTuple):
    """Directories are candidates in order of preference; they need not exist."""

    executable: str
    prefix: str
    base_prefix: str
    version: str
    includes: tuple[str, ...]
    library_directories: tuple[str, ...]
    library_name: str
    embed_libraries: str
    extension_suffix: str
    site_packages: tuple[str, ...]


def current() -> Interpreter:
    """Return the facts of the running interpreter."""
    variables: dict[str, Any] = sysconfig.get_config_vars()
    includes = [sysconfig.get_path("include", "posix_prefix"), sysconfig.get_path("include")]
    # In the order in which an import looks: what PYTHONPATH names comes before the interpreter's own.
    site = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    site += [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    libraries = [variables.get("LIBDIR"), f"{sys.base_prefix}/lib"]
    return Interpreter(
        executable=sys.executable,
        prefix=sys.prefix,
        base_prefix=sys.base_prefix,
        version=".".join(map(str, sys.version_info[:3])),
        includes=_unique(includes),
        library_directories=_unique(libraries),
        library_name=variables.get("LDLIBRARY") or "",
        embed_libraries=f"{variables.get('LIBS') or ''} {variables.get('SYSLIBS') or ''}".strip(),
        extension_suffix=variables.get("EXT_SUFFIX") or ".so",
        site_packages=_unique(site),
    )


def _unique(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for value in values if value))


def parse(text: str) -> Interpreter:
    """Return the facts that this file printed when another interpreter ran it."""
    facts: dict[str, Any] = json.loads(text)
    return Interpreter._make(tuple(v) if isinstance(v, list) else v for v in facts.values())


if __name__ == "__main__":
    print(json.dumps(current()._asdict()))
