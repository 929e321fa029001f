"""Real probes: compile, link and load with the resolved parts, each in a directory that vanishes.

A probe is a name, the parts it needs and a function that runs steps; a step that fails ends it with the
command and what the command said.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from extforge.toolchain.cache import cache_directory, nearest_existing
from extforge.toolchain.driver import SONAME
from extforge.toolchain.model import Finding, Found, Toolchain
from extforge.toolchain.view import build_view, plan_view

PYTHON_SOURCE = """\
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "probe", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_probe(void) { return PyModule_Create(&module); }
"""
CXX_SOURCE = """\
#include <string>
extern "C" int probe() { return static_cast<int>(std::string("probe").size()); }
"""
CUDA_SOURCE = """\
#include <cuda_runtime.h>
__global__ void twice(float* x) { x[threadIdx.x] *= 2; }
extern "C" int probe() { int n = 0; return cudaGetDeviceCount(&n) == cudaSuccess ? n : -1; }
"""
DRIVER_SOURCE = """\
#include <cuda.h>
int probe(void) { return cuInit(0); }
"""
LOAD = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).probe())"
IMPORT = "import sys; sys.path.insert(0, sys.argv[1]); import probe"
MAP_DRIVER = (
    f"import ctypes; ctypes.CDLL({SONAME!r}); "
    "print(next(line.split()[-1] for line in open('/proc/self/maps') if 'libcuda.so' in line))"
)


class StepFailed(Exception):
    """One step of a probe did not work; carries the command and its words."""


class Bench(NamedTuple):
    """The toolchain and a scratch directory."""

    toolchain: Toolchain
    directory: Path

    def write(self, name: str, text: str) -> Path:
        """Write a source file and return its path."""
        path = self.directory / name
        path.write_text(text)
        return path

    def run(self, *command: str | Path, **variables: str) -> str:
        """Run a command in the environment under study; raises :class:`StepFailed` unless it succeeds."""
        words = [str(word) for word in command]
        environ = {**self.toolchain.system.environ, **variables}
        done = subprocess.run(
            words, env=environ, capture_output=True, text=True, check=False, cwd=self.directory
        )
        if done.returncode != 0:
            raise StepFailed("\n".join((" ".join(words), (done.stderr or done.stdout).strip())))
        return done.stdout.strip()


class _Probe(NamedTuple):
    name: str
    needs: tuple[str, ...]
    function: Callable[[Bench], str]


class Outcome(NamedTuple):
    """``state`` is passed, failed or skipped."""

    name: str
    state: str
    text: str


def _probe_cxx(bench: Bench) -> str:
    source, library = bench.write("probe.cpp", CXX_SOURCE), bench.directory / "probe.so"
    bench.run(bench.toolchain["cxx"].path, "-shared", "-fPIC", source, "-o", library)
    bench.run(bench.toolchain.interpreter.executable, "-c", LOAD, library)
    return "a C++ library compiles, links and loads"


def _probe_python(bench: Bench) -> str:
    toolchain, source = bench.toolchain, bench.write("probe.c", PYTHON_SOURCE)
    module = bench.directory / f"probe{toolchain.interpreter.extension_suffix}"
    bench.run(
        toolchain["cc"].path, "-shared", "-fPIC", *toolchain.flags("python").cflags, source, "-o", module
    )
    bench.run(toolchain.interpreter.executable, "-c", IMPORT, bench.directory)
    return "a Python module compiles, links and imports"


def _probe_cuda(bench: Bench) -> str:
    """The view's nvcc, since that is the one that every tool is pointed at."""
    toolchain, source = bench.toolchain, bench.write("probe.cu", CUDA_SOURCE)
    view = plan_view(toolchain)
    assert view is not None
    nvcc, library = build_view(toolchain, view).path / "bin/nvcc", bench.directory / "probe.so"
    host = ("-ccbin", toolchain["cxx"].path, "-Xcompiler", "-fPIC")
    bench.run(nvcc, *host, "-shared", "-cudart", "shared", source, "-o", library)
    runtime = str(toolchain["cudart"].path.parent)
    devices = bench.run(toolchain.interpreter.executable, "-c", LOAD, library, LD_LIBRARY_PATH=runtime)
    seen = "no driver or GPU here" if devices == "-1" else f"{devices} GPU"
    return f"a CUDA library compiles, links and loads ({seen})"


