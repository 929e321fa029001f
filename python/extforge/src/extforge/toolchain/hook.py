"""Activation scripts for a conda prefix: static text, no Python at activation.

They run after every other script of the prefix (``~~`` sorts behind nvcc's ``~``), set a variable only
where the user has none, and put back exactly what was there. The state lives in two kinds of variables:
``_EXTFORGE_NAME`` holds the value that a hook has set, so that a stacked environment tells an outer hook's
value from a user's; ``EXTFORGE_BACKUP_<prefix>_NAME`` holds what this hook has replaced, as ``=value``, or
empty for unset.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from extforge.errors import BadInputError, NotFoundError
from extforge.toolchain.model import Toolchain
from extforge.toolchain.outputs import environment
from extforge.toolchain.system import System
from extforge.toolchain.view import build_view, plan_view

SCRIPTS = {
    "activate": Path("etc/conda/activate.d/~~extforge_activate.sh"),
    "deactivate": Path("etc/conda/deactivate.d/~~extforge_deactivate.sh"),
}
VIEWS = Path("share/extforge/views")
HEAD = '# Written by "extforge hook install"; "extforge hook remove" takes it away.\n'
ACTIVATE = """\
if [ -z "${NAME-}" ] || [ "${NAME-}" = "${_EXTFORGE_NAME-}" ]; then
  if [ -z "${BACKUP+x}" ]; then
    BACKUP="${NAME+=}${NAME-}"
    export BACKUP
  fi
  NAME=VALUE
  _EXTFORGE_NAME="${NAME}"
  export NAME _EXTFORGE_NAME
fi
"""
DEACTIVATE = """\
if [ -n "${BACKUP+x}" ]; then
  if [ "${NAME-}" = "${_EXTFORGE_NAME-}" ]; then
    if [ -n "${BACKUP}" ]; then NAME="${BACKUP#=}"; export NAME; else unset NAME; fi
  fi
  _EXTFORGE_NAME="${BACKUP#=}"
  if [ -n "${_EXTFORGE_NAME}" ]; then export _EXTFORGE_NAME; else unset _EXTFORGE_NAME; fi
  unset BACKUP
fi
"""
CACHES = {"TRITON_CACHE_DIR": "triton", "TORCH_EXTENSIONS_DIR": "torch_extensions"}
CACHE_VALUE = '"${EXTFORGE_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME-}/.cache}/extforge}/%s"'


def hook_environ(prefix: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment a hook is resolved in: nothing of the caller's may be baked in."""
    kept = {name: environ[name] for name in ("HOME", "EXTFORGE_CUDA_ROOT") if name in environ}
    return {"PATH": os.pathsep.join((f"{prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin")), **kept}


def install_hook(toolchain: Toolchain) -> list[Path]:
    """Write both scripts, and the view they name, into the prefix; return what was written."""
    prefix = toolchain.prefix
    if not toolchain.conda:
        raise BadInputError(f'{prefix} is no conda environment; elsewhere use: eval "$(extforge env)"')
    view = plan_view(toolchain)
    if view is not None:
        view = build_view(toolchain, replace(view, path=prefix / VIEWS / view.path.name))
    values = {name: shlex.quote(value) for name, value in environment(toolchain, view).items()}
    values |= {name: CACHE_VALUE % f"{place}/{toolchain.fingerprint[:16]}" for name, place in CACHES.items()}
    texts = {"activate": _write_activate(prefix, values), "deactivate": _write_deactivate(prefix, values)}
    for name, text in texts.items():
        _write_whole(prefix / SCRIPTS[name], text)
    _remove_views(prefix, keep=view.path.name if view else "")
    return [*(prefix / path for path in SCRIPTS.values()), *([view.path] if view else [])]


def _write_activate(prefix: Path, values: Mapping[str, str]) -> str:
    return HEAD + "".join(
        _fill(ACTIVATE, prefix, name).replace("VALUE", value, 1) for name, value in values.items()
    )


def _write_deactivate(prefix: Path, values: dict[str, str]) -> str:
    return HEAD + "".join(_fill(DEACTIVATE, prefix, name) for name in reversed(values))


def _fill(template: str, prefix: Path, name: str) -> str:
    backup = f"EXTFORGE_BACKUP_{hashlib.sha256(str(prefix).encode()).hexdigest()[:8]}_{name}"
    return template.replace("BACKUP", "\0").replace("NAME", name).replace("\0", backup)


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".extforge-", delete=False) as file:
        file.write(text)
    Path(file.name).chmod(0o644)
    Path(file.name).rename(path)


def remove_hook(prefix: Path) -> list[Path]:
    """Remove what :func:`install_hook` wrote; raises :class:`NotFoundError` where there is nothing."""
    written = [prefix / path for path in SCRIPTS.values() if (prefix / path).is_file()]
    if not written:
        raise NotFoundError(f"{prefix} has no hook of extforge ({prefix / SCRIPTS['activate']})")
    for path in written:
        path.unlink()
    _remove_views(prefix, keep="")
    return written


def _remove_views(prefix: Path, keep: str) -> None:
    views = prefix / VIEWS
    for view in views.iterdir() if views.is_dir() else ():
        if view.name != keep:
            shutil.rmtree(view)


def hook_system(system: System, prefix: str) -> System:
    """Return the system that a hook of ``prefix`` is resolved in."""
    return replace(system, environ=hook_environ(prefix, system.environ))
