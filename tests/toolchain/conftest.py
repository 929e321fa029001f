"""A world to resolve in: fake prefixes, wheels and toolkits under a temporary directory.

Programs are shell scripts that answer as the real ones do, libraries are real ELF files. The resolver
gets the world's environment, its interpreter and its file-system root, so nothing of this machine
reaches a test that uses nothing but this fixture.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from extforge.toolchain.interpreter import Interpreter
from extforge.toolchain.model import Toolchain
from extforge.toolchain.query import Query
from extforge.toolchain.resolve import survey
from extforge.toolchain.system import System

MACHINE_NUMBERS = {"x86_64": 62, "aarch64": 183, "i386": 3}
TARGETS = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}

NVCC = """\
#!/bin/sh
case "$*" in
  *--dryrun*) echo '#$ _SPACE_= ' >&2; echo '#$ TOP={top}' >&2 ;;
  *--list-gpu-code*) printf 'sm_80\\nsm_90\\nsm_90a\\nsm_120\\n' ;;
  *) echo 'nvcc: NVIDIA (R) Cuda compiler driver'; echo 'Cuda compilation tools, release 0, V{version}' ;;
esac
"""
CUDA_TOOL = "#!/bin/sh\necho '{name}: NVIDIA (R)'; echo 'Cuda compilation tools, release 0, V{version}'\n"
COMPILER = "#!/bin/sh\necho '{name} (conda-forge gcc {version}-5) {version}'\n"


@pytest.fixture(scope="session")
def tiny_library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A real shared library without content."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is missing; it makes the ELF files of the fake prefixes")
    path = tmp_path_factory.mktemp("elf") / "tiny.so"
    subprocess.run(
        [compiler, "-shared", "-nostdlib", "-x", "c", "-", "-o", path], input=b"int tiny;", check=True
    )
    return path.read_bytes()


class World:
    """Builds layouts under ``top`` and resolves in them."""

    def __init__(self, top: Path, library: bytes, machine: str = "x86_64") -> None:
        self.top, self.library_bytes, self.machine = top, library, machine
        self.sysroot = top / "sysroot"
        self.sysroot.mkdir(parents=True)
        self.environ: dict[str, str] = {"PATH": str(top / "bin"), "HOME": str(top / "home")}
        (top / "home").mkdir()
        self.python = self.interpreter(top / "python")
        self.compilers(top / "bin", "", "12.2.0")

    # --- files -----------------------------------------------------------------------------------
    def program(self, path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def file(self, path: Path, text: str = "content\n") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def library(self, path: Path, machine: str | None = None, bits: int = 64) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        data = bytearray(self.library_bytes)
        data[4] = 2 if bits == 64 else 1
        data[18:20] = MACHINE_NUMBERS[machine or self.machine].to_bytes(2, "little")
        path.write_bytes(bytes(data))
        path.chmod(0o755)
        return path

    # --- parts of an environment -------------------------------------------------------------------
    def interpreter(self, prefix: Path, base: Path | None = None, machine: str | None = None) -> Interpreter:
        include = prefix / "include/python3.11"
        self.file(include / "Python.h")
        self.library(prefix / "bin/python", machine)
        self.library(prefix / "lib/libpython3.11.so", machine)
        site = prefix / "lib/python3.11/site-packages"
        site.mkdir(parents=True, exist_ok=True)
        return Interpreter(
            executable=str(prefix / "bin/python"),
            prefix=str(prefix),
            base_prefix=str(base or prefix),
            version="3.11.7",
            includes=(str(include),),
            library_directories=(str(prefix / "lib"),),
            library_name="libpython3.11.so",
            embed_libraries="-ldl -lm",
            extension_suffix=".cpython-311-x86_64-linux-gnu.so",
            site_packages=(str(site),),
        )

    @property
    def site(self) -> Path:
        return Path(self.python.site_packages[0])

    def compilers(self, directory: Path, triple: str, version: str) -> None:
        for name in ("gcc", "g++", "cc", "c++"):
            self.program(directory / f"{triple}{name}", COMPILER.format(name=name, version=version))

    def conda_meta(self, prefix: Path) -> Path:
        (prefix / "conda-meta").mkdir(parents=True, exist_ok=True)
        return prefix

    def torch(self, version: str = "2.13.0", cuda: str | None = None) -> Path:
        stated = f"cuda: Optional[str] = {cuda!r}"
        self.file(self.site / "torch/version.py", f"__version__ = {version!r}\ndebug = False\n{stated}\n")
        self.file(self.site / "torch/share/cmake/Torch/TorchConfig.cmake", "    CXX_STANDARD 20\n")
        self.file(self.site / "torch/include/torch/csrc/api/include/torch/torch.h")
        self.library(self.site / "torch/lib/libc10.so")
        return self.site / "torch"

    # --- toolkits ------------------------------------------------------------------------------------
    def headers(self, include: Path, version: str, gcc: int = 15) -> None:
        major, minor, *_ = version.split(".")
        self.file(include / "cuda.h", f"#define CUDA_VERSION {int(major) * 1000 + int(minor) * 10}\n")
        self.file(include / "cuda_runtime.h", f"/* {version} */\n")
        self.file(include / "cccl/cuda/std/version")
        bound = f"#if __GNUC__ > {gcc}\n\n#error -- unsupported GNU version! gcc versions later than {gcc}\n"
        self.file(include / "crt/host_config.h", bound)

    def tools(self, directory: Path, top: Path, version: str, nvcc: bool = True) -> None:
        if nvcc:
            self.program(directory / "nvcc", NVCC.format(top=top, version=version))
            self.file(directory / "nvcc.profile")
            self.program(directory / "cudafe++", "#!/bin/sh\n")
        for name in ("ptxas", "cuobjdump", "nvdisasm"):
            self.program(directory / name, CUDA_TOOL.format(name=name, version=version))

    def libraries(self, directory: Path, version: str, plain: bool = True, stub: bool = True) -> None:
        soname = f"libcudart.so.{version.split('.')[0]}"
        self.library(directory / soname)
        if plain:
            (directory / "libcudart.so").symlink_to(soname)
        self.file(directory / "libcudart_static.a")
        if stub:
            self.library(directory / "stubs/libcuda.so")

    def conda(
        self, prefix: Path, version: str = "13.0.88", target: str | None = None, nvcc: bool = True
    ) -> Path:
        """conda-forge's layout: headers and libraries below ``targets/<target>``."""
        self.conda_meta(prefix)
        below = prefix / "targets" / (target or TARGETS[self.machine])
        self.headers(below / "include", version)
        self.libraries(below / "lib", version)
        self.tools(prefix / "bin", prefix / "bin/.." / below.relative_to(prefix), version, nvcc)
        self.file(prefix / "nvvm/libdevice/libdevice.10.bc")
        return prefix

    def wheel(self, site: Path, version: str = "13.0.88", nvcc: bool = True) -> Path:
        """The unified wheels of CUDA 13: lib instead of lib64, no plain names, no stub."""
        root = site / "nvidia" / f"cu{version.split('.')[0]}"
        self.headers(root / "include", version)
        self.libraries(root / "lib", version, plain=False, stub=False)
        self.tools(root / "bin", root / "bin/..", version, nvcc)
        self.file(root / "nvvm/libdevice/libdevice.10.bc")
        return root

    def wheels(self, site: Path, version: str = "12.9.86") -> Path:
        """The split wheels of CUDA 12: a directory a component, ptxas but no nvcc."""
        root = site / "nvidia"
        self.headers(root / "cuda_runtime/include", version)
        self.libraries(root / "cuda_runtime/lib", version, plain=False, stub=False)
        self.tools(root / "cuda_nvcc/bin", root, version, nvcc=False)
        self.file(root / "cuda_nvcc/nvvm/libdevice/libdevice.10.bc")
        self.file(root / "cublas/include/cublas_v2.h")
        return root

    def toolkit(self, root: Path, version: str = "13.0.88") -> Path:
        """The classic installation."""
        self.headers(root / "include", version)
        self.libraries(root / "lib64", version)
        self.tools(root / "bin", root / "bin/..", version)
        self.file(root / "nvvm/libdevice/libdevice.10.bc")
        return root

    def split(self, usr: Path, version: str = "11.8.89") -> Path:
        """Debian's: programs, headers and libraries in the system's directories."""
        home = usr / "lib/nvidia-cuda-toolkit"
        self.headers(usr / "include", version)
        self.file(usr / "include/stdlib.h")
        self.libraries(usr / "lib/x86_64-linux-gnu", version)
        self.library(usr / "lib/x86_64-linux-gnu/libc.so")
        self.tools(home / "bin", home / "bin/..", version)
        self.program(usr / "bin/nvcc", f'#!/bin/sh\nexec {home}/bin/nvcc "$@"\n')
        self.file(home / "libdevice/libdevice.10.bc")
        return usr

    def driver(self, directory: str, machine: str | None = None, bits: int = 64) -> Path:
        """A driver in a fixed place of the system."""
        real = self.library(self.sysroot / directory.lstrip("/") / "libcuda.so.580.1", machine, bits)
        (real.parent / "libcuda.so.1").symlink_to(real.name)
        return real.parent

    # --- resolving -------------------------------------------------------------------------------------
    def query(self, **arguments: Any) -> Query:
        return Query(System(self.environ, self.sysroot), self.python, self.machine, **arguments)

    def survey(self, **arguments: Any) -> Toolchain:
        return survey(self.query(**arguments))

    def resolve(self, **arguments: Any) -> Toolchain:
        return self.survey(**arguments).refuse()

    def inside(self, prefix: Path) -> World:
        """Run the interpreter of a conda prefix."""
        self.python = self.interpreter(self.conda_meta(prefix))
        return self


