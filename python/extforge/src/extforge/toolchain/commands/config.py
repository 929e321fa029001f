"""``extforge-config`` and ``extforge flags``: one line of shell words, as python3-config and pkg-config give.

Answers go to stdout and nothing else does; a missing part is named on stderr and ends in exit code 1.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from extforge.errors import ExtforgeError, NotFoundError
from extforge.toolchain.catalogue import CUDA_PARTS, TOOL_NAMES
from extforge.toolchain.flags import CUDA_MODULES, MODULES, torch_cmake_directories, uses_view
from extforge.toolchain.model import Flags, Found, Toolchain
from extforge.toolchain.options import (
    add_query_arguments,
    build_planned_view,
    survey_from,
)

FlagOption = tuple[str, Callable[[Flags], tuple[str, ...]]]
FLAG_OPTIONS: dict[str, FlagOption] = {
    "includes": ("-I alone", lambda flags: tuple(flag for flag in flags.cflags if flag.startswith("-I"))),
    "cflags": ("what a C compiler needs", lambda flags: flags.cflags),
    "cxxflags": ("what a C++ compiler needs", lambda flags: flags.cflags + flags.cxxflags),
    "ldflags": ("-L", lambda flags: flags.ldflags),
    "libs": ("-l", lambda flags: flags.libs),
}
MODULE_PARTS = {
    "python": "python_include",
    "torch": "torch",
    "cudart": "cudart",
    "cuda": "libcuda",
    "libdevice": "libdevice",
}


def _cmake_directory(toolchain: Toolchain) -> str:
    for directory in torch_cmake_directories(toolchain["torch"].path, toolchain.prefix):
        return str(directory.parent)
    raise NotFoundError(f"torch in {toolchain['torch'].path} has no share/cmake/Torch/TorchConfig.cmake")


def _pkgconfig_directory(toolchain: Toolchain) -> str:
    places = (toolchain.prefix / "lib/pkgconfig", Path(toolchain.interpreter.base_prefix) / "lib/pkgconfig")
    for place in places:
        if place.is_dir():
            return str(place)
    raise NotFoundError(f"no pkgconfig directory; looked for {', '.join(map(str, places))}")


# Variables in pkg-config's manner, also what the options of the same purpose print.
VARIABLES: dict[str, Callable[[Toolchain], str]] = {
    "prefix": lambda toolchain: str(toolchain.prefix),
    "cmakedir": _cmake_directory,
    "pkgconfigdir": _pkgconfig_directory,
    "extension-suffix": lambda toolchain: toolchain.interpreter.extension_suffix,
    "cuda-root": lambda toolchain: str(_require_root(toolchain)),
    "libdevice": lambda toolchain: str(toolchain["libdevice"].path),
    "target": lambda toolchain: toolchain.target or toolchain.machine,
}


VARIABLE_OPTIONS = {
    "cmakedir": "what CMAKE_PREFIX_PATH needs for find_package(Torch)",
    "pkgconfigdir": "what PKG_CONFIG_PATH needs for Python",
    "extension-suffix": "how the file name of an extension module ends",
}


def _require_root(toolchain: Toolchain) -> Path:
    if toolchain.root is None:
        raise NotFoundError("no CUDA toolkit root was found: " + "; ".join(map(str, toolchain.root_tried)))
    return toolchain.root.path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    flags = parser.add_argument_group("flags of modules, shell-quoted, in the order asked for")
    for name, (sentence, _) in FLAG_OPTIONS.items():
        flags.add_argument(
            f"--{name}", action="append_const", dest="ask", const=("flags", name), help=sentence
        )
    flags.add_argument(
        "--embed", action="store_true", help="add libpython, for programs that hold an interpreter"
    )
    flags.add_argument("modules", nargs="*", metavar="MODULE", help=" ".join(MODULES) + " (default: python)")
    answers = parser.add_argument_group("single answers, a line each")
    for name in TOOL_NAMES:
        answers.add_argument(
            f"--{name}", action="append_const", dest="ask", const=("tool", name), help=f"path of {name}"
        )
    for name, sentence in VARIABLE_OPTIONS.items():
        answers.add_argument(
            f"--{name}", action="append_const", dest="ask", const=("variable", name), help=sentence
        )
    answers.add_argument(
        "--variable", action="append", choices=VARIABLES, default=[], help="as in pkg-config"
    )
    answers.add_argument(
        "--modversion", action="append_const", dest="ask", const=("version", ""), help="of each MODULE"
    )
    answers.add_argument(
        "--exists", action="store_true", help="print nothing; exit 0 if every MODULE is there, else 1"
    )
    add_query_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print one line of flags, then a line an answer."""
    asked = [*(arguments.ask or ()), *(("variable", name) for name in arguments.variable)]
    if not asked and not arguments.exists:
        print("extforge-config: ask for something, e.g. --cflags torch, --nvcc; see --help", file=sys.stderr)
        return 2
    modules = arguments.modules or ["python"]
    toolchain = survey_from(arguments)
    if _concerns_cuda(asked, modules):
        toolchain.refuse()
    lines = []
    kinds = {kind for kind, _ in asked}
    if "flags" in kinds or arguments.exists:
        flags = toolchain.flags(*modules, embed=arguments.embed)
    if arguments.exists:
        return 0
    if "flags" in kinds:
        if uses_view(toolchain, flags):
            build_planned_view(toolchain)
        words = [word for kind, name in asked if kind == "flags" for word in FLAG_OPTIONS[name][1](flags)]
        lines.append(shlex.join(dict.fromkeys(words)))
    for kind, name in asked:
        lines += _answer(toolchain, kind, name, modules) if kind != "flags" else []
    print("\n".join(lines))
    return 0


def _concerns_cuda(asked: list[tuple[str, str]], modules: list[str]) -> bool:
    """A contradiction inside CUDA does not keep anybody from Python's flags."""
    cuda = {part.name for part in CUDA_PARTS} | {"cuda-root", "libdevice", "target"}
    return any(module in CUDA_MODULES for module in modules) or any(name in cuda for _, name in asked)


def _answer(toolchain: Toolchain, kind: str, name: str, modules: list[str]) -> list[str]:
    if kind == "tool":
        return [str(toolchain[name].path)]
    if kind == "variable":
        return [VARIABLES[name](toolchain)]
    found: list[Found] = [toolchain[MODULE_PARTS[module]] for module in modules]
    return [part.version or (toolchain.root and toolchain.root.version) or "unknown" for part in found]


def main() -> int:
    """The ``extforge-config`` script."""
    parser = argparse.ArgumentParser(prog="extforge-config", description=__doc__)
    add_arguments(parser)
    try:
        return run(parser.parse_args())
    except ExtforgeError as error:
        print(f"extforge-config: {error}", file=sys.stderr)
        return error.exit_code
