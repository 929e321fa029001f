"""Build the extension at the first import of this module, and again when a source has changed.

>>> import jit
>>> layer = jit.lltm.LLTM(features=16, state=128)
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import torch
from torch.utils.cpp_extension import load

HERE = Path(__file__).resolve().parent
SETTINGS = json.loads((HERE / "extension.json").read_text())

sources = [*SETTINGS["sources"], *(SETTINGS["cuda_sources"] if torch.version.cuda else ())]
# Without this, torch takes the architecture of the GPU it sees and fails where it sees none.
os.environ.setdefault("TORCH_CUDA_ARCH_LIST", ";".join(SETTINGS["cuda_architectures"]))
sys.modules[SETTINGS["name"]] = load(
    SETTINGS["name"],
    [str(HERE / source) for source in sources],
    extra_cflags=["-O3"],
    extra_cuda_cflags=["-O3"],
    verbose="-v" in sys.argv,
)
lltm = importlib.import_module("lltm")