@pytest.fixture(scope="session")
def new_world(tiny_library: bytes) -> Callable[[Path], World]:
    """For a test that needs many worlds."""
    return lambda top: World(top, tiny_library)


@pytest.fixture
def world(tmp_path: Path, new_world: Callable[[Path], World]) -> World:
    return new_world(tmp_path / "world")


@pytest.fixture
def arm_world(tmp_path: Path, tiny_library: bytes) -> World:
    return World(tmp_path / "world", tiny_library, "aarch64")


def finding_of(toolchain: Toolchain, code: str) -> Any:
    """Return the one finding with this code."""
    found = [finding for finding in toolchain.findings if finding.code == code]
    assert len(found) == 1, [finding.code for finding in toolchain.findings]
    return found[0]


@pytest.fixture(name="finding_of")
def finding_of_fixture() -> Any:
    return finding_of


# --- the real thing ----------------------------------------------------------------------------------------
SYSTEM_TOOLKIT = Path("/usr/local/cuda")
WHEELS = ("nvcc==13.0.88", "runtime==13.0.96", "crt==13.0.88", "cccl==13.0.85")


@pytest.fixture(scope="session")
def system_toolkit() -> Path:
    if not (SYSTEM_TOOLKIT / "bin/nvcc").is_file():
        pytest.skip(f"no CUDA toolkit in {SYSTEM_TOOLKIT}")
    return SYSTEM_TOOLKIT.resolve()


@pytest.fixture(scope="session")
def real_wheels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """site-packages with NVIDIA's own wheels of CUDA 13.0, installed once."""
    import sys

    site = tmp_path_factory.mktemp("wheels") / "lib/python3/site-packages"
    names = [f"nvidia-cuda-{name}" for name in WHEELS] + ["nvidia-nvvm==13.0.88"]
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the CUDA wheels cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    yield site
    shutil.rmtree(site)


def arm_variant(prefix: Path, variant: str) -> None:
    record = {"name": "arm-variant", "version": "1.2.0", "build": variant}
    (prefix / "conda-meta" / f"arm-variant-1.2.0-{variant}.json").write_text(json.dumps(record))


@pytest.fixture(name="arm_variant")
def arm_variant_fixture() -> Any:
    return arm_variant
