"""The bootstrap channel's CUDA packages: conda-forge's layout, and an nvcc that needs nothing outside it.

To run them::

    extforge channel .local/channel-cuda --cuda 13.0
    TEST_CUDA_CHANNEL=.local/channel-cuda python3 build-locally.py test -- -m cuda_channel

`build-locally.py --variant cuda130` makes such a channel, too: `.local/channel-cuda130`.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conda_package_streaming.package_streaming import stream_conda_component
from extforge.toolchain.stub import function_names
from extforge.toolchain.system import System

pytestmark = pytest.mark.cuda_channel

T = "targets/x86_64-linux"
#: Path in the prefix, conda-forge's package of it, and where a link leads.
LAYOUT = (
    ("bin/nvcc", "cuda-nvcc-tools", None),
    ("bin/ptxas", "cuda-nvcc-tools", None),
    ("bin/nvcc.profile", "cuda-nvcc-tools", None),
    ("bin/crt/link.stub", "cuda-crt-tools", None),
    ("nvvm/bin/cicc", "cuda-nvvm-tools", None),
    ("nvvm/libdevice/libdevice.10.bc", "cuda-nvvm-tools", None),
    ("nvvm/include/nvvm.h", "cuda-nvvm-impl", None),
    ("nvvm/lib64/libnvvm.so", "cuda-nvvm-impl", "nvvm/lib64/libnvvm.so.4"),
    (f"{T}/bin/nvcc", "cuda-nvcc-dev_linux-64", "bin/nvcc"),
    (f"{T}/lib64", "cuda-nvcc-dev_linux-64", f"{T}/lib"),
    (f"{T}/include/fatbinary_section.h", "cuda-nvcc-dev_linux-64", None),
    (f"{T}/nvvm", "cuda-nvvm-dev_linux-64", "nvvm"),
    (f"{T}/include/crt/host_config.h", "cuda-crt-dev_linux-64", None),
    (f"{T}/include/cuda.h", "cuda-cudart-dev_linux-64", None),
    (f"{T}/lib/libcudart.so", "cuda-cudart-dev_linux-64", f"{T}/lib/libcudart.so.13"),
    (f"{T}/lib/libcudart.so.13", "cuda-cudart_linux-64", None),
    ("lib/libcudart.so.13", "cuda-cudart", f"{T}/lib/libcudart.so.13"),
    ("lib/libcudart.so", "cuda-cudart-dev", f"{T}/lib/libcudart.so.13"),
    (f"{T}/lib/libcudart_static.a", "cuda-cudart-static_linux-64", None),
    ("lib/libcudadevrt.a", "cuda-cudart-static", f"{T}/lib/libcudadevrt.a"),
    (f"{T}/lib/stubs/libcuda.so", "cuda-driver-dev_linux-64", None),
    ("lib/stubs/libcuda.so", "cuda-driver-dev", f"{T}/lib/stubs/libcuda.so"),
    (f"{T}/include/cccl/cuda/std/array", "cuda-cccl_linux-64", None),
    (f"{T}/lib/cmake/cccl/cccl-config.cmake", "cuda-cccl_linux-64", None),
    ("bin/cuobjdump", "cuda-cuobjdump", None),
    ("etc/conda/activate.d/~cuda-nvcc_activate.sh", "cuda-nvcc_linux-64", None),
    ("etc/conda/deactivate.d/~cuda-nvcc_deactivate.sh", "cuda-nvcc_linux-64", None),
)
EXPORTS = {
    "cuda-nvcc_linux-64": {"strong": ["cuda-version >=13.0,<14"]},
    "cuda-cudart-dev": {"weak": ["cuda-cudart >=13.0.96,<14.0a0"]},
    "cuda-nvtx-dev": {"weak": ["cuda-nvtx >=13.0.85,<14.0a0"]},
    "libtorch": {"weak": ["libtorch >=2.14.1,<2.15.0a0"]},
    "pytorch": {"weak": ["libtorch >=2.14.1,<2.15.0a0", "pytorch >=2.14.1,<2.15.0a0"]},
    "cuda-nvrtc-dev": {"weak": ["cuda-nvrtc >=13.0.88,<14.0a0"]},
    "libcublas-dev": {"weak": ["libcublas >=13.1.1.3,<14.0a0"]},
    "libcusparse-dev": {"weak": ["libcusparse >=12.6.3.3,<13.0a0"]},
}
PROGRAM = """\
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda/std/array>
#include <cstdio>
__global__ void twice(cuda::std::array<float, 4>* x) { (*x)[threadIdx.x] *= 2; }
int main() {
#ifdef WITH_DRIVER
  cuInit(0);
#endif
  int version = 0;
  cudaRuntimeGetVersion(&version);
  std::printf("runtime %d\\n", version);
}
"""
RECIPE = """\
schema_version: 1
package: {name: twice, version: "1"}
source: {path: ., filter: [twice.cu]}
build:
  number: 0
  script:
    - nvcc --cudart shared -shared -Xcompiler -fPIC twice.cu -o $PREFIX/lib/libtwice.so -L$PREFIX/lib
  dynamic_linking: {overlinking_behavior: error}
