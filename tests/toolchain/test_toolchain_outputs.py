"""Flags, variables, CMake cache and the JSON document."""

from __future__ import annotations

import json
from importlib.resources import files

import jsonschema
import pytest
from extforge.errors import BadInputError, NotFoundError
from extforge.toolchain.archs import for_cmake, parse_archs
from extforge.toolchain.catalogue import PART_NAMES
from extforge.toolchain.model import REASONS
from extforge.toolchain.outputs import cmake_script, environment
from extforge.toolchain.view import plan_view

SCHEMA = json.loads(files("extforge.toolchain").joinpath("schema.json").read_text())


def conda_with_torch(world):
    world.inside(world.conda(world.top / "env"))
    world.torch("2.13.0", cuda="13.0")


STAGES = {
    "nothing": lambda world: None,
    "conda": conda_with_torch,
    "wheel": lambda world: world.wheel(world.site),
    "split wheels": lambda world: world.wheels(world.site),
    "debian": lambda world: world.environ.update(CUDA_HOME=str(world.split(world.top / "usr"))),
    "broken": lambda world: world.environ.update(
        CUDA_HOME="/a:/b", CC="gone", LD_LIBRARY_PATH="relative:/gone"
    ),
}


@pytest.mark.parametrize("why", [True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_the_document_agrees_with_the_schema_that_ships(world, stage, why):
    STAGES[stage](world)
    document = json.loads(json.dumps(world.survey().to_dict(why=why)))
    jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert ("overruled" in document) == why


def test_the_schema_knows_every_part_and_reason():
    assert set(SCHEMA["$defs"]["tried"]["properties"]["reason"]["enum"]) == set(REASONS)
    assert {*SCHEMA["properties"]["tools"]["required"], "libcuda", "libcuda_runtime"} == set(PART_NAMES)


def test_resolving_changes_nothing(world):
    """Neither the environment mapping nor a single file."""
    conda_with_torch(world)
    before = dict(world.environ), sorted(map(str, world.top.rglob("*")))
    world.resolve().to_dict()
    world.resolve().environ()
    world.resolve().cmake()
    assert (dict(world.environ), sorted(map(str, world.top.rglob("*")))) == before


# --- flags -------------------------------------------------------------------------------------------------
def test_flags_of_all_modules(world):
    conda_with_torch(world)
    env, cuda = world.top / "env", world.top / "env/targets/x86_64-linux"
    torch = env / "lib/python3.11/site-packages/torch"
    flags = world.resolve().flags("python", "torch", "cudart", "cuda")
    assert flags.cflags == (
        f"-I{env}/include/python3.11",
        f"-I{torch}/include",
        f"-I{torch}/include/torch/csrc/api/include",
        f"-I{cuda}/include",
        f"-I{cuda}/include/cccl",
    )
    assert flags.cxxflags == ("-std=c++20",)
    assert flags.ldflags == (f"-L{torch}/lib", f"-L{cuda}/lib", f"-L{cuda}/lib/stubs")
    libraries = ("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python", "-lc10_cuda", "-ltorch_cuda")
    keep = ("-Wl,--push-state,--no-as-needed", "-lcuda", "-Wl,--pop-state")
    assert flags.libs == (*libraries, "-lcudart", *keep)


def test_conda_forges_torch_keeps_its_headers_in_the_prefix(world):
    conda_with_torch(world)
    env = world.top / "env"
    world.file(env / "include/torch/csrc/api/include/torch/torch.h")
    assert f"-I{env}/include/torch/csrc/api/include" in world.resolve().flags("torch").cflags


def test_libpython_is_linked_only_to_embed(world):
    assert not world.resolve().flags("python").libs
    embedding = world.resolve().flags("python", embed=True)
    assert embedding.libs == ("-lpython3.11", "-ldl", "-lm")
    assert embedding.ldflags == (f"-L{world.top}/python/lib",)


def test_the_systems_include_directory_is_never_passed(world):
    """-I/usr/include before the compiler's own directories breaks include_next of the C++ headers."""
    world.python = world.python._replace(includes=("/usr/include", *world.python.includes))
    toolchain = world.resolve(overrides={"python_include": "/usr/include"})
    assert toolchain.flags("python").cflags == ()


@pytest.mark.parametrize(("stage", "below"), [("wheel", "lib64"), ("debian", "lib64")])
def test_cudart_is_linked_from_the_view_where_its_own_directory_does_not_do(world, stage, below):
    STAGES[stage](world)
    toolchain = world.resolve()
    assert toolchain.flags("cudart").ldflags == (f"-L{plan_view(toolchain).path}/{below}",)


def test_an_unknown_module_is_bad_input(world):
    with pytest.raises(
        BadInputError, match="unknown module cudnn; known: python, torch, cudart, cuda, libdevice"
    ):
        world.resolve().flags("cudnn")


def test_a_missing_part_is_named_with_what_was_tried(world):
    with pytest.raises(NotFoundError, match=r"torch is missing \(.*version\.py: there is no such file"):
        world.resolve().flags("torch")


# --- environment and CMake -----------------------------------------------------------------------------
def test_the_whole_environment(world):
    conda_with_torch(world)
    toolchain = world.resolve()
    view, env = plan_view(toolchain), world.top / "env"
    cache = f"{world.top}/home/.cache/extforge"
    assert environment(toolchain, view) == {
        "CC": str(world.top / "bin/cc"),
        "CXX": str(world.top / "bin/c++"),
        "CUDAHOSTCXX": str(world.top / "bin/c++"),
        "NVCC_CCBIN": str(world.top / "bin/c++"),
        "CUDA_HOME": str(view.path),
        "CUDA_PATH": str(view.path),
        "CUDAToolkit_ROOT": str(view.path),
        "CUDACXX": str(view.path / "bin/nvcc"),
        "TRITON_PTXAS_PATH": str(env / "bin/ptxas"),
        "TRITON_PTXAS_BLACKWELL_PATH": str(env / "bin/ptxas"),
        "TRITON_CUOBJDUMP_PATH": str(env / "bin/cuobjdump"),
        "TRITON_NVDISASM_PATH": str(env / "bin/nvdisasm"),
        "TRITON_LIBCUDA_PATH": str(view.path / "lib64/stubs"),
        "TRITON_CACHE_DIR": f"{cache}/triton/{toolchain.fingerprint[:16]}",
        "TORCH_EXTENSIONS_DIR": f"{cache}/torch_extensions/{toolchain.fingerprint[:16]}",
        "CMAKE_PREFIX_PATH": f"{env}/lib/python3.11/site-packages/torch/share/cmake:{env}",
    }


def test_what_was_not_found_is_not_set(world):
    world.environ["PATH"] = "/nonexistent"
    names = set(world.survey().environ())
    assert names == {"TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CMAKE_PREFIX_PATH"}


def test_another_compiler_gives_another_cache(world):
    before = world.resolve().environ()["TRITON_CACHE_DIR"]
    world.compilers(world.top / "other", "", "13.1.0")
    world.environ |= {"CC": str(world.top / "other/gcc"), "CXX": str(world.top / "other/g++")}
    assert world.resolve().environ()["TRITON_CACHE_DIR"] != before


def test_a_cache_that_the_user_chose_is_left_alone(world):
    world.environ["TRITON_CACHE_DIR"] = "/scratch/mine"
    assert "TRITON_CACHE_DIR" not in world.resolve().environ()


def test_the_users_cmake_prefixes_stay_behind_ours(world):
    world.environ["CMAKE_PREFIX_PATH"] = "/mine:/yours"
    assert world.resolve().environ()["CMAKE_PREFIX_PATH"] == f"{world.top}/python:/mine:/yours"


def test_cmake_variables(world):
    conda_with_torch(world)
    toolchain = world.resolve()
    view, variables = plan_view(toolchain).path, toolchain.cmake()
    assert variables["CUDA_CUDART"] == str(view / "lib64/libcudart.so")
    assert variables["CUDA_cuda_driver_LIBRARY"] == str(view / "lib64/stubs/libcuda.so")
    assert variables["CMAKE_CUDA_HOST_COMPILER"] == str(world.top / "bin/c++")
    assert variables["Python_EXECUTABLE"] == str(world.top / "env/bin/python")
    assert variables["Torch_DIR"].endswith("torch/share/cmake/Torch")


def test_cmake_values_are_bracketed_so_that_nothing_is_expanded():
    text = cmake_script({"CUDAToolkit_ROOT": '/my env/$HOME;x"', "CMAKE_C_COMPILER": "/bin/cc"})
    assert text.splitlines() == [
        'set(CUDAToolkit_ROOT [=[/my env/$HOME;x"]=] CACHE PATH "extforge")',
        'set(CMAKE_C_COMPILER [=[/bin/cc]=] CACHE FILEPATH "extforge")',
    ]


# --- architectures ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "archs", "cmake"),
    [
        ("9.0", ("9.0",), "90-real"),
        ("8.0;9.0+PTX", ("8.0", "9.0+PTX"), "80-real;90"),
        ("9.0a, 10.0f 12.0+PTX", ("9.0a", "10.0f", "12.0+PTX"), "90a-real;100f-real;120"),
    ],
)
def test_architectures(text, archs, cmake):
    assert parse_archs(text) == archs
    assert for_cmake(archs) == cmake


@pytest.mark.parametrize("text", ["", "sm_90", "9", "9.0b", "native"])
def test_another_spelling_is_bad_input(text):
    with pytest.raises(BadInputError, match=r"write it as 9\.0, 9\.0a or 12\.0\+PTX"):
        parse_archs(text)
