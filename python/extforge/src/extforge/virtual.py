"""The virtual package ``__cuda``: which CUDA the solver believes this machine's driver to know."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from packaging.version import Version

#: Overrules the driver, in rattler as in conda; empty, it says that there is none.
OVERRIDE = "CONDA_OVERRIDE_CUDA"


@contextmanager
def solving_for_cuda(version: str | None) -> Iterator[None]:
    """Let solvers in this block see a driver for CUDA ``version``, if this machine's is absent or older.

    A package for CUDA is built, and runs on CPU tensors, where there is no driver; its requirements say
    otherwise. ``None`` asks for nothing, and a variable that is set is left as it is.
    """
    if version is None or OVERRIDE in os.environ or knows_cuda(driver_version(), version):
        yield
        return
    told = f"no driver for CUDA {version} here: packages are chosen as if there were ({OVERRIDE}={version})"
    print(told, file=sys.stderr)
    os.environ[OVERRIDE] = version
    try:
        yield
    finally:
        del os.environ[OVERRIDE]


def knows_cuda(driver: str | None, version: str) -> bool:
    return driver is not None and Version(driver) >= Version(version)


def driver_version() -> str | None:
    """Return the newest CUDA that the driver knows, or ``None`` where there is no driver."""
    from rattler import VirtualPackage, VirtualPackageOverrides

    found = (package.into_generic() for package in VirtualPackage.detect(VirtualPackageOverrides()))
    return next((str(package.version) for package in found if package.name.normalized == "__cuda"), None)
