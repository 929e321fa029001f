"""examples/lltm: four builds of one extension, each in an environment of its own that is never activated.

The environments come from the channels that the test run was given (``TEST_CHANNELS``, set by ``build-locally.py test``).
Compilers, headers and libraries are told to the builds by ``extforge env`` alone; nothing on PATH but the
environment and the system's own programs. Where a tool allows it, the environment's path holds a blank: torch's own
JIT build does not quote it, and recipes are never built in such a place.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.slow

PYTHON = "{}.{}".format(*sys.version_info)
PACKAGES = (
    "python pip pytorch libtorch numpy cxx-compiler cmake ninja pybind11 scikit-build-core setuptools wheel pytest extforge"
).split()
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


class Built(NamedTuple):
    """How Python gets at one build: its interpreter, its search path, and what runs before anything else."""

    prefix: Path
    search: tuple[Path, ...] = ()
    prologue: str = ""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command and return its output; nothing of this process's environment but caches reaches it."""
    inherited = {name: os.environ[name] for name in ("HOME", "RATTLER_CACHE_DIR", "TMPDIR") if name in os.environ}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env={**inherited, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    return done.stdout + done.stderr


def search_path(prefix: Path) -> str:
    return f"{prefix}/bin:/usr/bin:/bin"


def tool_environment(prefix: Path, work: Path) -> dict[str, str]:
    """Return what ``extforge env`` of an environment that is not activated tells the builds."""
    python = prefix / "bin" / "python"
    basic = {"PATH": search_path(prefix), "XDG_CACHE_HOME": str(work / "cache")}
    done = subprocess.run(
        [python, "-m", "extforge", "env", "--shell", "json"], env=basic, capture_output=True, text=True, check=True
    )
    told: dict[str, str] = json.loads(done.stdout)
    assert Path(told["CXX"]).is_relative_to(prefix), told
    return basic | told


@pytest.fixture(scope="module")
def channels() -> list[str]:
    """The channels of the packages under test and of their dependencies."""
    if "TEST_CHANNELS" not in os.environ:
        pytest.skip("TEST_CHANNELS is not set; `python3 build-locally.py test` sets it")
    return os.environ["TEST_CHANNELS"].splitlines()


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lltm")


@pytest.fixture(scope="module")
def install(work: Path, channels: list[str]) -> Callable[..., Path]:
    """Install packages into a new environment and return its prefix."""

    def install_into(name: str, *specs: str, first: tuple[Path, ...] = ()) -> Path:
        sources = [word for channel in (*first, *channels) for word in ("--channel", str(channel))]
        command = [sys.executable, "-m", "extforge", "install", "--prefix", work / name, *specs, *sources]
        run(*command, cwd=work, PATH=os.environ["PATH"])
        return work / name

    return install_into


@pytest.fixture(scope="module")
def source(work: Path, source_root: Path) -> Path:
    """A copy of the example, because builds write beside their sources."""
    ignored = shutil.ignore_patterns("build", "__pycache__", "*.egg-info")
    return Path(shutil.copytree(source_root / "examples" / "lltm", work / "source", ignore=ignored))


@pytest.fixture(scope="module")
def prefix(install: Callable[..., Path]) -> Path:
    return install("plain", *PACKAGES)


@pytest.fixture(scope="module")
def prefix_with_blank(install: Callable[..., Path]) -> Path:
    return install("with a blank", *PACKAGES)


def build_by_jit(request: pytest.FixtureRequest, work: Path, source: Path) -> Built:
    prefix: Path = request.getfixturevalue("prefix")
    environment = tool_environment(prefix, work)
    log = run(prefix / "bin" / "python", "-c", "import jit", "-v", cwd=source, **environment)
    assert f"{environment['CXX']} -MMD" in log
    return Built(prefix, (source,), f"import os; os.environ |= {environment!r}; import jit;")


def build_by_setuptools(request: pytest.FixtureRequest, work: Path, source: Path) -> Built:
    prefix: Path = request.getfixturevalue("prefix_with_blank")
    python, wheels = prefix / "bin" / "python", work / "wheel-setuptools"
    environment = tool_environment(prefix, work)
    # setuptools reads these as a line of words, so a path with a blank cannot be said: names, found on PATH.
    environment |= {name: Path(environment[name]).name for name in ("CC", "CXX")}
    run(python, "setup.py", "-q", "bdist_wheel", "--dist-dir", wheels, cwd=source, **environment)
    return unpack(prefix, wheels, work / "setuptools")


def build_by_cmake(request: pytest.FixtureRequest, work: Path, source: Path) -> Built:
    prefix: Path = request.getfixturevalue("prefix_with_blank")
    python, wheels = prefix / "bin" / "python", work / "wheel-cmake"
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", wheels)
    run(python, "-m", "pip", "wheel", ".", *options, cwd=source, **tool_environment(prefix, work))
    return unpack(prefix, wheels, work / "cmake")


def build_by_recipe(request: pytest.FixtureRequest, work: Path, source: Path) -> Built:
    root: Path = request.getfixturevalue("source_root")
    channels: list[str] = request.getfixturevalue("channels")
    output = work / "output"
    options = ["--variant", "cpu", "--python", PYTHON, "--output", output, "-m", root / "conda_build_config.yaml"]
    sources = [word for channel in channels for word in ("--channel", channel)]
    command = [sys.executable, "-m", "extforge", "build", source / "recipe", *options, *sources]
    run(*command, cwd=work, PATH=os.environ["PATH"])
    install = request.getfixturevalue("install")
    return Built(install("from the recipe", "torch-lltm", "pytest", first=(output,)))


def unpack(prefix: Path, wheels: Path, target: Path) -> Built:
    """Install the one wheel in ``wheels`` as pip does, beside the environment."""
    (wheel,) = wheels.glob("*.whl")
    options = ("--quiet", "--no-deps", "--no-index", "--target", target)
    run(prefix / "bin" / "python", "-m", "pip", "install", *options, wheel, cwd=wheels, PATH=search_path(prefix))
    return Built(prefix, (target,))


BUILDS = {
    "jit": build_by_jit,
    "setuptools": build_by_setuptools,
    "cmake": build_by_cmake,
    "recipe": build_by_recipe,
}


@pytest.fixture(scope="module")
def build(request: pytest.FixtureRequest, work: Path, source: Path) -> Callable[[str], Built]:
    """Return the build of a name, made at the first request."""
    made: dict[str, Built] = {}

    def build_once(name: str) -> Built:
        if name not in made:
            made[name] = BUILDS[name](request, work, source)
        return made[name]

    return build_once


def run_python(built: Built, work: Path, code: str, *arguments: str | Path) -> str:
    """Run code where the build can be imported, without compilers or any other variable."""
    search = os.pathsep.join(map(str, built.search))
    python = built.prefix / "bin" / "python"
    return run(python, "-c", built.prologue + code, *arguments, cwd=work, PATH=search_path(built.prefix), PYTHONPATH=search)


@pytest.mark.parametrize("name", BUILDS)
def test_suite_of_the_example(build: Callable[[str], Built], name: str, work: Path, source: Path) -> None:
    code = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    options = ("-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", work)
    said = run_python(build(name), work, code, source / "tests", *options)
    assert " passed in " in said
    assert "skipped" not in said


@pytest.mark.parametrize("name", [name for name in BUILDS if name != "cmake"])
def test_same_bits_from_every_build(build: Callable[[str], Built], name: str, work: Path) -> None:
    import torch

    results = []
    for builder in (name, "cmake"):
        file = work / f"{builder}.pt"
        run_python(build(builder), work, PROBE, file)
        results.append(torch.load(file))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    assert all(tensor.isfinite().all() and tensor.abs().sum() > 0 for tensor in results[0])
