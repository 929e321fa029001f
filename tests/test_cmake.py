"""The doors to the sources (CMake, pip install, pip wheel, an editable install) and how torch is found."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch_sparse_ops

BUILD_INPUTS = [
    "CMakeLists.txt",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "cmake",
    "csrc",
    "python/torch_sparse_ops",
]
OUTSIDE_CONDA: dict[str, str | None] = {"CONDA_BUILD": None, "PREFIX": None, "CMAKE_ARGS": None}
WITHOUT_PYTHONPATH = {"PYTHONPATH": None}
USE_THE_OPERATOR = """
import torch, torch_sparse_ops
print(torch_sparse_ops.__file__)
print(torch_sparse_ops.ops.ffi_forward(torch.ones(2), torch.ones(1, 2), torch.tensor([[0, 1]])).item())
"""


def run(
    *command: str | Path, check: bool = True, environment: Mapping[str, str | None] = OUTSIDE_CONDA
) -> subprocess.CompletedProcess[str]:
    """Run a command outside any package build; None removes a variable."""
    changed = {**os.environ, **OUTSIDE_CONDA, **environment}
    cleaned = {name: value for name, value in changed.items() if value is not None}
    done = subprocess.run(
        [str(part) for part in command], env=cleaned, capture_output=True, text=True, check=False
    )
    assert not check or done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def configure(
    source: Path,
    build: Path,
    python: Path | None,
    *arguments: str,
    check: bool = True,
    environment: Mapping[str, str | None] = OUTSIDE_CONDA,
) -> str:
    """Configure with the given Python (None: the first on PATH) and return all that CMake printed."""
    chosen = [f"-DPython_EXECUTABLE={python}"] if python else []
    directories = ("-S", source, "-B", build)
    done = run(
        "cmake", *directories, "-G", "Ninja", *chosen, *arguments, check=check, environment=environment
    )
    assert check or done.returncode != 0, f"CMake was expected to refuse\n{done.stdout}"
    return re.sub(r"\s+", " ", done.stdout + done.stderr)  # CMake breaks the lines of messages


def copy_sources(source_root: Path, target: Path) -> Path:
    for name in BUILD_INPUTS:
        source = source_root / name
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)
    return target


def make_environment(directory: Path) -> Path:
    """Make a virtual environment without any package and return its site-packages."""
    run(sys.executable, "-m", "venv", "--without-pip", directory)
    return Path(sysconfig.get_path("purelib", "posix_prefix", {"base": str(directory)}))


def make_torch(package: Path, root: Path, version: tuple[int, int, int] = (2, 13, 0)) -> None:
    """Lay out what a configure looks at: the package, and under root the library and headers that count."""
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('a configure must not import torch')\n")
    headers = root / "include" / "torch"
    (headers / "headeronly").mkdir(parents=True)
    names = zip(("MAJOR", "MINOR", "PATCH"), version, strict=True)
    (headers / "headeronly" / "version.h").write_text(
        "".join(f"#define TORCH_VERSION_{n} {v}\n" for n, v in names)
    )
    (headers / "csrc" / "stable").mkdir(parents=True)
    (headers / "csrc" / "stable" / "library.h").touch()
    (root / "lib").mkdir(exist_ok=True)
    (root / "lib" / "libtorch_cpu.so").touch()
    if root != package:
        (package / "lib").mkdir()
        (package / "lib" / "libtorch_cpu.so").symlink_to(root / "lib" / "libtorch_cpu.so")


@pytest.fixture
def wheel_layout(tmp_path: Path) -> Path:
    """A Python whose torch lies inside its package, as a wheel leaves it."""
    package = make_environment(tmp_path / "wheel") / "torch"
    make_torch(package, package)
    return tmp_path / "wheel" / "bin" / "python"


@pytest.fixture
def conda_layout(tmp_path: Path) -> Path:
    """A Python whose torch lies under the prefix, with links in the package, as conda leaves it."""
    prefix = tmp_path / "conda"
    make_torch(make_environment(prefix) / "torch", prefix)
    return prefix / "bin" / "python"


@pytest.fixture
def daughter_environment(tmp_path: Path) -> Path:
    """A Python that sees the packages of the running one, but into which can be installed."""
    site_packages = make_environment(tmp_path / "daughter")
    inherited = "".join(f"{sysconfig.get_path(name)}\n" for name in ("purelib", "platlib"))
    (site_packages / "inherited.pth").write_text(inherited)
    return tmp_path / "daughter" / "bin" / "python"


@pytest.fixture(scope="session")
def cmake_build(source_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build directory of a plain CMake build of the checkout."""
    build = tmp_path_factory.mktemp("cmake") / "build"
    configure(source_root, build, Path(sys.executable))
    run("cmake", "--build", build)
    return build


