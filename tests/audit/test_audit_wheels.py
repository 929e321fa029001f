"""Released wheels with known faults, and one without: ``pytest -m wheels`` fetches them."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from extforge.audit import Options, audit_packages
from extforge.audit.model import Finding, Level
from forging import WheelSpec, strip, without_sections

pytestmark = pytest.mark.wheels
TORCHAUDIO, TORCHVISION, METATENSOR = "torchaudio==2.11.1", "torchvision==0.29.2", "metatensor-torch==0.10.8"

# requirement -> (code, file, words of what was seen), of faults that were confirmed with readelf and nm
FAULTS = [
    (
        TORCHAUDIO,
        "T01",
        "torchaudio/lib/libtorchaudio.so",
        "torch 2.13 is the first with torch_exception_get_what",
    ),
    (TORCHAUDIO, "T06", "torchaudio/lib/libtorchaudio.so", "needs libc10_cuda.so, libtorch_cuda.so"),
    (TORCHVISION, "R01", "torchvision/_C_stable.so", "an absolute path"),
    (TORCHVISION, "L06", "torchvision/_C_stable.so", "libcudart.so.13 needed by torchvision/_C_stable.so"),
    (TORCHVISION, "L05", "torchvision.libs/libcudart.3eda8113.so.13", "a copy of it"),
]
Fetch = Callable[[str], Path]


@pytest.fixture(scope="session")
def fetch(tmp_path_factory: pytest.TempPathFactory) -> Fetch:
    """Download one wheel by its exact version."""
    directory = tmp_path_factory.mktemp("wheels")

    def download(requirement: str) -> Path:
        name = requirement.split("=")[0].replace("-", "_")
        found = list(directory.glob(f"{name}-*.whl"))
        if not found:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--only-binary",
                ":all:",
            ]
            command += ["--dest", str(directory), requirement]
            # Constraints of the user's configuration must not decide which release is looked at.
            environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            if done.returncode != 0:
                pytest.skip(f"pip cannot fetch {requirement}: {done.stderr.strip().splitlines()[-1]}")
            found = list(directory.glob(f"{name}-*.whl"))
        return found[0]

    return download


def findings(path: Path) -> tuple[Finding, ...]:
    return audit_packages([path], Options(ignore="C08")).findings


@pytest.mark.parametrize(("requirement", "code", "file", "words"), FAULTS)
def test_known_fault_is_found(requirement: str, code: str, file: str, words: str, fetch: Fetch) -> None:
    seen = [
        f.observation for f in findings(fetch(requirement)) if f.code == code and f.observation.file == file
    ]
    assert [words in observation.seen for observation in seen] == [True]


def test_faultless_wheel_has_no_fault(fetch: Fetch) -> None:
    left = findings(fetch(METATENSOR))
    assert [(f.code, f.level) for f in left] == [("L01", Level.UNVERIFIED)]


def test_faultless_wheel_is_clean_beside_its_requirement(fetch: Fetch, tmp_path: Path) -> None:
    for requirement in (METATENSOR, "metatensor-core==0.2.6"):
        with zipfile.ZipFile(fetch(requirement)) as archive:
            archive.extractall(tmp_path / "lib" / "python3.11" / "site-packages")
    torch = WheelSpec(
        name="torch", version="2.13.0", files={f"torch/lib/{name}": b"" for name in TORCH_LIBRARIES}
    )
    with zipfile.ZipFile(torch.write(tmp_path)) as archive:
        archive.extractall(tmp_path / "lib" / "python3.11" / "site-packages")
    report = audit_packages([fetch(METATENSOR)], Options(prefix=tmp_path))
    assert report.findings == ()


TORCH_LIBRARIES = ("libtorch.so", "libtorch_cpu.so", "libc10.so")


@pytest.mark.parametrize("stripper", [strip, without_sections])
@pytest.mark.parametrize("requirement", [TORCHAUDIO, TORCHVISION, METATENSOR])
def test_stripped_wheel_gets_the_same_verdict(
    requirement: str, stripper: Callable[[bytes, Path], bytes], fetch: Fetch, tmp_path: Path
) -> None:
    path = fetch(requirement)
    stripped = tmp_path / path.name
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(stripped, "w") as bare:
        for name in whole.namelist():
            content = whole.read(name)
            bare.writestr(name, stripper(content, tmp_path) if content[:4] == b"\x7fELF" else content)
    # The record of digests is now false, as it must be; nothing else may change.
    assert _verdicts(stripped) == _verdicts(path)


def _verdicts(path: Path) -> list[tuple[str, str, str]]:
    return [(f.code, f.observation.file, f.observation.seen) for f in findings(path) if f.code != "M05"]
