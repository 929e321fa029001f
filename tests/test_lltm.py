"""examples/lltm: four builds of one extension, each in an environment of its own that is never activated.

The environments come from the channels that the test run was given (``TEST_CHANNELS``, set by
``build-locally.py test``). Compilers, headers and libraries are told to the builds by ``extforge env``
alone; on PATH are the environment and the system's own programs. Where a tool allows it, the
environment's path holds a blank: torch's own JIT build does not quote it, and recipes are never built
in such a place.

With CUDA, on a machine that need not have a GPU::

    extforge channel .local/channel-cuda --cuda 13.0
    pip install --target .local/torch-cuda torch==2.14.1
    TEST_CUDA_CHANNEL=.local/channel-cuda TEST_CUDA_TORCH=.local/torch-cuda \\
        python3 build-locally.py test -- -m "cuda_channel or cuda_torch"
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.slow

PYTHON = "{}.{}".format(*sys.version_info)
BUILD_PACKAGES = [
    *("python", "pip", "numpy", "cxx-compiler", "cmake", "ninja", "pybind11", "scikit-build-core"),
    *("setuptools", "wheel", "pytest", "extforge"),
]
TORCH_PACKAGES = ["pytorch", "libtorch"]
#: What find_package(Torch) of a CUDA torch asks for, and cuobjdump to look at what came out.
CUDA_PACKAGES = [
    *("cuda-nvcc", "cuda-cudart-dev", "cuda-driver-dev", "cuda-nvrtc-dev", "cuda-nvtx-dev", "cuda-cuobjdump"),
    *("libcublas-dev", "libcufft-dev", "libcurand-dev", "libcusolver-dev", "libcusparse-dev"),
    "cuda-profiler-api",
]
PROBE = """
import sys, torch
from lltm import LLTM, lltm
generator = torch.Generator().manual_seed(0)
draw = lambda *size: torch.randn(size, generator=generator).requires_grad_()
arguments = [draw(8, 5), draw(21, 12), draw(21), draw(8, 7), draw(8, 7)]
result = lltm(*arguments)
gradients = torch.autograd.grad(result[0].sum() + result[1].square().sum(), arguments)
torch.save([tensor.detach() for tensor in (*result, *gradients)], sys.argv[1])
"""
ASK_WHERE = """
import pathlib, sys
import torch, lltm
pathlib.Path(sys.argv[1]).write_text(lltm._lltm.__file__)
"""


class Tools(NamedTuple):
    """A Python that builds, and all that its builds are told; ``work`` takes what they write."""

    python: Path
    environment: dict[str, str]
    work: Path


class Built(NamedTuple):
    """How Python gets at one build: its interpreter, its search path, and what runs before anything else."""

    python: Path
    search: tuple[Path, ...] = ()
    prologue: str = ""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command and return its output; nothing of this process's environment but caches reaches it."""
    inherited = {
        name: os.environ[name] for name in ("HOME", "RATTLER_CACHE_DIR", "TMPDIR") if name in os.environ
    }
    words = [str(word) for word in command]
    variables = {**inherited, **environment}
    done = subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    return done.stdout + done.stderr


def make_tools(python: Path, prefix: Path, work: Path) -> Tools:
    """Ask ``extforge env`` of an environment that is not activated."""
    basic = {"PATH": f"{prefix}/bin:/usr/bin:/bin", "XDG_CACHE_HOME": str(work / "cache"), "MAX_JOBS": "2"}
    command = [str(python), "-m", "extforge", "env", "--shell", "json"]
    done = subprocess.run(command, env=basic, capture_output=True, text=True, check=True)
    told: dict[str, str] = json.loads(done.stdout)
    assert Path(told["CXX"]).is_relative_to(prefix), told
    return Tools(python, basic | told, work)


def build_by_jit(tools: Tools, source: Path) -> Built:
    log = run(tools.python, "-c", "import jit", "-v", cwd=source, **tools.environment)
    assert f"{tools.environment['CXX']} -MMD" in log
    return Built(tools.python, (source,), f"import os; os.environ |= {tools.environment!r}; import jit;")


def build_by_setuptools(tools: Tools, source: Path) -> Built:
    wheels = tools.work / "wheel-setuptools"
    # setuptools reads these as a line of words, so a path with a blank cannot be said: names, found on PATH.
    names = {name: Path(tools.environment[name]).name for name in ("CC", "CXX")}
    command = (tools.python, "setup.py", "-q", "bdist_wheel", "--dist-dir", wheels)
    run(*command, cwd=source, **(tools.environment | names))
    return unpack(tools, wheels, tools.work / "setuptools")


