"""Where is it, and why: compilers, CUDA, the driver, Python and torch of one environment.

>>> from extforge.toolchain import resolve
>>> toolchain = resolve()
>>> toolchain["cxx"].path, toolchain["cxx"].via
"""

from extforge.toolchain.model import Finding, Flags, Found, Missing, Root, Toolchain, ToolchainConflict, Tried
from extforge.toolchain.resolve import resolve

__all__ = [
    "Finding",
    "Flags",
    "Found",
    "Missing",
    "Root",
    "Toolchain",
    "ToolchainConflict",
    "Tried",
    "resolve",
]
