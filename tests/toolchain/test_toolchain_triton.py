"""Triton's launcher built by this toolchain, called as Triton calls a build implementation."""

from __future__ import annotations

import subprocess
import sys

import pytest
from extforge.errors import FailedCommand, NotFoundError
from extforge.toolchain import interpreter
from extforge.toolchain.triton import triton_build_impl

SOURCE = """\
#include <Python.h>
extern int cuInit(unsigned);
static PyObject *init(PyObject *self, PyObject *none) { return PyLong_FromLong(cuInit(0)); }
static PyMethodDef methods[] = {{"init", init, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "launcher", NULL, -1, methods};
PyMODINIT_FUNC PyInit_launcher(void) { return PyModule_Create(&module); }
"""


@pytest.fixture
def real(world):
    """A fake toolkit with a stub that a linker accepts, this interpreter, this machine's compiler."""
    world.python = interpreter.current()
    world.environ["PATH"] = "/usr/bin:/bin"
    root = world.toolkit(world.top / "cuda")
    stub = world.top / "cuda/lib64/stubs/libcuda.so"
    source = world.file(world.top / "stub.c", "int cuInit(unsigned flags) { return 34; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", source, "-o", stub], check=True)
    world.environ["EXTFORGE_CUDA_ROOT"] = str(root)
    return world


def test_the_launcher_links_the_soname_from_the_view_alone(real):
    """Directories that Triton's ldconfig search added are left out when they hold a driver."""
    impl = triton_build_impl(real.resolve())
    source = real.file(real.top / "launcher.c", SOURCE)
    unusable = real.library(real.top / "lib32/libcuda.so.1", "i386", bits=32).parent
    module = impl("launcher", str(source), str(real.top), [str(unusable)], [], ["libcuda.so.1"])
    assert module.endswith("launcher" + interpreter.current().extension_suffix)
    dynamic = subprocess.run(["readelf", "-d", module], capture_output=True, text=True, check=True).stdout
    assert "[libcuda.so.1]" in dynamic
    script = "import sys; sys.path.insert(0, sys.argv[1]); import launcher; print(launcher.init())"
    stubs = {"LD_LIBRARY_PATH": str(real.resolve()["libcuda"].path.parent)}
    link = real.resolve()["libcuda"].path
    (link.parent / "libcuda.so.1").symlink_to(link)
    done = subprocess.run(
        [sys.executable, "-c", script, real.top], env=stubs, capture_output=True, text=True, check=True
    )
    assert done.stdout == "34\n"


def test_a_failure_tells_the_command_and_the_compilers_words(real):
    impl = triton_build_impl(real.resolve())
    source = real.file(real.top / "launcher.c", "#error no such luck\n")
    with pytest.raises(FailedCommand, match=r"(?s)launcher\.c.*no such luck"):
        impl("launcher", str(source), str(real.top), [], [], [])


def test_without_a_driver_to_link_it_says_so_at_once(real):
    (real.top / "cuda/lib64/stubs/libcuda.so").unlink()
    cure = r"(extforge view --generate-stub|conda install .* cuda-driver-dev)"  # outside and inside of conda
    with pytest.raises(NotFoundError, match=rf"libcuda is missing .*try: {cure}"):
        triton_build_impl(real.resolve())
