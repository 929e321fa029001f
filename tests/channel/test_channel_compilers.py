"""The compiler packages: conda-forge's names in front of the system's own compilers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from extforge.channel import compilers
from extforge.channel.archive import PlannedPackage
from extforge.errors import NotFoundError

from .conftest import run

SOURCE = "#include <iostream>\nint main() { std::cout << __cplusplus / 100 << '\\n'; }\n"
ACTIVATE = 'for f in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do . "$f"; done; '
DEACTIVATE = 'for f in "$CONDA_PREFIX"/etc/conda/deactivate.d/*.sh; do . "$f"; done; '


@pytest.fixture
def forget_programs() -> None:
    """The module remembers where programs are; these tests move them."""
    for function in (compilers.system_compiler, compilers.compiler_version, compilers.system_library):
        function.cache_clear()


def planned() -> dict[str, PlannedPackage]:
    return {f"{package.name} {package.version}": package for package in compilers.plan_compilers()}


@pytest.mark.usefixtures("forget_programs")
def test_missing_compiler_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFoundError, match=r"no g\+\+ on PATH: .*apt-get install g\+\+"):
        planned()


@pytest.mark.usefixtures("forget_programs")
def test_compiler_below_a_path_with_blanks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tools = tmp_path / "my tools"
    tools.mkdir()
    for name in ("gcc", "g++"):
        (tools / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    wrapper = next(e for e in planned()["gxx_linux-64 15.2.0"].entries() if e.path.endswith("-c++"))
    program = tmp_path / "c++"
    program.write_text(wrapper.text or "")
    assert run("sh", program, "--version").stdout.startswith("g++")


@pytest.mark.parametrize(
    ("package", "kind", "specs"),
    [
        ("gcc_linux-64 15.2.0", "strong", ["libgcc >=15"]),
        ("gxx_linux-64 15.2.0", "strong", ["libstdcxx >=15", "libgcc >=15"]),
        ("sysroot_linux-64 2.17", "strong", [f"__glibc >={compilers.glibc_version()},<3.0.a0"]),
        ("sysroot_linux-64 2.28", "strong", [f"__glibc >={compilers.glibc_version()},<3.0.a0"]),
    ],
)
def test_run_exports(package: str, kind: str, specs: list[str]) -> None:
    assert planned()[package].run_exports == {kind: specs}


def test_installed_compiler_compiles(small_prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "hello.cpp").write_text(SOURCE)
    build = "$CXX $CXXFLAGS -std=c++17 $LDFLAGS hello.cpp -o hello"
    script = f"{ACTIVATE} set -e; {build}; ./hello; $READELF -d hello"
    environment = {"PATH": f"{small_prefix / 'bin'}:/usr/bin:/bin", "CONDA_PREFIX": str(small_prefix)}
    done = run("bash", "-c", script, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2017\n")
    assert f"Library rpath: [{small_prefix / 'lib'}]" in done.stdout


def test_deactivation_leaves_nothing_behind(small_prefix: Path) -> None:
    script = f"{ACTIVATE} {DEACTIVATE} env"
    environment = {"PATH": "/usr/bin:/bin", "CONDA_PREFIX": str(small_prefix)}
    done = run("bash", "-c", script, env=environment)
    shell = {"PWD", "SHLVL", "_", "OLDPWD"}
    assert {line.partition("=")[0] for line in done.stdout.splitlines()} - shell == {"PATH", "CONDA_PREFIX"}


@pytest.mark.parametrize("package_build", ["0", "1"])
def test_prefix_with_a_blank_splits_no_flag(small_prefix: Path, package_build: str) -> None:
    activate = ACTIVATE.replace("$CONDA_PREFIX", str(small_prefix))
    script = f'{activate} echo "$CXXFLAGS $LDFLAGS $CMAKE_ARGS"'
    environment = {
        "PATH": "/usr/bin:/bin",
        "CONDA_BUILD": package_build,
        "CONDA_PREFIX": "/home/a user/env",
        "PREFIX": "/home/a user/host",
        "BUILD_PREFIX": "/home/a user/build",
    }
    done = run("bash", "-euc", script, env=environment)
    assert done.returncode == 0, done.stderr
    assert [word for word in done.stdout.split() if not word.startswith("-")] == []
