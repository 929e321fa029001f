"""Interpreters of several layouts are repacked, installed elsewhere and used."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

import extforge
import pytest
from extforge.channel import interpreter
from extforge.channel.archive import PLACEHOLDER, Entry, PlannedPackage, write_package
from extforge.channel.interpreter import patchelf, relocatable_sysconfig, without_debian_directories
from extforge.errors import NotFoundError
from extforge.install import install

from .conftest import INSTALLERS, Small, run, write_index

#: Plans the python of the interpreter that runs it; entries are functions of files, so they can be handed on.
PLAN = """
import pickle, sys
from extforge.channel.interpreter import plan_python, plan_python_abi
package = plan_python()
pickle.dump((package, list(package.entries()), plan_python_abi().constrains), sys.stdout.buffer)
"""

#: Tells what an installed interpreter is made of.
EXAMINE = """
import ctypes, hashlib, json, site, sqlite3, ssl, sys, sysconfig, zlib
sqlite3.connect(":memory:").execute("select 1").fetchone()
hashlib.new("sha256"), ssl.create_default_context(), ctypes.CDLL(None), zlib.compress(b"x")
print(json.dumps({"prefix": sys.prefix, "base": sys.base_prefix,
                  "path": [*sys.path[1:], *site.getsitepackages()],
                  "paths": sysconfig.get_paths(), "variables": sysconfig.get_config_vars()}))
"""

SETUP = """
from setuptools import Extension, setup
setup(name="probe", version="1.0", py_modules=["plain"], ext_modules=[Extension("probe", ["probe.c"])])
"""
PROBE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "probe", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_probe(void) { return PyModule_Create(&module); }
"""

PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"


class Installed(NamedTuple):
    """An interpreter in a prefix of its own, and the prefix it was taken from."""

    prefix: Path
    origin: str
    package: PlannedPackage
    entries: dict[str, Entry]

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"


def find_interpreter(layout: str) -> Path:
    """Return the newest program of a layout; skip where the machine has none."""
    found = {"system": Path("/usr/bin").glob("python3"), "pyenv": PYENV.glob("3.*.*/bin/python3")}[layout]
    usable = [path for path in found if version_of(path) >= (3, 11)]
    if not usable:
        pytest.skip(f"no {layout} Python of version 3.11 or newer on this machine")
    return max(usable, key=version_of)


def version_of(python: Path) -> tuple[int, ...]:
    said = run(python, "-c", "import sys; print(*sys.version_info[:2])").stdout
    return tuple(map(int, said.split()))


def plan_with(python: Path) -> tuple[PlannedPackage, list[Entry], tuple[str, ...]]:
    """Let another interpreter plan its package. It borrows the pure libraries of this one."""
    import elftools
    import packaging

    borrowed = {str(Path(str(module.__file__)).parents[1]) for module in (extforge, packaging, elftools)}
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [python, "-c", PLAN],
        capture_output=True,
        env={"PYTHONPATH": os.pathsep.join(borrowed), "PATH": tools},
    )
    assert done.returncode == 0, done.stderr.decode()
    package, entries, constrains = pickle.loads(done.stdout)
    return dataclasses.replace(package, entries=lambda: iter(entries)), entries, constrains


def install_python(python: Path, small: Small, directory: Path) -> Installed:
    """Repack an interpreter and install it, with pip and setuptools, into ``directory``."""
    package, entries, constrains = plan_with(python)
    channel = directory / "channel"
    write_package(package, channel / package.subdir)
    (exported,) = package.run_exports["weak"]
    abi = PlannedPackage(
        "python_abi",
        exported.split()[1][:-2],
        f"0{exported.split()[2][1:]}",
        "noarch",
        "",
        "MIT",
        lambda: iter(()),
        constrains=constrains,
        noarch="generic",
    )
    write_package(abi, channel / "noarch")
    for name in INSTALLERS:
        shutil.copy(next(small.channel.glob(f"noarch/{name}-*.conda")), channel / "noarch")
    write_index(channel)
    install(directory / "prefix", ["python", "python_abi", *INSTALLERS], [channel.as_uri()])
    origin = run(python, "-c", "import sys; print(sys.base_prefix)").stdout.strip()
    return Installed(directory / "prefix", origin, package, {entry.path: entry for entry in entries})


