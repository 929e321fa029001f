"""For every code, a package that has the fault; and good packages that have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from extforge.audit import Options, audit_packages
from extforge.audit.auditing import DEFAULTS
from extforge.audit.checks import CHECKS
from extforge.audit.model import Finding, Level
from forging import (
    CLEAN,
    CUDA,
    CUDA_DEPENDS,
    MODULE,
    STABLE,
    Compiler,
    Library,
    Spec,
    WheelSpec,
    strip,
    without_sections,
    write_conda,
)

OTHER_MACHINE = 183  # aarch64
CLASSIC = replace(STABLE, uses=("_ZN3c1010TensorImpl5reshEv", "_ZN2at5emptyEv"))
CPU_DEPENDS = Spec().depends
PLACEHOLDER = "/opt/build/host_env_placehold_placehold"
CUDA_RUNTIME = ("/cudart.shm.%x.%x.%llx",)  # by which a CUDA runtime inside a library is known
BY_NAME = replace(STABLE, uses=("torch_call_dispatcher",))
PYTHON_311 = ("python >=3.11,<3.12.0a0", "python_abi 3.11.* *_cp311", *CPU_DEPENDS)


class Packages:
    """The makers, under short names."""

    def __init__(
        self,
        cpu: Callable[..., Spec],
        cuda: Callable[..., Spec],
        wheel: Callable[..., WheelSpec],
        compiled: Compiler,
    ) -> None:
        self.cpu, self.cuda, self.wheel, self.compiled = cpu, cuda, wheel, compiled


@pytest.fixture(scope="session")
def packages(cpu_package: Any, cuda_package: Any, wheel_package: Any, compiled: Compiler) -> Packages:
    return Packages(cpu_package, cuda_package, wheel_package, compiled)


def audit(specs: list[Any], directory: Path, options: Options = DEFAULTS) -> tuple[Finding, ...]:
    paths = [s.write(directory) if isinstance(s, WheelSpec) else write_conda(s, directory) for s in specs]
    return audit_packages(paths, options).findings


HASHED = {"cxx_compiler": "gxx", "target_platform": "linux-64"}
HASH = "2bc3f7f"  # as conda-build and rattler-build compute it
# name -> packages that pass strictly, whatever the second opinion on GPU code is
GOOD: dict[str, Callable[[Packages], Any]] = {
    "cpu": lambda p: p.cpu(),
    "cuda": lambda p: p.cuda(),
    "wheel": lambda p: p.wheel(),
    "links inside": lambda p: p.cpu(links={"lib/libthing.so.1": "libthing.so"}),
    "weak shim of a later torch": lambda p: p.cpu(replace(STABLE, strings=("aten::empty",))),
    "operator by name, old": lambda p: p.cpu(replace(BY_NAME, strings=("aten::empty", "aten::sort"))),
    "classic, one minor": lambda p: p.cpu(
        CLASSIC, depends=("pytorch 2.13.*", "libtorch 2.13.*", "__glibc >=2.17")
    ),
    "classic, one build": lambda p: p.wheel(CLASSIC, requires=("torch ==2.13.0+cu130",)),
    "glibc as claimed": lambda p: p.cpu(
        replace(STABLE, versions=("GLIBC_2.28",)), depends=("libtorch >=2.10", "__glibc >=2.28,<3.0.a0")
    ),
    "libstdc++ as claimed": lambda p: p.cpu(
        replace(STABLE, needed=(*STABLE.needed, "libstdc++.so.6"), versions=("GLIBCXX_3.4.30",)),
        depends=(*CPU_DEPENDS, "libstdcxx >=12"),
    ),
    "static CUDA runtime": lambda p: p.cuda(
        replace(CUDA, needed=("libtorch_cpu.so", "libtorch_cuda.so", "libc.so.6"), strings=CUDA_RUNTIME),
        depends=tuple(d for d in CUDA_DEPENDS if not d.startswith("cuda-")),
    ),
    "NVIDIA's own library beside the runtime": lambda p: p.wheel(
        Library(needed=("libcudart.so.13", "libc.so.6"), strings=CUDA_RUNTIME),
        "nvidia/cu13/lib/libcufile.so.0",
        requires=("nvidia-cuda-runtime >=13,<14",),
    ),
    "declared architectures": lambda p: p.cuda(variant={"cuda_architectures": "80-real;90"}),
    "python, one minor": lambda p: p.cpu(
        replace(MODULE, uses=("PyModule_Create2", "_PyObject_GetDictPtr")),
        "lib/python3.11/site-packages/thing.cpython-311-x86_64-linux-gnu.so",
        depends=PYTHON_311,
    ),
    "free-threaded": lambda p: p.wheel(
        MODULE,
        "thing.cpython-313t-x86_64-linux-gnu.so",
        tag="cp313-cp313t-manylinux_2_17_x86_64",
        requires=(),
    ),
    "abi3 wheel": lambda p: p.wheel(
        MODULE, "thing.abi3.so", tag="cp310-abi3-manylinux_2_17_x86_64", requires=()
    ),
    "run path to a requirement": lambda p: p.wheel(replace(STABLE, run_path="$ORIGIN/../torch/lib")),
    "hash of the variant": lambda p: p.cpu(build=f"cpu_h{HASH}_0", variant=HASHED),
    "build prefix in bytecode": lambda p: p.cpu(more={"lib/x.pyc": 9 * b"_placehold"}),
    "recorded placeholder": lambda p: p.cpu(
        more={"share/config": PLACEHOLDER.encode()}, placeholders={"share/config": PLACEHOLDER}
    ),
}

# code -> packages that have the fault, the last one alone where there are two
BAD: dict[str, Callable[[Packages], list[Any]]] = {
    "M01": lambda p: [p.cpu(file_name="other-1.0-cpu_0")],
    "M02": lambda p: [p.cpu(build="cpu_3")],
    "M03": lambda p: [p.cpu(absent=("lib/gone.so",))],
    "M04": lambda p: [p.cpu(unlisted=("lib/libthing.so",))],
    "M05": lambda p: [p.cpu(false_digest=("lib/libthing.so",))],
    "M06": lambda p: [p.cpu(placeholders={"lib/libthing.so": PLACEHOLDER})],
    "M07": lambda p: [p.cpu(license_text=False)],
    "M08": lambda p: [p.cpu(more={"somewhere/readme": b"x"})],
    "M09": lambda p: [p.cpu(), p.cpu(name="thing-extra")],
    "M10": lambda p: [p.cpu(replace(STABLE, machine=OTHER_MACHINE))],
    "M11": lambda p: [p.cpu(more={"lib/python3.11/site-packages/thing-2.0.dist-info/METADATA": b"x"})],
    "L01": lambda p: [p.cpu(depends=("__glibc >=2.17",))],
    "L02": lambda p: [
        p.cpu(replace(STABLE, needed=(*STABLE.needed, "libdeep.so.1")), depends=(*CPU_DEPENDS, "middle")),
        p.cpu(path="lib/libmiddle.so", name="middle", depends=("deep", *CPU_DEPENDS)),
        Spec(name="deep", files={"lib/libdeep.so.1": b"x"}),
        Spec(name="libtorch", files={"lib/libtorch_cpu.so": b"x"}),
    ],
    "L03": lambda p: [p.cpu(depends=(*CPU_DEPENDS, "libcublas >=13"))],
    "L04": lambda p: [p.cuda(replace(CUDA, needed=(*CUDA.needed, "libcuda.so.1")))],
    "L05": lambda p: [
        p.wheel(replace(STABLE, soname="libcudart.so.13"), "thing.libs/libcudart-0a1b2c3d.so.13")
    ],
    "L06": lambda p: [
        p.wheel(replace(CUDA, needed=("libcudart.so.13", "libcudart-0a1b2c3d.so.13", "libtorch_cpu.so")))
    ],
    "R01": lambda p: [p.cpu(replace(STABLE, run_path="/home/builder/env/lib"))],
    "R02": lambda p: [p.cpu(replace(STABLE, run_path="$ORIGIN/../../lib"))],
    "R03": lambda p: [p.cpu(replace(STABLE, run_path="$ORIGIN/stubs"))],
    "R04": lambda p: [p.cpu(replace(STABLE, run_path="$ORIGIN:lib"))],
    "R05": lambda p: [p.wheel(replace(STABLE, run_path="$ORIGIN/lib"))],
    "F01": lambda p: [p.cpu(replace(STABLE, versions=("GLIBC_2.38",)))],
    "F02": lambda p: [
        p.cpu(
            replace(STABLE, needed=(*STABLE.needed, "libstdc++.so.6"), versions=("GLIBCXX_3.4.32",)),
            depends=(*CPU_DEPENDS, "libstdcxx >=12"),
        )
    ],
    "C01": lambda p: [
        p.cuda(replace(CUDA, needed=("libtorch_cpu.so", "libtorch_cuda.so", "libcudart.so.12", "libc.so.6")))
    ],
    "C02": lambda p: [p.cuda(depends=tuple(d for d in CUDA_DEPENDS if not d.startswith("cuda-version")))],
    "C03": lambda p: [p.cuda(depends=tuple(d for d in CUDA_DEPENDS if d != "pytorch * cuda*"))],
    "C04": lambda p: [p.cuda(variant={"cuda_architectures": "80-real;90;120"})],
    "C05": lambda p: [p.cuda(replace(CUDA, images=((2, 80), (2, 90))))],
    "C06": lambda p: [p.cuda(replace(CUDA, images=()))],
    "C07": lambda p: [p.cuda(build="cpu_0")],
    "C08": lambda p: [p.cuda(replace(CUDA, images=((2, 80), (1, 80), (1, 100))))],
    "T01": lambda p: [p.cpu(replace(STABLE, uses=("torch_new_stable_ivalue",)))],
    "T02": lambda p: [p.cpu(CLASSIC)],
    "T03": lambda p: [p.cpu(replace(STABLE, needed=(*STABLE.needed, "libc10.so")))],
    "T04": lambda p: [p.cpu(replace(BY_NAME, strings=("aten::linalg_polar",)))],
    "T05": lambda p: [p.cpu(depends=("__glibc >=2.17",))],
    "T06": lambda p: [p.wheel(replace(STABLE, needed=(*STABLE.needed, "libtorch_cuda.so")))],
    "P01": lambda p: [p.wheel(replace(MODULE, uses=("_PyObject_GetDictPtr",)), "thing.abi3.so")],
    "P02": lambda p: [
        p.wheel(replace(MODULE, uses=("PyType_GetName",)), "thing.abi3.so", tag="cp310-abi3-linux_x86_64")
    ],
    "P03": lambda p: [
        p.wheel(MODULE, "thing.cpython-312-x86_64-linux-gnu.so", tag="cp311-cp311-manylinux_2_17_x86_64")
    ],
    "P04": lambda p: [p.wheel(tag="cp311-cp311-manylinux_2_17_x86_64")],
    "P05": lambda p: [
        p.cpu(
            replace(MODULE, needed=("libpython3.11.so.1.0",)),
            "lib/python3.11/site-packages/a.so",
            depends=PYTHON_311,
        )
    ],
    "H01": lambda p: [p.cpu(replace(STABLE, strings=("/home/builder/work/thing.cpp",)))],
    "H02": lambda p: [p.cpu(replace(STABLE, flags=("-Wl,-z,execstack", "-Wl,-z,relro")))],
    "H03": lambda p: [p.cpu(replace(STABLE, flags=(*CLEAN, "-fno-pic", "-mcmodel=large", "-Wl,-z,notext")))],
    "H04": lambda p: [p.cpu(replace(STABLE, flags=("-Wl,-z,noexecstack", "-Wl,-z,norelro")))],
    "H05": lambda p: [p.cpu(modes={"lib/libthing.so": 0o777})],
    "H06": lambda p: [p.cpu(links={"lib/libother.so": "../../etc/passwd"})],
    "H07": lambda p: [
        p.cpu(
            replace(MODULE, exports=("PyInit_thing", "inflate"), needed=("libtorch_cpu.so", "libc.so.6")),
            "lib/python3.11/site-packages/a.so",
            depends=PYTHON_311,
        )
    ],
    "H08": lambda p: [
        p.cpu(more={"lib/libbroken.so": b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00" + b"\xff" * 99})
    ],
}


def test_every_code_has_a_bad_package() -> None:
    assert list(BAD) == list(CHECKS)


@pytest.mark.parametrize("name", GOOD)
def test_good_package_has_no_finding(name: str, packages: Packages, tmp_path: Path) -> None:
    findings = audit([GOOD[name](packages)], tmp_path, Options(ignore="C08"))
    assert [(f.code, f.observation) for f in findings] == []


@pytest.mark.parametrize("code", BAD)
def test_bad_package_is_found(code: str, packages: Packages, tmp_path: Path, cuobjdump_of_two: Path) -> None:
    options = Options(cuobjdump=cuobjdump_of_two, channels=())
    if code == "L02":
        options = replace(options, prefix=_empty(tmp_path))
    findings = [f for f in audit(BAD[code](packages), tmp_path, options) if f.code == code]
    assert findings, f"{code} did not speak"
    wanted = Level.UNVERIFIED if code == "H08" else CHECKS[code].wording.level
    assert {f.level for f in findings} == {wanted}
    for seen in (f.observation for f in findings):
        assert seen.file
        assert seen.claimed
        assert seen.seen
        assert seen.change


def _empty(directory: Path) -> Path:
    prefix = directory / "prefix"
    prefix.mkdir()
    return prefix


@pytest.fixture(scope="session")
def cuobjdump_of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that answers as cuobjdump does for a library with SASS 8.0 and 9.0 and PTX 9.0."""
    program = tmp_path_factory.mktemp("bin") / "cuobjdump"
    program.write_text(
        "#!/bin/sh\n"
        'case "$2" in\n'
        '--list-elf) echo "ELF file    1: out.1.sm_80.cubin"; echo "ELF file    2: out.2.sm_90.cubin";;\n'
        '*) echo "PTX file    1: out.1.sm_90.ptx";;\n'
        "esac\n"
    )
    program.chmod(0o755)
    return program