requirements:
  build: ['${{ compiler("cxx") }}', '${{ stdlib("c") }}', '${{ compiler("cuda") }}']
  host: [cuda-version ==13.0, cuda-cudart-dev]
  run: [cuda-cudart_linux-64]  # owns the file that lib/libcudart.so.13 leads to
tests:
  - script: [test -f $PREFIX/lib/libcudart.so.13, test -f $PREFIX/lib/libtwice.so]
"""


def run(*command: str | Path, **environment: str) -> str:
    """Run a command with nothing but the given variables and the system's programs on PATH."""
    words = [str(word) for word in command]
    basic = {"PATH": "/usr/bin:/bin"} | environment
    done = subprocess.run(words, env=basic, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def activated(prefix: Path, command: str, **environment: str) -> str:
    """Run a shell command in the activated environment."""
    source = 'for f in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do . "$f"; done; '
    variables = {"CONDA_PREFIX": str(prefix), "PATH": f"{prefix}/bin:/usr/bin:/bin"}
    return run("bash", "-ec", source + command, **variables, **environment)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "program.cu").write_text(PROGRAM)
    return tmp_path / "program.cu"


@pytest.mark.parametrize(("path", "package", "target"), LAYOUT, ids=[path for path, _, _ in LAYOUT])
def test_layout(cuda_prefix: Path, path: str, package: str, target: str | None) -> None:
    (record,) = (cuda_prefix / "conda-meta").glob(f"{package}-[0-9]*.json")
    assert path in json.loads(record.read_text())["files"]
    found = cuda_prefix / path
    assert found.exists()
    assert found.resolve() == (cuda_prefix / (target or path)).resolve()
    assert found.is_symlink() == (target is not None)


def test_the_stub_has_one_name_in_its_directory(cuda_prefix: Path) -> None:
    assert [path.name for path in (cuda_prefix / T / "lib/stubs").iterdir()] == ["libcuda.so"]


def read_run_exports(package: Path) -> Any:
    with package.open("rb") as stream:
        for tar, member in stream_conda_component(package, stream, "info"):
            if member.name == "info/run_exports.json":
                reader = tar.extractfile(member)
                assert reader is not None
                return json.load(reader)
    return None


@pytest.mark.parametrize("package", EXPORTS)
def test_run_exports(cuda_channel: Path, package: str) -> None:
    paths = [path for path in cuda_channel.glob(f"*/{package}-[0-9]*.conda") if "-cpu_" not in path.name]
    assert [read_run_exports(path) for path in paths] == [EXPORTS[package]]


def test_the_runtime_of_the_build_prefix_exports_nothing(cuda_channel: Path) -> None:
    (path,) = cuda_channel.glob("*/cuda-cudart-dev_linux-64-[0-9]*.conda")
    assert read_run_exports(path) is None


