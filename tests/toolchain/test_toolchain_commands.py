"""The commands as processes: what they print, where, and how they end."""

from __future__ import annotations

import json
import resource
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

SCRIPTS = Path(sysconfig.get_path("scripts"))


@pytest.fixture
def command(world):
    """Run a command with a fake toolkit on a clean PATH; real compilers, real interpreter."""
    world.toolkit(world.top / "cuda")

    def run(*words, program="extforge", **variables):
        executable = SCRIPTS / program
        assert executable.is_file(), "the tests run against the installed package"
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(world.top / "home"), **variables}
        return subprocess.run([executable, *words], env=environ, capture_output=True, text=True, check=False)

    run.cuda = str(world.top / "cuda")
    return run


def succeeded(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- json ------------------------------------------------------------------------------------------------
def test_json_prints_a_document_that_agrees_with_the_schema(command):
    document = json.loads(succeeded(command("json", "--why", "--cuda", command.cuda)))
    schema = json.loads(files("extforge.toolchain").joinpath("schema.json").read_text())
    jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
    assert document["root"]["path"] == command.cuda


def test_json_of_a_contradiction_is_printed_and_ends_in_3(command):
    done = command("json", EXTFORGE_CUDA_ROOT="/a:/b")
    assert done.returncode == 3
    assert json.loads(done.stdout)["findings"][0]["code"] == "cuda-root-unusable"
    assert "extforge json: refused [cuda-root-unusable]: EXTFORGE_CUDA_ROOT cannot be used" in done.stderr


def test_json_never_imports_torch(command, world):
    package = world.file(
        world.top / "site-packages/torch/__init__.py", "raise SystemExit('imported')\n"
    ).parent
    world.file(package / "version.py", "__version__ = '9.9'\ncuda = '13.0'\n")
    document = json.loads(succeeded(command("json", "--cuda", command.cuda, PYTHONPATH=str(package.parent))))
    assert document["tools"]["torch"]["version"] == "9.9"


def test_json_answers_within_the_time_that_a_prompt_may_take(command):
    """The bar is 0.3 s for a cold process.

    Processor time of the process and its children is measured, because on a machine that is busy
    with other work the clock on the wall says nothing; on an idle one it is the smaller of the two.
    """
    durations = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        succeeded(command("json", "--cuda", command.cuda))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        durations.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(durations) < 0.3, durations


# --- env, cmake, view, run -------------------------------------------------------------------------------
def test_env_prints_assignments_on_stdout_and_reasons_on_stderr(command):
    done = command("env", "--cuda", command.cuda)
    view = next(word for word in shlex.split(succeeded(done)) if word.startswith("CUDA_HOME="))
    assert Path(view.partition("=")[2], "bin/nvcc").is_file()
    assert "extforge: made the view " in done.stderr
    assert "made the view" not in command("env", "--cuda", command.cuda).stderr


def test_env_sets_architectures_only_when_asked_and_known(command):
    variables = json.loads(
        succeeded(command("env", "--shell", "json", "--cuda", command.cuda, "--arch", "9.0 12.0+PTX"))
    )
    assert variables["CUDAARCHS"] == "90-real;120"
    refused = command("env", "--cuda", command.cuda, "--arch", "3.5")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "does not compile for 3.5" in refused.stderr


def test_cmake_prints_a_cache_that_cmake_reads(command, world):
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    script = world.file(world.top / "my cache.cmake", succeeded(command("cmake", "--cuda", command.cuda)))
    listing = world.file(world.top / "list.cmake", 'message("${CUDAToolkit_ROOT}")\n')
    cmake = ["cmake", "-C", script, "-P", listing]
    printed = subprocess.run(cmake, capture_output=True, text=True, check=True).stderr
    assert (Path(printed.strip()) / "bin/nvcc").is_file()


def test_view_prints_the_directory(command, world):
    assert (
        succeeded(command("view", "--cuda", command.cuda, str(world.top / "my view")))
        == f"{world.top}/my view\n"
    )
    assert (world.top / "my view/lib64/libcudart.so").is_file()


def test_run_gives_the_command_the_variables_and_passes_its_exit_code_on(command):
    done = command("run", "--cuda", command.cuda, "--", "sh", "-c", 'test -x "$CUDACXX" && exit 7')
    assert done.returncode == 7, done.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"), [((), 2, "no command was given"), (("gone",), 1, "gone cannot be run")]
)
def test_run_says_what_is_wrong_with_the_command(command, words, code, message):
    done = command("run", "--cuda", command.cuda, "--", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr


def test_hook_is_installed_and_removed(command, world):
    prefix = world.conda(world.top / "env")
    world.interpreter(prefix)
    done = command("hook", "install", "--prefix", str(prefix))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    script = prefix / "etc/conda/activate.d/~~extforge_activate.sh"
    assert f"TRITON_PTXAS_PATH={prefix}/bin/ptxas" in script.read_text()
    assert succeeded(command("hook", "remove", "--prefix", str(prefix))) == ""
    assert not script.exists()
    assert command("hook", "remove", "--prefix", str(prefix)).returncode == 1


# --- extforge-config -------------------------------------------------------------------------------------
@pytest.fixture
def config(command):
    return lambda *words: command(*words, "--cuda", command.cuda, program="extforge-config")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--includes", "cudart"), "-I{cuda}/include -I{cuda}/include/cccl"),
        (("--ldflags", "--libs", "cudart"), "-L{cuda}/lib64 -lcudart"),
        (("--libs", "cuda"), "-Wl,--push-state,--no-as-needed -lcuda -Wl,--pop-state"),
        (("--nvcc",), "{cuda}/bin/nvcc"),
        (("--ptxas", "--nvcc"), "{cuda}/bin/ptxas\n{cuda}/bin/nvcc"),
        (("--variable", "cuda-root"), "{cuda}"),
        (("--modversion", "cudart"), "13.0.88"),
        (("--extension-suffix",), sysconfig.get_config_var("EXT_SUFFIX")),
        (("--exists", "cudart", "python"), ""),
    ],
)
def test_config_answers(config, command, words, expected):
    assert succeeded(config(*words)).rstrip("\n") == expected.format(cuda=command.cuda)


