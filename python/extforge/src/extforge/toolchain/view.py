"""The view: a directory in the shape that every tool expects of CUDA_HOME, made of links.

No value of CUDA_HOME works for a conda prefix (headers lie under ``targets/``) or for wheels (no
``lib64``, no unversioned libraries, an nvcc that compiles but cannot link). The view repairs both. Its
one real file is nvcc: through a symbolic link nvcc would take its profile from the link's target, so
it is hard-linked, or copied across file systems, beside a plain profile.

A view is named by a digest of what it shows, appears by rename, and is never changed afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from extforge.errors import ConflictError, NotFoundError
from extforge.toolchain.cache import cache_directory
from extforge.toolchain.catalogue import CUDA_HEADERS, CUDA_LIBRARIES, CUDA_PROGRAMS
from extforge.toolchain.driver import SONAME
from extforge.toolchain.kinds import VIEW_MARKER
from extforge.toolchain.model import Found, Missing, Root, Toolchain
from extforge.toolchain.stub import generate_stub

SHAPE = 1  # raised whenever the same root would give another view
PROFILE = """\
TOP = $(_HERE_)/..
CICC_PATH = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
LD_LIBRARY_PATH += $(TOP)/lib64:
PATH += $(CICC_PATH):$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
SYSTEM_INCLUDES += "-isystem" "$(TOP)/include/cccl" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64/stubs" "-L$(TOP)/lib64"
CUDAFE_FLAGS +=
PTXAS_FLAGS +=
"""


@dataclass(frozen=True)
class View:
    """A view that may not have been built yet; ``stubbed`` tells whether it will hold a driver to link."""

    path: Path
    stubbed: bool

    @property
    def libraries(self) -> Path:
        """The directory that ``-lcudart`` is linked from."""
        return self.path / "lib64"

    @property
    def stubs(self) -> Path:
        """The directory that ``-lcuda`` is linked from, under both names."""
        return self.path / "lib64" / "stubs"


def plan_view(toolchain: Toolchain, directory: Path | None = None) -> View | None:
    """Return the view that would be built, or None where no toolkit is; nothing is written.

    ``directory`` replaces the place in the user's cache.
    """
    root = toolchain.root
    if root is None or root.kind == "triton":
        return None
    place = directory or cache_directory(toolchain.system) / "views" / _digest(toolchain, root)
    return View(place, isinstance(toolchain.get("libcuda"), Found))


def _is_generated(part: Found | Missing) -> bool:
    return isinstance(part, Found) and part.via == "generated"


def _digest(toolchain: Toolchain, root: Root) -> str:
    driver = toolchain.get("libcuda")
    driver_word = "generated" if _is_generated(driver) else str(toolchain.path("libcuda"))
    shown = [SHAPE, str(root.path), root.kind, root.version, root.target, driver_word]
    shown += [
        f"{role}={path}:{path.stat().st_mtime_ns}"
        for role in sorted(root.places)
        for path in root.places[role]
    ]
    nvcc = toolchain.path("nvcc")
    shown += [str(nvcc), str(nvcc.stat().st_mtime_ns)] if nvcc else []
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]


def build_view(toolchain: Toolchain, view: View) -> View:
    """Build the view unless it is there already.

    Raises :class:`ConflictError` for a foreign directory, :class:`NotFoundError` where none can be made.
    """
    # In this order: the view may appear at any moment, but then it appears whole.
    if view.path.exists() and (not view.path.is_dir() or any(view.path.iterdir())):
        if (view.path / VIEW_MARKER).is_file():
            return view
        raise ConflictError(f"{view.path} exists and is no view of extforge; name a new or empty directory")
    try:
        view.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        cure = "name a place that you may write to: export EXTFORGE_CACHE_DIR=DIRECTORY"
        raise NotFoundError(f"no view can be made at {view.path}: {error.strerror}; {cure}") from error
    with tempfile.TemporaryDirectory(prefix=".view-", dir=view.path.parent) as temporary:
        half_made = Path(temporary) / "view"
        _fill_view(toolchain, half_made)
        try:
            half_made.rename(view.path)
        except OSError:
            # Another process was faster; what it built is the same.
            if not (view.path / VIEW_MARKER).is_file():
                raise
    return view


def _fill_view(toolchain: Toolchain, top: Path) -> None:
    root = toolchain.root
    assert root is not None
    shared = root.kind == "split"
    _link_programs(toolchain, root, top / "bin")
    _merge(root.places.get("include", ()), top / "include", CUDA_HEADERS if shared else ("*",))
    _merge(root.places.get("lib", ()), top / "lib64", CUDA_LIBRARIES if shared else ("*",), skip=("stubs",))
    (top / "lib64").mkdir(parents=True, exist_ok=True)
    _add_unversioned_names(top / "lib64")
    (top / "lib").symlink_to("lib64")
    fill_stubs(toolchain, root, top / "lib64" / "stubs")
    for nvvm in root.places.get("nvvm", ())[:1]:
        (top / "nvvm").symlink_to(nvvm)
    marker = {"root": str(root.path), "kind": root.kind, "version": root.version, "target": root.target}
    (top / VIEW_MARKER).write_text(json.dumps(marker, indent=2) + "\n")


def _link_programs(toolchain: Toolchain, root: Root, directory: Path) -> None:
    """Link the toolkit's programs by name, since a prefix's ``bin`` holds many others."""
    _merge(root.places.get("bin", ()), directory, CUDA_PROGRAMS)
    directory.mkdir(parents=True, exist_ok=True)
    nvcc = toolchain.path("nvcc")
    if nvcc is None:
        return
    try:
        os.link(nvcc.resolve(), directory / "nvcc")
    except OSError:
        shutil.copy2(nvcc.resolve(), directory / "nvcc")
    (directory / "nvcc.profile").write_text(PROFILE)


def _merge(sources: Iterable[Path], target: Path, patterns: Sequence[str], skip: Sequence[str] = ()) -> None:
    """Show the entries of several directories in one: links to files, real directories where two meet.

    Where two sources hold one file, the first wins, as it would on a search path. One source that is
    wanted whole is one link.
    """
    sources = list(sources)
    if len(sources) == 1 and patterns == ("*",) and not skip:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(sources[0])
        return
    entries: dict[str, list[Path]] = {}
    for source in sources:
        for entry in sorted(source.iterdir()):
            if entry.name not in skip and any(fnmatch(entry.name, pattern) for pattern in patterns):
                entries.setdefault(entry.name, []).append(entry)
    if entries:
        target.mkdir(parents=True, exist_ok=True)
    for name, found in entries.items():
        directories = [entry for entry in found if entry.is_dir()]
        if len(directories) > 1 and directories[0] == found[0]:
            _merge(directories, target / name, ("*",))
        else:
            (target / name).symlink_to(found[0])


def _add_unversioned_names(directory: Path) -> None:
    """Wheels ship ``libcudart.so.13`` alone; ``-lcudart`` looks for ``libcudart.so``."""
    for library in sorted(directory.glob("lib*.so.*"), key=lambda path: len(path.name)):
        plain = directory / (library.name.split(".so.")[0] + ".so")
        if not plain.is_symlink():
            plain.symlink_to(library.name)


def fill_stubs(toolchain: Toolchain, root: Root, directory: Path) -> None:
    """Put both names of the driver into ``lib64/stubs``: linkers ask for one, Triton for the other."""
    _merge(root.places.get("stubs", ()), directory, ("lib*.so", "lib*.so.*"), skip=("libcuda.so", SONAME))
    driver = toolchain.get("libcuda")
    if isinstance(driver, Missing):
        return
    directory.mkdir(parents=True, exist_ok=True)
    if _is_generated(driver):
        generate_stub(toolchain.system, toolchain["cc"].path, toolchain["cuda_include"].path, directory)
        return
    for name in ("libcuda.so", SONAME):
        (directory / name).symlink_to(driver.path)


def require_view(toolchain: Toolchain, directory: Path | None = None) -> View:
    """Build and return the view; raises :class:`NotFoundError` where no toolkit was found."""
    view = plan_view(toolchain, directory)
    if view is None:
        seen = "; ".join(map(str, toolchain.root_tried)) or "no candidate"
        raise NotFoundError(f"no CUDA toolkit to make a view of ({seen})")
    return build_view(toolchain, view)