def header_paths(dependencies: str) -> Iterator[Path]:
    """Read what ``nvcc -M`` prints: make's escapes, one rule."""
    text = dependencies.partition(":")[2].replace("\\\n", " ").replace("\\ ", "\0")
    yield from (Path(word.replace("\0", " ")).resolve() for word in text.split())


def test_every_header_is_of_the_prefix_or_of_the_host_compiler(cuda_prefix: Path, program: Path) -> None:
    headers = set(header_paths(activated(cuda_prefix, f"nvcc -arch=sm_90 -M '{program}'"))) - {
        program.resolve()
    }
    own = {path for path in headers if path.is_relative_to(cuda_prefix.resolve())}
    compiler = ("/usr/include", "/usr/lib/gcc")
    foreign = {path for path in headers - own if not str(path).startswith(compiler)}
    assert foreign == set()
    cuda = {path for path in headers - own if re.search(r"cuda|crt/|cccl|nvvm", str(path))}
    assert cuda == set()
    assert {"cuda.h", "cuda_runtime.h", "array", "host_config.h"} <= {path.name for path in own}


def test_a_program_links_against_the_prefix_and_runs(cuda_prefix: Path, program: Path) -> None:
    output = program.with_suffix("")
    trace = activated(cuda_prefix, f"nvcc -arch=sm_90 '{program}' -o '{output}' -Xlinker --trace,--as-needed")
    linked = [Path(line) for line in trace.splitlines() if line.startswith("/") and "libcu" in line]
    assert linked
    assert [path for path in linked if not path.resolve().is_relative_to(cuda_prefix.resolve())] == []
    assert run(output) == "runtime 13000\n"
    assert "sm_90" in run(cuda_prefix / "bin/cuobjdump", "--list-elf", output)


def test_the_driver_is_linked_from_the_stub_and_asked_of_the_machine(
    cuda_prefix: Path, program: Path
) -> None:
    output = program.with_suffix("")
    activated(cuda_prefix, f"nvcc -arch=sm_90 '{program}' -DWITH_DRIVER -o '{output}' -lcuda")
    dynamic = run("readelf", "-d", output)
    assert "[libcuda.so.1]" in dynamic
    assert "stubs" not in dynamic


def test_the_stub_holds_every_function_of_the_header(cuda_prefix: Path, tmp_path: Path) -> None:
    library = cuda_prefix / T / "lib/stubs/libcuda.so"
    names = function_names(
        System({"PATH": "/usr/bin:/bin"}), Path("/usr/bin/gcc"), cuda_prefix / T / "include"
    )
    assert len(names) > 400
    symbols = set(run("nm", "-D", "--defined-only", "--format=just-symbols", library).split())
    assert set(names) == symbols
    assert "[libcuda.so.1]" in run("readelf", "-d", library)
    assert ctypes.CDLL(str(library)).cuInit(0) == 34


def test_extforge_finds_all_of_it_without_activation(cuda_prefix: Path, tmp_path: Path) -> None:
    text = run(cuda_prefix / "bin/python", "-m", "extforge", "json", XDG_CACHE_HOME=str(tmp_path))
    document = json.loads(text)
    assert (document["root"]["kind"], document["root"]["path"]) == ("conda", str(cuda_prefix))
    for name in ("nvcc", "ptxas", "cuobjdump", "cudart", "cuda_include", "libdevice"):
        assert Path(document["tools"][name]["path"]).is_relative_to(cuda_prefix), name
    assert Path(document["driver"]["link"]["path"]).is_relative_to(cuda_prefix)


def test_the_probes_of_doctor_succeed(cuda_prefix: Path, tmp_path: Path) -> None:
    text = run(
        cuda_prefix / "bin/python",
        "-m",
        "extforge",
        "doctor",
        "--probe",
        "--json",
        XDG_CACHE_HOME=str(tmp_path),
    )
    assert [f for f in json.loads(text)["findings"] if f["level"] == "error"] == []