def build_by_cmake(tools: Tools, source: Path) -> Built:
    wheels = tools.work / "wheel-cmake"
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", wheels)
    run(tools.python, "-m", "pip", "wheel", ".", *options, cwd=source, **tools.environment)
    return unpack(tools, wheels, tools.work / "cmake")


def unpack(tools: Tools, wheels: Path, target: Path) -> Built:
    """Install the one wheel in ``wheels`` as pip does, beside the environment."""
    (wheel,) = wheels.glob("*.whl")
    options = ("--quiet", "--no-deps", "--no-index", "--target", target)
    run(tools.python, "-m", "pip", "install", *options, wheel, cwd=wheels, PATH=tools.environment["PATH"])
    return Built(tools.python, (target,))


def run_python(built: Built, work: Path, code: str, *arguments: str | Path) -> str:
    """Run code where the build can be imported, without compilers or any other variable."""
    search = os.pathsep.join(map(str, built.search))
    command = (built.python, "-c", built.prologue + code, *arguments)
    return run(*command, cwd=work, PATH=f"{built.python.parent}:/usr/bin:/bin", PYTHONPATH=search)


def run_suite(built: Built, work: Path, source: Path) -> None:
    """Run the example's own tests on a build."""
    code = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    options = ("-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", work)
    said = run_python(built, work, code, source / "tests", *options)
    assert re.search(r"\d+ passed", said)
    assert "skipped" not in said


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lltm")


Install = Callable[..., Path]


@pytest.fixture(scope="module")
def install(work: Path, test_channels: list[str]) -> Install:
    """Install packages into a new environment and return its prefix."""

    def install_into(name: str, *specs: str, first: tuple[Path, ...] = ()) -> Path:
        sources = [word for channel in (*first, *test_channels) for word in ("--channel", str(channel))]
        command = (sys.executable, "-m", "extforge", "install", "--prefix", work / name)
        run(*command, *specs, *sources, cwd=work, PATH=os.environ["PATH"])
        return work / name

    return install_into


@pytest.fixture(scope="module")
def source(work: Path, source_root: Path) -> Path:
    """A copy of the example, because builds write beside their sources."""
    ignored = shutil.ignore_patterns("build", "__pycache__", "*.egg-info")
    return Path(shutil.copytree(source_root / "examples" / "lltm", work / "source", ignore=ignored))


@pytest.fixture(scope="module")
def plain(install: Install, work: Path) -> Tools:
    prefix = install("plain", *BUILD_PACKAGES, *TORCH_PACKAGES)
    return make_tools(prefix / "bin" / "python", prefix, work)


@pytest.fixture(scope="module")
def with_blank(install: Install, work: Path) -> Tools:
    prefix = install("with a blank", *BUILD_PACKAGES, *TORCH_PACKAGES)
    return make_tools(prefix / "bin" / "python", prefix, work)


@pytest.fixture(scope="module")
def by_recipe(
    install: Install, test_channels: list[str], work: Path, source: Path, source_root: Path
) -> Built:
    output = work / "output"
    variants = ("--variant", "cpu", "--python", PYTHON, "-m", source_root / "conda_build_config.yaml")
    sources = [word for channel in test_channels for word in ("--channel", channel)]
    command = (sys.executable, "-m", "extforge", "build", source / "recipe", "--output", output)
    said = run(*command, *variants, *sources, "--check", "--strict", cwd=work, PATH=os.environ["PATH"])
    assert "two builds are byte-equal" in said
    prefix = install("from the recipe", "torch-lltm", "pytest", first=(output,))
    return Built(prefix / "bin" / "python")


@pytest.fixture(scope="module")
def by_jit(plain: Tools, source: Path) -> Built:
    return build_by_jit(plain, source)


@pytest.fixture(scope="module")
def by_setuptools(with_blank: Tools, source: Path) -> Built:
    return build_by_setuptools(with_blank, source)


@pytest.fixture(scope="module")
def by_cmake(with_blank: Tools, source: Path) -> Built:
    return build_by_cmake(with_blank, source)


@pytest.mark.parametrize("build", ["by_jit", "by_setuptools", "by_cmake", "by_recipe"])
def test_suite_of_the_example(request: pytest.FixtureRequest, build: str, work: Path, source: Path) -> None:
    run_suite(request.getfixturevalue(build), work, source)


