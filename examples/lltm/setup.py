"""Build the extension with setuptools: ``python setup.py bdist_wheel``.

Name and version come from pyproject.toml.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

SETTINGS = json.loads(Path(__file__).with_name("extension.json").read_text())

os.environ.setdefault("TORCH_CUDA_ARCH_LIST", ";".join(SETTINGS["cuda_architectures"]))
# Decided by the torch that is built against, not by the GPU of this machine.
extension, sources = (
    (CUDAExtension, SETTINGS["sources"] + SETTINGS["cuda_sources"])
    if torch.version.cuda
    else (CppExtension, SETTINGS["sources"])
)
setup(
    py_modules=["lltm"],
    ext_modules=[extension(SETTINGS["name"], sources, extra_compile_args={"cxx": ["-O3"], "nvcc": ["-O3"]})],
    cmdclass={"build_ext": BuildExtension},
)
