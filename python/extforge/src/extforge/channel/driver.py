"""Plan ``cuda-driver-dev_linux-64``: no wheel holds the driver's stub; it is compiled from ``cuda.h``."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from extforge.channel.archive import Entry, PlannedPackage
from extforge.channel.catalogue_cuda import CUDART, TARGET, THIS_CUDA, WHEEL
from extforge.channel.compilers import build_string, system_compiler
from extforge.channel.repack import PLATFORM
from extforge.channel.wheels import Wheel
from extforge.toolchain.stub import generate_stub
from extforge.toolchain.system import System


def plan_driver(runtime: Wheel) -> PlannedPackage:
    """Return the package of the stub; ``runtime`` is the wheel of the CUDA runtime."""
    return PlannedPackage(
        name="cuda-driver-dev_linux-64",
        version=CUDART,
        build=build_string("driver", runtime.path.name),
        subdir=PLATFORM,
        summary="A stub of the CUDA driver, to link against; compiled from cuda.h on this machine",
        license="BSD-3-Clause",
        entries=partial(stub_entries, runtime),
        depends=(THIS_CUDA,),
    )


def stub_entries(runtime: Wheel) -> Iterator[Entry]:
    """Yield the stub under the one name that conda-forge's has."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "cuda.h").write_bytes(runtime.archive.read(f"{WHEEL}/include/cuda.h"))
        content = generate_stub(System(os.environ), Path(system_compiler("gcc")), place, place).read_bytes()
    yield Entry(f"{TARGET}/lib/stubs/libcuda.so", partial(io.BytesIO, content), len(content), executable=True)
