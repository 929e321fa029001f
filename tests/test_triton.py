"""Triton in an environment of the bootstrap channel: what it compiles with is told by extforge alone.

To run them::

    extforge channel .local/channel-cuda --cuda 13.0
    TEST_CUDA_CHANNEL=.local/channel-cuda python3 build-locally.py test -- -m triton

Triton itself comes from the package index, since it is a wheel that people install into such environments.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.triton, pytest.mark.slow]

KERNEL = """\
import re, sys
from pathlib import Path
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def axpy(x, y, out, a, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    total = a * tl.load(x + place, mask=inside) + tl.load(y + place, mask=inside)
    tl.store(out + place, total, mask=inside)

types = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "a": "fp32", "n": "i32", "BLOCK": "constexpr"}
compiled = triton.compile(ASTSource(axpy, types, constexprs={"BLOCK": 128}), target=GPUTarget("cuda", 90, 32))
Path(sys.argv[1]).write_bytes(compiled.asm["cubin"])
print(re.search(r"\\.version ([\\d.]+)", compiled.asm["ptx"])[1])
"""
LAUNCHER = """\
from triton.backends.nvidia.driver import CudaUtils
CudaUtils()
print("loaded")
"""
BY_KNOB = """\
import triton
from extforge.toolchain import resolve
from extforge.toolchain.triton import triton_build_impl
from extforge.toolchain.view import require_view
toolchain = resolve()
triton.knobs.build.impl = triton_build_impl(toolchain)
triton.knobs.nvidia.libcuda_path = str(require_view(toolchain).stubs)
"""


class Triton:
    """Runs programs in the environment; nothing but the system's programs and its own is on PATH."""

    def __init__(self, prefix: Path, work: Path) -> None:
        self.prefix, self.work = prefix, work

    def attempt(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        basic = {"PATH": "/usr/bin:/bin", "HOME": str(self.work), "TRITON_DEFAULT_FP_FUSION": "1"}
        words = [str(word) for word in command]
        return subprocess.run(words, env=basic | environment, capture_output=True, text=True, check=False)

    def run(self, *command: str | Path, **environment: str) -> str:
        done = self.attempt(*command, **environment)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"

    def told(self) -> dict[str, str]:
        """Return what ``extforge env`` says."""
        text = self.run(self.python, "-m", "extforge", "env", "--shell", "bash")
        names = 'printf \'%s\\0\' "$TRITON_PTXAS_PATH" "$TRITON_LIBCUDA_PATH" "$TRITON_CACHE_DIR" "$CC"'
        values = self.run("bash", "-c", f"{text}\n{names}").split("\0")
        told = ("TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH", "TRITON_CACHE_DIR", "CC")
        return dict(zip(told, values[:4], strict=True))


@pytest.fixture(scope="module")
def triton_prefix(cuda_prefix: Path) -> Path:
    """The environment with nvcc, and the triton wheel of the package index in it."""
    options = ("--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check")
    command = [str(cuda_prefix / "bin" / "python"), "-m", "pip", "install", *options, "triton>=3.8,<4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"pip gets no triton wheel for this Python: {done.stderr.strip().splitlines()[-1]}")
    return cuda_prefix


@pytest.fixture
def triton(triton_prefix: Path, tmp_path: Path) -> Triton:
    (tmp_path / "kernel.py").write_text(KERNEL)
    return Triton(triton_prefix, tmp_path)


def test_ptxas_of_the_environment_compiles_the_kernel(triton: Triton) -> None:
    """PTX 9.0 is the one of CUDA 13.0; the bundled tool writes a later one, so the override has an effect."""
    cubin, kernel = triton.work / "axpy.cubin", triton.work / "kernel.py"
    own = triton.run(triton.python, "-m", "extforge", "run", "--", triton.python, kernel, cubin)
    assert own == "9.0\n"
    assert "sm_90" in triton.run(triton.prefix / "bin/cuobjdump", "--list-elf", cubin)
    assert "toolkit=13.0" in triton.run(triton.prefix / "bin/cuobjdump", "-elf", cubin)
    bundled = triton.run(triton.python, kernel, cubin, TRITON_CACHE_DIR=str(triton.work / "bundled"))
    assert bundled != "9.0\n"


def test_both_overrides_name_the_same_ptxas(triton: Triton) -> None:
    text = triton.run(triton.python, "-m", "extforge", "env", "--shell", "json")
    named = set(re.findall(r'"TRITON_PTXAS(?:_BLACKWELL)?_PATH": "([^"]+)"', text))
    assert named == {str(triton.prefix / "bin" / "ptxas")}


def test_an_override_that_is_missing_is_an_error(triton: Triton) -> None:
    """Triton itself would take the bundled one without a word."""
    absent = str(triton.work / "no such ptxas")
    done = triton.attempt(triton.python, "-m", "extforge", "env", TRITON_PTXAS_PATH=absent)
    assert done.returncode == 3
    assert absent in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("way", ["environment", "knob"])
def test_the_launcher_is_linked_against_the_stub(triton: Triton, way: str) -> None:
    told = triton.told()
    cache = triton.work / "triton cache"
    # The stub on the loader's path stands for the driver, in this test alone: no product ever sets it.
    loader = {"LD_LIBRARY_PATH": told["TRITON_LIBCUDA_PATH"], "TRITON_CACHE_DIR": str(cache)}
    if way == "environment":
        command = ["-c", LAUNCHER]
        variables = {name: told[name] for name in ("CC", "TRITON_LIBCUDA_PATH")}
    else:
        command, variables = ["-c", BY_KNOB + LAUNCHER], {}
    assert triton.run(triton.python, *command, **loader, **variables) == "loaded\n"
    (module,) = cache.rglob("cuda_utils*.so")
    dynamic = triton.run("readelf", "-d", module)
    assert "[libcuda.so.1]" in dynamic
    assert not re.search("RPATH|RUNPATH", dynamic)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="a driver is there, so the launcher loads")
def test_without_a_driver_the_linked_launcher_says_that_it_is_the_driver(triton: Triton) -> None:
    command = ("-m", "extforge", "run", "--", triton.python, "-c", LAUNCHER)
    done = triton.attempt(triton.python, *command)
    assert done.returncode != 0
    assert "libcuda.so.1: cannot open shared object file" in done.stderr