@pytest.fixture(scope="session")
def wheel(source_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a copy of the sources in another directory, with a blank in its path."""
    sources = copy_sources(source_root, tmp_path_factory.mktemp("copied sources"))
    target = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir")
    run(*pip, "-w", target, sources)
    (path,) = target.iterdir()
    return path


# ---- the doors


def list_package(source_root: Path) -> set[str]:
    """Name the files that make the whole package."""
    sources = (source_root / "python" / "torch_sparse_ops").glob("*.*")
    return {path.name for path in sources} | {"_version.py", torch_sparse_ops.LIBRARY_NAME}


def pip_install_into(python: Path) -> tuple[str | Path, ...]:
    """Begin a command that installs beside, not instead of, a package which this Python inherits."""
    return sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--ignore-installed"


def test_a_cmake_build_gives_an_importable_package(cmake_build: Path) -> None:
    build_path = {"PYTHONPATH": f"{cmake_build}/python"}
    path, result = run(sys.executable, "-c", USE_THE_OPERATOR, environment=build_path).stdout.split()
    assert Path(path) == cmake_build / "python" / "torch_sparse_ops" / "__init__.py"
    assert result == "2.0"


def test_cmake_install_gives_the_whole_package(cmake_build: Path, source_root: Path, tmp_path: Path) -> None:
    run("cmake", "--install", cmake_build, "--prefix", tmp_path)
    installed = {path.name for path in (tmp_path / "torch_sparse_ops").iterdir()}
    assert installed == list_package(source_root)
    path, result = run(
        sys.executable, "-c", USE_THE_OPERATOR, environment={"PYTHONPATH": str(tmp_path)}
    ).stdout.split()
    assert Path(path).parent == tmp_path / "torch_sparse_ops"
    assert result == "2.0"


def test_a_wheel_holds_the_package_and_serves_every_python(wheel: Path, source_root: Path) -> None:
    assert wheel.name == f"torch_sparse_ops-{torch_sparse_ops.__version__}-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name).name for name in archive.namelist() if name.startswith("torch_sparse_ops/")}
    assert names == list_package(source_root)


def test_every_door_and_every_directory_gives_the_same_bytes(wheel: Path, cmake_build: Path) -> None:
    name = f"torch_sparse_ops/{torch_sparse_ops.LIBRARY_NAME}"
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(name) == (cmake_build / "python" / name).read_bytes()


def test_a_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size <= 250_000


def test_a_wheel_installs(wheel: Path, daughter_environment: Path) -> None:
    run(*pip_install_into(daughter_environment), wheel)
    path, result = run(
        daughter_environment, "-c", USE_THE_OPERATOR, environment=WITHOUT_PYTHONPATH
    ).stdout.split()
    assert daughter_environment.parents[1] in Path(path).parents
    assert result == "2.0"


@pytest.mark.slow
def test_an_editable_install_follows_python_and_cpp(
    daughter_environment: Path, source_root: Path, tmp_path: Path
) -> None:
    sources = copy_sources(source_root, tmp_path / "sources")
    options = (
        "--no-build-isolation",
        "--no-cache-dir",
        "-C",
        "cmake.build-type=Debug",
    )  # Debug compiles faster
    run(*pip_install_into(daughter_environment), *options, "-e", sources)
    command = (daughter_environment, "-c", USE_THE_OPERATOR)
    path, result = run(*command, environment=WITHOUT_PYTHONPATH).stdout.split()
    assert Path(path) == sources / "python" / "torch_sparse_ops" / "__init__.py"
    assert result == "2.0"

    contract = sources / "csrc" / "fixed_fan_in.h"
    contract.write_text(contract.read_text().replace('", accepted is "', '", but accepted would be "'))
    with (sources / "python" / "torch_sparse_ops" / "ops.py").open("a") as stream:
        stream.write("print('changed')\n")
    failing = "import torch, torch_sparse_ops as t; t.ops.ffi_forward(*[torch.ones(())] * 3)"
    done = run(daughter_environment, "-c", failing, check=False, environment=WITHOUT_PYTHONPATH)
    assert done.stdout == "changed\n"
    assert "features: received shape [], but accepted would be shape [..., in_features]" in done.stderr


# ---- what a configure says and does


def test_configure_prints_what_it_resolved(source_root: Path, wheel_layout: Path, tmp_path: Path) -> None:
    package = make_path(wheel_layout, "torch")
    text = configure(source_root, tmp_path / "build", wheel_layout)
    for row in (
        f"-- python {wheel_layout} (3.",
        f"-- torch 2.13.0, {package} ",
        f"-- headers {package}/include ",
        f"-- library {package}/lib/libtorch_cpu.so ",
        "-- target ABI LibTorch stable, 2.10 or newer (0x020a000000000000) ",
    ):
        assert row in text
    assert re.search(r"-- compiler /\S+ \(\w+ [\d.]+\), Release ", text)


def make_path(python: Path, package: str) -> Path:
    """Return where a package lies in the site-packages of an environment made here."""
    return Path(sysconfig.get_path("purelib", "posix_prefix", {"base": str(python.parents[1])})) / package


def test_conda_layout_resolves_to_the_prefix(source_root: Path, conda_layout: Path, tmp_path: Path) -> None:
    prefix = conda_layout.parents[1]
    text = configure(source_root, tmp_path / "build", conda_layout)
    assert f"-- headers {prefix}/include " in text
    assert f"-- library {prefix}/lib/libtorch_cpu.so " in text


def test_an_incomplete_include_in_the_package_is_passed_over(
    source_root: Path, conda_layout: Path, tmp_path: Path
) -> None:
    (make_path(conda_layout, "torch") / "include" / "torch").mkdir(parents=True)
    text = configure(source_root, tmp_path / "build", conda_layout)
    assert f"-- headers {conda_layout.parents[1]}/include " in text


@pytest.mark.parametrize("how", ["argument", "PATH"])
def test_a_build_directory_remembers_no_torch(
    source_root: Path, wheel_layout: Path, conda_layout: Path, tmp_path: Path, how: str
) -> None:
    for python in (wheel_layout, conda_layout):
        if how == "argument":
            text = configure(source_root, tmp_path / "build", python)
        else:
            path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
            text = configure(source_root, tmp_path / "build", None, environment={"PATH": path})
        assert f"-- library {python.parents[1]}/" in text
    assert str(wheel_layout.parents[1]) not in text


def test_torch_moved_within_its_environment_is_found_again(
    source_root: Path, wheel_layout: Path, tmp_path: Path
) -> None:
    configure(source_root, tmp_path / "build", wheel_layout)
    shutil.rmtree(make_path(wheel_layout, "torch"))
    make_torch(make_path(wheel_layout, "torch"), wheel_layout.parents[1], version=(2, 14, 1))
    text = configure(source_root, tmp_path / "build", wheel_layout)
    assert "-- torch 2.14.1, " in text
    assert f"-- headers {wheel_layout.parents[1]}/include " in text


def test_a_python_that_is_gone_is_refused(source_root: Path, wheel_layout: Path, tmp_path: Path) -> None:
    configure(source_root, tmp_path / "build", wheel_layout)
    shutil.rmtree(wheel_layout.parents[1])
    text = configure(source_root, tmp_path / "build", None, check=False)
    assert f"Python_EXECUTABLE={wheel_layout} does not exist" in text


def test_a_python_without_torch_is_refused(source_root: Path, tmp_path: Path) -> None:
    make_environment(tmp_path / "empty")
    python = tmp_path / "empty" / "bin" / "python"
    text = configure(source_root, tmp_path / "build", python, check=False, environment=WITHOUT_PYTHONPATH)
    assert f"this Python has no torch. Install torch 2.10 or newer for it. Python asked: {python}" in text


def test_an_old_torch_is_refused(source_root: Path, tmp_path: Path) -> None:
    package = make_environment(tmp_path / "old") / "torch"
    make_torch(package, package, version=(2, 9, 1))
    text = configure(source_root, tmp_path / "build", tmp_path / "old" / "bin" / "python", check=False)
    assert f"torch 2.9.1 in {package}/include is too old: 2.10 or newer is needed." in text


def test_the_cuda_library_is_refused_without_cuda_in_torch(
    source_root: Path, wheel_layout: Path, tmp_path: Path
) -> None:
    text = configure(source_root, tmp_path / "build", wheel_layout, "-DTORCH_SPARSE_OPS_CUDA=ON", check=False)
    library = make_path(wheel_layout, "torch") / "lib" / "libtorch_cuda.so"
    assert f"TORCH_SPARSE_OPS_CUDA=ON needs a torch with CUDA, but {library} does not exist." in text
    assert "or leave the CUDA library out with -DTORCH_SPARSE_OPS_CUDA=OFF." in text


@pytest.mark.parametrize("missing", ["lib/libtorch_cpu.so", "include/torch/csrc/stable/library.h"])
def test_an_incomplete_torch_is_refused(
    source_root: Path, wheel_layout: Path, tmp_path: Path, missing: str
) -> None:
    package = make_path(wheel_layout, "torch")
    (package / missing).unlink()
    text = configure(source_root, tmp_path / "build", wheel_layout, check=False)
    assert f"the torch in {package} is not complete: {package}/{missing} does not exist." in text


def test_warnings_are_errors_unless_switched_off(
    source_root: Path, wheel_layout: Path, tmp_path: Path
) -> None:
    commands = tmp_path / "build" / "compile_commands.json"
    configure(source_root, tmp_path / "build", wheel_layout)
    assert "-Werror" in commands.read_text()
    configure(source_root, tmp_path / "build", wheel_layout, "-DTORCH_SPARSE_OPS_WARNINGS_AS_ERRORS=OFF")
    assert "-Werror" not in commands.read_text()


def test_a_run_path_among_the_linker_flags_is_left_out(
    source_root: Path, wheel_layout: Path, tmp_path: Path
) -> None:
    flags = "-Wl,-O2 -Wl,-rpath,/opt/env/lib -Wl,-rpath-link,/opt/env/lib"
    configure(source_root, tmp_path / "build", wheel_layout, environment={"LDFLAGS": flags})
    rules = (tmp_path / "build" / "build.ninja").read_text()
    assert "-Wl,-rpath-link,/opt/env/lib" in rules
    assert "-Wl,-rpath,/opt/env/lib" not in rules


# ---- in a conda package build


def conda_build(prefix: Path) -> dict[str, str]:
    """Return what a package build sets."""
    return {"CONDA_BUILD": "1", "PREFIX": str(prefix)}


def test_a_conda_build_takes_torch_from_its_prefix(
    source_root: Path, conda_layout: Path, tmp_path: Path
) -> None:
    prefix = conda_layout.parents[1]
    text = configure(source_root, tmp_path / "build", conda_layout, environment=conda_build(prefix))
    assert f"-- library {prefix}/lib/libtorch_cpu.so " in text


def test_a_conda_build_refuses_a_torch_elsewhere(
    source_root: Path, wheel_layout: Path, tmp_path: Path
) -> None:
    prefix = tmp_path / "host"
    prefix.mkdir()
    text = configure(
        source_root, tmp_path / "build", wheel_layout, check=False, environment=conda_build(prefix)
    )
    package = make_path(wheel_layout, "torch")
    assert f"torch must come from PREFIX={prefix}, but {package} was found." in text
    assert "Is pytorch among the host requirements, and is Python_EXECUTABLE that of PREFIX?" in text


def test_a_conda_build_refuses_a_link_that_leads_out(
    source_root: Path, conda_layout: Path, wheel_layout: Path, tmp_path: Path
) -> None:
    link = make_path(conda_layout, "torch") / "lib" / "libtorch_cpu.so"
    foreign = make_path(wheel_layout, "torch") / "lib" / "libtorch_cpu.so"
    link.unlink()
    link.symlink_to(foreign)
    prefix = conda_layout.parents[1]
    text = configure(
        source_root, tmp_path / "build", conda_layout, check=False, environment=conda_build(prefix)
    )
    assert f"torch must come from PREFIX={prefix}, but {foreign.parents[1]}/include was found." in text


@pytest.mark.system_cuda
def test_a_conda_build_refuses_an_nvcc_elsewhere(
    source_root: Path, conda_layout: Path, tmp_path: Path
) -> None:
    prefix = conda_layout.parents[1]
    (prefix / "lib" / "libtorch_cuda.so").touch()
    nvcc = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    environment = {**conda_build(prefix), "BUILD_PREFIX": str(tmp_path / "build_prefix"), "CUDACXX": nvcc}
    text = configure(
        source_root,
        tmp_path / "build",
        conda_layout,
        "-DTORCH_SPARSE_OPS_CUDA=ON",
        check=False,
        environment=environment,
    )
    assert f"nvcc must come from BUILD_PREFIX={tmp_path / 'build_prefix'}, but " in text
    assert 'Is compiler("cuda") among the build requirements?' in text