def test_second_opinion_that_agrees_is_silent(
    packages: Packages, tmp_path: Path, cuobjdump_of_two: Path
) -> None:
    assert audit([packages.cuda()], tmp_path, Options(cuobjdump=cuobjdump_of_two)) == ()


def test_without_second_opinion_gpu_code_is_not_verified(
    packages: Packages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    (finding,) = audit([packages.cuda()], tmp_path)
    assert (finding.code, finding.level) == ("C08", Level.UNVERIFIED)
    assert "no cuobjdump" in finding.observation.seen


STRIPPERS = {"strip": strip, "without sections": without_sections}


@pytest.mark.parametrize("stripper", STRIPPERS)
@pytest.mark.parametrize("code", BAD)
def test_stripped_copy_of_a_bad_package_is_found(
    code: str, stripper: str, packages: Packages, tmp_path: Path, cuobjdump_of_two: Path
) -> None:
    """Every library of the package is stripped, and the lists of files say what is then true."""
    specs = [_stripped(spec, STRIPPERS[stripper], tmp_path) for spec in BAD[code](packages)]
    prefix = _empty(tmp_path) if code == "L02" else None
    findings = audit(specs, tmp_path, Options(cuobjdump=cuobjdump_of_two, prefix=prefix))
    assert code in {f.code for f in findings}


def _stripped(spec: Any, stripper: Callable[[bytes, Path], bytes], directory: Path) -> Any:
    files = {
        path: stripper(content, directory) if _is_readable_elf(content) else content
        for path, content in spec.files.items()
    }
    return replace(spec, files=files)


def _is_readable_elf(content: bytes) -> bool:
    """Whether strip takes it: a library for this machine with headers that tell the truth."""
    return content[:4] == b"\x7fELF" and content[18] == 62 and content[40:48] != b"\xff" * 8


# Text that a packager needs in order to act, by code.
WORDS = {
    "F01": ("__glibc >=2.17", "GLIBC_2.38 by versioned_0"),
    "T01": ("pytorch >=2.10,<3", "torch 2.13 is the first with torch_new_stable_ivalue"),
    "T02": ("torch 2.10 and later", "2 C++ symbols of torch"),
    "T04": ("pytorch >=2.10,<3", "torch 2.14 is the first with aten::linalg_polar"),
    "R01": ("RUNPATH /home/builder/env/lib", "absolute path"),
    "L06": ("one CUDA runtime", "libcudart-0a1b2c3d.so.13 needed by thing/libthing.so; libcudart.so.13"),
    "C04": ("cuda_architectures: 80-real;90;120", "lacks sass 12.0, ptx 12.0; has sass 8.0 9.0, ptx 9.0"),
    "P02": ("cp310-abi3: Python 3.10", "Python 3.11: PyType_GetName"),
}


# What else the same codes catch: (code, package).
FURTHER: dict[str, tuple[str, Callable[[Packages], Any]]] = {
    "binary in a noarch package": ("M10", lambda p: p.cpu(subdir="noarch")),
    "binary in a pure wheel": ("M10", lambda p: p.wheel(tag="py3-none-any")),
    "file name and tag of a wheel": ("M01", lambda p: p.wheel(inner_tag="py3-none-linux_x86_64")),
    "no licence named": ("M07", lambda p: p.cpu(license="")),
    "build prefix not recorded": (
        "M06",
        lambda p: p.cpu(more={"share/x": b"/b/_h_env" + 9 * b"_placehold" + b"/x"}),
    ),
    "CUDA of the build string": ("C01", lambda p: p.cuda(build="cuda129_0")),
    "CUDA of the torch required": ("C01", lambda p: p.cuda(depends=(*CUDA_DEPENDS, "libtorch * cuda129*"))),
    "a static CUDA runtime beside a shared one": (
        "L06",
        lambda p: p.cuda(more={"lib/libstatic.so": p.compiled(Library(strings=CUDA_RUNTIME))}),
    ),
    "a static CUDA runtime in the library that needs a shared one": (
        "L06",
        lambda p: p.cuda(replace(CUDA, strings=CUDA_RUNTIME)),
    ),
    "a static CUDA runtime in a CPU build": ("C07", lambda p: p.cpu(replace(STABLE, strings=CUDA_RUNTIME))),
    "no driver required": ("C03", lambda p: p.cuda(depends=tuple(d for d in CUDA_DEPENDS if d != "__cuda"))),
    "architectures of another library": ("C04", lambda p: p.cuda(variant={"CF_TORCH_CUDA_ARCH_LIST": "7.5"})),
    "PTX of one architecture alone": ("C05", lambda p: p.cuda(replace(CUDA, images=((2, 90),)))),
    "CUDA library in a CPU build": ("C07", lambda p: p.cpu(replace(STABLE, needed=("libcudart.so.13",)))),
    "renamed copy of OpenMP": (
        "L05",
        lambda p: p.wheel(replace(STABLE, exports=("omp_get_num_threads",)), "thing.libs/libzzz.so"),
    ),
    "stable ABI, unknown function": ("T01", lambda p: p.cpu(replace(STABLE, uses=("torch_of_the_future",)))),
    "stable ABI, torch before the table": (
        "T01",
        lambda p: p.cpu(depends=("libtorch >=2.9", "__glibc >=2.17")),
    ),
    "torch that does not exist": (
        "T01",
        lambda p: p.cpu(depends=("libtorch 2.13.*", "pytorch <2", "__glibc >=2.17")),
    ),
    "operator that no torch has": ("T04", lambda p: p.cpu(replace(BY_NAME, strings=("aten::nonsense",)))),
    "a release of torch without a library": (
        "T02",
        lambda p: p.wheel(CLASSIC, "thing/torch-2.13/libthing.so", requires=("torch >=2.13,<2.15",)),
    ),
    "suffix of another platform": (
        "P03",
        lambda p: p.wheel(
            MODULE, "thing.cpython-311-aarch64-linux-gnu.so", tag="cp311-cp311-manylinux_2_17_x86_64"
        ),
    ),
    "a module with the lock for free-threaded Python": (
        "P03",
        lambda p: p.wheel(
            MODULE, "thing.cpython-313-x86_64-linux-gnu.so", tag="cp313-cp313t-manylinux_2_17_x86_64"
        ),
    ),
    "a free-threaded module in a package for Python with the lock": (
        "P03",
        lambda p: p.cpu(
            MODULE,
            "lib/python3.13/site-packages/thing.cpython-313t-x86_64-linux-gnu.so",
            depends=("python >=3.13,<3.14.0a0", "python_abi 3.13.* *_cp313", *CPU_DEPENDS),
        ),
    ),
    "version-specific module for any Python": (
        "P01",
        lambda p: p.cpu(
            replace(MODULE, uses=("_PyObject_GetDictPtr",)), depends=("python >=3.10", *CPU_DEPENDS)
        ),
    ),
    "symlink to nothing": ("H06", lambda p: p.cpu(links={"lib/a.so": "b.so"})),
    "setuid": ("H05", lambda p: p.cpu(modes={"lib/libthing.so": 0o4755})),
}


@pytest.mark.parametrize("name", FURTHER)
def test_further_fault_is_found(name: str, packages: Packages, tmp_path: Path) -> None:
    code, make = FURTHER[name]
    assert code in {f.code for f in audit([make(packages)], tmp_path)}


def test_driver_needed_by_a_library_of_its_own_is_not_verified(packages: Packages, tmp_path: Path) -> None:
    library = Library(needed=("libcuda.so.1", "libc.so.6"))
    (finding,) = audit([packages.cpu(library)], tmp_path)
    assert (finding.code, finding.level) == ("L04", Level.UNVERIFIED)


def test_build_string_with_another_hash_is_found(packages: Packages, tmp_path: Path) -> None:
    (finding,) = audit([packages.cpu(build="cpu_h0000000_0", variant=HASHED)], tmp_path)
    assert finding.code == "M02"
    assert finding.observation.seen == f"hash {HASH}"


@pytest.mark.parametrize("code", WORDS)
def test_finding_says_what_was_claimed_and_seen(code: str, packages: Packages, tmp_path: Path) -> None:
    seen = next(f.observation for f in audit(BAD[code](packages), tmp_path) if f.code == code)
    assert WORDS[code][0] in seen.claimed
    assert WORDS[code][1] in seen.seen