def test_config_quotes_for_the_shell(command, world):
    spaced = world.toolkit(world.top / "my cuda")
    done = command("--cflags", "cudart", "--cuda", str(spaced), program="extforge-config")
    assert shlex.split(succeeded(done))[0] == f"-I{spaced}/include"


def test_flags_is_the_same_command(command, config):
    assert succeeded(command("flags", "--libs", "cudart", "--cuda", command.cuda)) == succeeded(
        config("--libs", "cudart")
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--libs", "cudnn"), 2, "unknown module cudnn; known: python, torch, cudart, cuda, libdevice"),
        ((), 2, "ask for something, e.g. --cflags torch"),
        (("--nvcc", "--set", "nvcc"), 2, "--set nvcc: write it as PART=PATH"),
        (
            ("--nvcc", "--set", "nvcc=/gone"),
            3,
            "refused [override-unusable]: the nvcc named explicitly cannot be used: /gone",
        ),
    ],
)
def test_config_says_what_is_wrong_on_stderr_alone(config, words, code, message):
    done = config(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert f"extforge-config: {message}" in done.stderr


def test_config_of_something_missing_ends_in_1(command, world):
    (world.top / "cuda/bin/cuobjdump").unlink()
    done = command("--cuobjdump", "--cuda", command.cuda, program="extforge-config")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cuobjdump is missing" in done.stderr


def test_a_single_answer_does_not_need_what_was_not_asked_for(command, world):
    prefix = world.toolkit(world.conda_meta(world.top / "no python"))
    done = command("--nvcc", "--prefix", str(prefix), "--cuda", command.cuda, program="extforge-config")
    assert succeeded(done) == f"{command.cuda}/bin/nvcc\n"


def test_a_contradiction_inside_cuda_keeps_nobody_from_pythons_flags(command):
    include = sysconfig.get_path("include")
    done = command("--includes", "python", program="extforge-config", CUDA_HOME="/a:/b")
    assert succeeded(done) == f"-I{include}\n"


def test_embedding_links_a_program(config, world):
    source = world.file(
        world.top / "main.c", "#include <Python.h>\nint main(void) { Py_Initialize(); return 0; }\n"
    )
    flags = [
        shlex.split(succeeded(config(option, "--embed", "python")))
        for option in ("--cflags", "--ldflags", "--libs")
    ]
    library = next(word for word in flags[1] if word.startswith("-L"))[2:]
    program = world.top / "main"
    command = ["gcc", *flags[0], source, *flags[1], *flags[2], f"-Wl,-rpath,{library}", "-o", program]
    subprocess.run(command, check=True)
    subprocess.run([program], check=True, env={"PYTHONHOME": sys.base_prefix})