@pytest.mark.parametrize("build", ["by_jit", "by_setuptools", "by_recipe"])
def test_same_bits_from_every_build(
    request: pytest.FixtureRequest, build: str, by_cmake: Built, work: Path
) -> None:
    import torch

    results = []
    for name, built in ((build, request.getfixturevalue(build)), ("by_cmake", by_cmake)):
        run_python(built, work, PROBE, work / f"{name}.pt")
        results.append(torch.load(work / f"{name}.pt"))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    assert all(tensor.isfinite().all() and tensor.abs().sum() > 0 for tensor in results[0])


def device_code(prefix: Path, binary: Path) -> set[str]:
    """Return the architectures in a binary as extension.json writes them: machine code, and PTX as +PTX."""
    command = (prefix / "bin" / "cuobjdump", "--list-elf", "--list-ptx", binary)
    said = run(*command, cwd=binary.parent, PATH="/usr/bin:/bin")
    machine, portable = (set(re.findall(rf"sm_(\d+)\.{kind}", said)) for kind in ("cubin", "ptx"))
    assert machine
    assert portable <= machine
    return {f"{code[:-1]}.{code[-1]}" + ("+PTX" if code in portable else "") for code in machine}


ARCHITECTURES: dict[str, tuple[list[str], dict[str, str], set[str] | None]] = {
    "extension.json": ([], {}, None),
    "TORCH_CUDA_ARCH_LIST": ([], {"TORCH_CUDA_ARCH_LIST": "8.0;9.0+PTX"}, {"8.0", "9.0+PTX"}),
    "command line": (["-DCMAKE_CUDA_ARCHITECTURES=90-real"], {"TORCH_CUDA_ARCH_LIST": "8.0"}, {"9.0"}),
}


@pytest.mark.cuda_channel
@pytest.mark.parametrize(("options", "variables", "wanted"), ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
def test_cmake_compiles_the_kernels_for_the_architectures_asked_for(
    cuda_prefix: Path,
    source: Path,
    tmp_path: Path,
    options: list[str],
    variables: dict[str, str],
    wanted: set[str] | None,
) -> None:
    """The kernels know no torch, so that a torch for the CPU is enough to compile them."""
    tools = make_tools(cuda_prefix / "bin" / "python", cuda_prefix, tmp_path)
    environment = tools.environment | variables
    configure = ("cmake", "-G", "Ninja", "-S", source, "-B", "build", "-DLLTM_CUDA=ON")
    run(*configure, *options, f"-DPython_EXECUTABLE={tools.python}", cwd=tmp_path, **environment)
    kernels = "CMakeFiles/_lltm.dir/lltm_cuda.cu.o"
    run("cmake", "--build", "build", "--target", kernels, cwd=tmp_path, **environment)
    stated = set(json.loads((source / "extension.json").read_text())["cuda_architectures"])
    assert device_code(cuda_prefix, tmp_path / "build" / kernels) == (wanted or stated)


@pytest.fixture(scope="module")
def cuda_tools(cuda_channel: Path, work: Path, install: Install) -> Tools:
    """A Python of an environment with all of CUDA, that finds the CUDA torch that the run was given."""
    if "TEST_CUDA_TORCH" not in os.environ:
        pytest.skip(
            "TEST_CUDA_TORCH is not set; it names a directory of `pip install --target` with a CUDA torch"
        )
    prefix = install("cuda", *BUILD_PACKAGES, *CUDA_PACKAGES, first=(cuda_channel,))
    run(prefix / "bin" / "python", "-m", "venv", "--without-pip", "--system-site-packages", "venv", cwd=work)
    (packages,) = (work / "venv").glob("lib/python3*/site-packages")
    (packages / "cuda-torch.pth").write_text(str(Path(os.environ["TEST_CUDA_TORCH"]).resolve()))
    (work / "results").mkdir()
    return make_tools(work / "venv" / "bin" / "python", prefix, work / "results")


@pytest.mark.cuda_channel
@pytest.mark.cuda_torch
@pytest.mark.parametrize(
    "build", [build_by_jit, build_by_setuptools, build_by_cmake], ids=lambda b: b.__name__
)
def test_with_a_cuda_torch_every_build_holds_the_stated_architectures(
    cuda_tools: Tools, build: Callable[[Tools, Path], Built], source: Path, work: Path
) -> None:
    """Torch's own CMake files would compile for others; without a GPU, torch's own JIT build for none."""
    built = build(cuda_tools, source)
    run_suite(built, work, source)
    run_python(built, work, ASK_WHERE, work / "where.txt")
    binary = Path((work / "where.txt").read_text())
    stated = set(json.loads((source / "extension.json").read_text())["cuda_architectures"])
    assert device_code(Path(cuda_tools.environment["CXX"]).parents[1], binary) == stated