def test_a_package_with_cuda_code_is_built_for_the_row(
    cuda_channel: Path, tmp_path: Path, source_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """compiler("cuda") renders, its exports arrive, and the library links cudart of the host prefix."""
    from extforge.build.building import Options, build
    from extforge.build.rendering import find_recipe, render, row_name, select

    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "twice.cu").write_text(
        'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }\n'
    )
    monkeypatch.setenv("CONDA_OVERRIDE_CUDA", "13.0")
    monkeypatch.chdir(source_root)
    variants = select(render(find_recipe(tmp_path), []), "cuda130", row_name, "row")
    (package,) = build(variants, Options(tmp_path / "output", (cuda_channel.as_uri(),)))
    info = package_index(package)
    assert {"cuda-cudart >=13.0.96,<14.0a0", "cuda-version >=13.0,<14"} <= set(info["depends"])


def package_index(package: Path) -> Any:
    with package.open("rb") as stream:
        for tar, member in stream_conda_component(package, stream, "info"):
            if member.name == "info/index.json":
                reader = tar.extractfile(member)
                assert reader is not None
                return json.load(reader)
    raise AssertionError(f"{package} has no info/index.json")


#: Of the system, as for Python itself, or of the driver.
SYSTEM = re.compile(r"ld-linux|lib(c|m|dl|rt|pthread|util|z)\.so")
IMPORT = """\
import torch
print(torch.__version__, torch.version.cuda, torch.cuda.is_available(), torch.ones(2).numpy().sum())
paths = (line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if "/lib" in line)
print(*sorted(set(paths)), sep="\\n")
"""


@pytest.fixture(scope="module")
def torch_prefix(cuda_channel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with torch for CUDA, on a machine with or without a driver; a blank in its path."""
    prefix = tmp_path_factory.mktemp("torch") / "my env"
    command = [sys.executable, "-m", "extforge", "install", "python", "pip", "pytorch", "--cuda", "13.0"]
    place = ["--prefix", str(prefix), "--channel", str(cuda_channel)]
    done = subprocess.run([*command, *place], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return prefix


def test_torch_for_cuda_needs_a_driver_and_is_preferred(cuda_channel: Path) -> None:
    (path,) = cuda_channel.glob("*/pytorch-*-cuda130_generic_py3*_200.conda")
    assert "__cuda" in package_index(path)["depends"]
    assert package_index(path)["build_number"] == 200


def test_torch_imports_without_a_driver(torch_prefix: Path) -> None:
    first, *loaded = run(torch_prefix / "bin/python", "-c", IMPORT).splitlines()
    version, cuda, _, total = first.split()
    assert (version, cuda, total) == ("2.14.1+cu130", "13.0", "2.0")
    own = [path for path in loaded if re.search(r"/lib(cu|nv|nccl|torch|c10|stdc|gomp)", path)]
    assert len(own) > 20
    assert [path for path in own if not Path(path).is_relative_to(torch_prefix)] == []


def test_pip_misses_nothing_of_torch(torch_prefix: Path) -> None:
    assert run(torch_prefix / "bin/python", "-m", "pip", "check") == "No broken requirements found.\n"


def test_the_environment_holds_all_that_torch_links(torch_prefix: Path) -> None:
    """The package that holds a library is required, whether or not an import loads it."""
    libraries = torch_prefix / "lib"
    held = {path.name for path in libraries.iterdir() if path.exists()}
    missing = {}
    for path in sorted(libraries.glob("lib*torch*.so")) + sorted(libraries.glob("lib*c10*.so")):
        needed = set(re.findall(r"NEEDED.*\[(.+)\]", run("readelf", "-d", path)))
        missing[path.name] = {name for name in needed - held if not SYSTEM.search(name)}
    assert len(missing) >= 10
    assert {name: names for name, names in missing.items() if names} == {}


def test_only_the_runtime_compiler_needs_the_driver(torch_prefix: Path) -> None:
    path = torch_prefix / "lib/libcaffe2_nvrtc.so"
    assert "[libcuda.so.1]" in run("readelf", "-d", path)


def test_the_compiler_of_kernels_is_there(torch_prefix: Path) -> None:
    program = "import triton, cuda.bindings; print(triton.__version__)"
    assert run(torch_prefix / "bin/python", "-c", program) == "3.8.0\n"