@pytest.fixture(scope="module", params=["running", "system", "pyenv"])
def installed(
    request: pytest.FixtureRequest, small: Small, small_prefix: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    if request.param == "running":
        package = interpreter.plan_python()
        return Installed(
            small_prefix, sys.base_prefix, package, {entry.path: entry for entry in package.entries()}
        )
    python = find_interpreter(request.param)
    if python.resolve() == Path(sys.executable).resolve():
        pytest.skip("the running interpreter, which is tried already")
    return install_python(python, small, tmp_path_factory.mktemp("interpreter"))


def examine(installed: Installed) -> dict[str, object]:
    done = run(installed.python, "-c", EXAMINE, env={"PATH": "/usr/bin:/bin"}, cwd="/")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_every_path_lies_in_the_prefix(installed: Installed) -> None:
    said = examine(installed)
    assert said["prefix"] == said["base"] == str(installed.prefix)
    for path in (*said["path"], *said["paths"].values()):  # type: ignore[misc, attr-defined]
        assert path.startswith(str(installed.prefix)), path
    site_packages = f"lib/python{'.'.join(installed.package.version.split('.')[:2])}/site-packages"
    assert said["paths"]["purelib"] == str(installed.prefix / site_packages)  # type: ignore[index]
    assert str(installed.prefix / site_packages) in said["path"]  # type: ignore[operator]


def test_no_recorded_path_of_the_old_prefix(installed: Installed) -> None:
    if installed.origin == "/usr":
        pytest.skip("below /usr the recorded flags name the system's own directories")
    variables = examine(installed)["variables"]
    assert {key: value for key, value in variables.items() if installed.origin in str(value)} == {}  # type: ignore[attr-defined]
    for path in installed.prefix.glob("lib/python3*/_sysconfigdata*.py"):
        assert installed.origin not in path.read_text()


def test_pip_installs_an_extension_into_the_prefix(installed: Installed, tmp_path: Path) -> None:
    sources = {
        "setup.py": SETUP,
        "probe.c": PROBE,
        "plain.py": "",
        "PKG-INFO": "Metadata-Version: 2.1\nName: probe\nVersion: 1.0\n",
    }
    if not list(installed.prefix.glob("include/python3*/Python.h")):
        sources["setup.py"] = SETUP.replace('ext_modules=[Extension("probe", ["probe.c"])]', "")
    sdist = tmp_path / "probe-1.0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name, text in sources.items():
            member = tarfile.TarInfo(f"probe-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    done = run(
        installed.python, "-m", "pip", "install", "--no-index", "--no-build-isolation", sdist, env=environment
    )
    assert done.returncode == 0, done.stderr
    modules = [
        path
        for path in installed.prefix.glob("lib/python3*/site-packages/*")
        if path.stem.startswith(("probe", "plain"))
    ]
    assert {"plain.py", "probe-1.0.dist-info"} <= {path.name for path in modules}
    for library in (path for path in modules if path.suffix == ".so"):
        content = library.read_bytes()
        assert installed.origin == "/usr" or installed.origin.encode() not in content
        assert run(installed.python, "-c", "import probe").returncode == 0
    assert ("ext_modules" not in sources["setup.py"]) or any(path.suffix == ".so" for path in modules)


def test_virtual_environment(installed: Installed, tmp_path: Path) -> None:
    done = run(installed.python, "-m", "venv", "--without-pip", tmp_path / "venv")
    assert done.returncode == 0, done.stderr
    said = run(
        tmp_path / "venv" / "bin" / "python", "-c", "import sys; print(*sys.path, sep='\\n')"
    ).stdout.splitlines()
    (own,) = (path for path in said if path.endswith("site-packages"))
    assert own.startswith(str(tmp_path / "venv"))


def test_build_string_is_conda_forges(installed: Installed) -> None:
    major, minor, _ = map(int, installed.package.version.split("."))
    tail = "cpython" if minor < 13 else f"cp{major}{minor}"
    assert installed.package.build.endswith(f"_0_{tail}")
    abi = f"python_abi {major}.{minor}.* *_cp{major}{minor}"
    assert installed.package.run_exports == {"weak": [abi], "noarch": ["python"]}
    assert installed.package.constrains == (abi,)


def test_libraries_of_a_conda_prefix_come_along(small: Small, tmp_path: Path) -> None:
    """What conda keeps in packages of its own (OpenSSL, SQLite, ...) becomes part of the repacked python."""
    origin = tmp_path / "conda"
    install(origin, ["python"], [small.channel.as_uri()])
    (module,) = origin.glob("lib/python3*/lib-dynload/_sqlite3.*.so")
    library, deeper = origin / "lib" / "libfirst.so.1", origin / "lib" / "libsecond.so.2"
    for path, needed in ((deeper, ()), (library, (deeper,)), (origin / "lib" / "libnobody.so", ())):
        command = [
            "gcc",
            "-shared",
            "-Wl,--no-as-needed",
            f"-Wl,-soname,{path.name}",
            "-o",
            path,
            *needed,
            "-xc",
            os.devnull,
        ]
        assert run(*command).returncode == 0
    private = module.read_bytes()
    module.unlink()  # a hard link into the package cache
    module.write_bytes(private)
    patchelf("--add-needed", library.name, str(module))
    installed = install_python(origin / "bin" / "python", small, tmp_path)
    shutil.rmtree(origin)
    shipped = {path for path in installed.entries if path.startswith("lib/lib") and "libpython" not in path}
    assert shipped == {"lib/libfirst.so.1", "lib/libsecond.so.2"}
    assert examine(installed)["prefix"] == str(installed.prefix)


def test_recorded_paths_are_replaced_and_others_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "base_prefix", lambda: Path("/opt/py"))
    values = {
        "a": "/opt/py",
        "b": "-L/opt/py/lib -I/opt/py/include -Wl,-rpath,/opt/py/lib",
        "c": "'--prefix=/opt/py'",
        "d": "/opt/python /x/opt/py /opt/py-2",
        "e": 3,
    }
    namespace: dict[str, dict[str, object]] = {}
    exec(relocatable_sysconfig(f"build_time_vars = {values!r}"), namespace)
    new = PLACEHOLDER
    assert namespace["build_time_vars"] == {
        "a": new,
        "b": f"-L{new}/lib -I{new}/include -Wl,-rpath,{new}/lib",
        "c": f"'--prefix={new}'",
        "d": "/opt/python /x/opt/py /opt/py-2",
        "e": 3,
    }


def test_below_usr_only_paths_of_the_interpreter_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "base_prefix", lambda: Path("/usr"))
    namespace: dict[str, dict[str, object]] = {}
    exec(relocatable_sysconfig("build_time_vars = {'prefix': '/usr', 'AR': '/usr/bin/ar'}"), namespace)
    assert namespace["build_time_vars"] == {"prefix": PLACEHOLDER, "AR": "/usr/bin/ar"}


def test_unknown_debian_patch_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "sysconfig.py"
    file.write_text("if somehow(): return 'deb_system'\n")
    with pytest.raises(NotFoundError, match=r"sysconfig\.py names Debian's directories, but nowhere asks '"):
        without_debian_directories(file)
    file.write_text("return 'posix_prefix'\n")
    assert without_debian_directories(file) == file.read_text()


@pytest.mark.parametrize(("attribute", "value"), [("abiflags", "t"), ("platlibdir", "lib64")])
def test_unknown_kind_of_interpreter_is_refused(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: str
) -> None:
    monkeypatch.setattr(sys, attribute, value)
    with pytest.raises(NotFoundError, match=f"only CPython without ABI flags .* is .*'{value}'"):
        interpreter.plan_python()