def _probe_driver_link(bench: Bench) -> str:
    toolchain, source = bench.toolchain, bench.write("probe.c", DRIVER_SOURCE)
    view, library, flags = plan_view(toolchain), bench.directory / "probe.so", toolchain.flags("cuda")
    if view is not None:
        build_view(toolchain, view)
    compiler = toolchain["cc"].path
    bench.run(compiler, "-shared", "-fPIC", *flags.cflags, source, *flags.ldflags, *flags.libs, "-o", library)
    needed, rpaths = read_dynamic(library)
    if SONAME not in needed or rpaths:
        raise StepFailed(f"expected to need {SONAME} and to have no rpath; needs {needed}, rpath {rpaths}")
    return f"-lcuda links and asks the loader for {SONAME}"


def read_dynamic(library: Path) -> tuple[list[str], list[str]]:
    """Return the needed libraries and the rpaths of a shared library."""
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile

    with library.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        tags = list(section.iter_tags()) if isinstance(section, DynamicSection) else []
    needed = [str(tag.needed) for tag in tags if tag.entry.d_tag == "DT_NEEDED"]  # type: ignore[attr-defined]
    return needed, [tag.entry.d_tag for tag in tags if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")]


def _probe_driver_load(bench: Bench) -> str:
    loaded = bench.run(bench.toolchain.interpreter.executable, "-c", MAP_DRIVER)
    expected = bench.toolchain["libcuda_runtime"].path
    if Path(loaded).resolve() != expected.resolve():
        raise StepFailed(f"the loader takes {loaded}, the file system suggests {expected}")
    return f"the loader maps {loaded}"


def _probe_cache(bench: Bench) -> str:
    """A script in the cache must run: a noexec mount stops every compiled module."""
    place = nearest_existing(cache_directory(bench.toolchain.system))
    with tempfile.NamedTemporaryFile("w", dir=place, prefix=".extforge-", suffix=".sh", delete=False) as file:
        file.write("#!/bin/sh\nexit 0\n")
    script = Path(file.name)
    try:
        script.chmod(0o755)
        bench.run(script)
    except OSError as error:
        raise StepFailed(f"{script}: {error.strerror}") from error
    finally:
        script.unlink()
    return f"{place} allows what was compiled to be loaded"


PROBES = (
    _Probe("c++", ("cxx",), _probe_cxx),
    _Probe("python", ("cc", "python_include"), _probe_python),
    _Probe("cuda", ("cxx", "nvcc", "cudart", "cuda_include"), _probe_cuda),
    _Probe("driver-link", ("cc", "cuda_include", "libcuda"), _probe_driver_link),
    _Probe("driver-load", ("libcuda_runtime",), _probe_driver_load),
    _Probe("cache", (), _probe_cache),
)


def run_probes(toolchain: Toolchain) -> Iterator[Outcome]:
    """Yield the outcome of each probe as it ends; one whose parts are missing is skipped and says so."""
    for probe in PROBES:
        missing = [name for name in probe.needs if not isinstance(toolchain.get(name), Found)]
        if missing:
            yield Outcome(probe.name, "skipped", "missing: " + ", ".join(missing))
            continue
        with tempfile.TemporaryDirectory(prefix="extforge-probe-") as directory:
            try:
                yield Outcome(probe.name, "passed", probe.function(Bench(toolchain, Path(directory))))
            except StepFailed as failure:
                yield Outcome(probe.name, "failed", str(failure))


def probe_findings(outcomes: list[Outcome]) -> list[Finding]:
    """Return an error for every probe that failed."""
    return [
        Finding(
            f"probe-{outcome.name}",
            "error",
            f"probe {outcome.name} failed",
            "",
            tuple(outcome.text.splitlines()),
        )
        for outcome in outcomes
        if outcome.state == "failed"
    ]
