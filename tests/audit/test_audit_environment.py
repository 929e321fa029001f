"""Who provides a library: companions, an environment, a channel; and when nobody can be asked."""

from __future__ import annotations

import asyncio
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from extforge.audit import Options, audit_packages
from extforge.audit.model import Finding, Level
from extforge.audit.reading.environment import read_installed, read_prefix
from extforge.audit.reading.limits import Limits
from extforge.errors import BadInputError, NotFoundError
from forging import STABLE, Spec, WheelSpec, write_conda

Maker = Callable[..., Any]
UNKNOWN = replace(STABLE, needed=("libtorch_cpu.so", "libunknown.so.3", "libc.so.6"))
DEPENDS = ("libtorch >=2.10,<3", "unknown", "__glibc >=2.17")
LIBTORCH = Spec(name="libtorch", version="2.13.0", depends=(), files={"lib/libtorch_cpu.so": b"x"})


def linkage(path: Path | str, options: Options) -> list[Finding]:
    return list(audit_packages([path], replace(options, select="L")).findings)


def record(prefix: Path, spec: Spec) -> None:
    """Install ``spec`` as conda does: its files, and its record."""
    for name, content in spec.files.items():
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix / name).write_bytes(content)
    index = json.loads(spec.info()["info/index.json"])
    index |= {"files": list(spec.files), "paths_data": {"paths": spec.paths()}}
    (prefix / "conda-meta").mkdir(exist_ok=True)
    (prefix / "conda-meta" / f"{spec.stem}.json").write_text(json.dumps(index))


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    root = tmp_path / "env"
    root.mkdir()
    record(root, LIBTORCH)
    return root


def test_unknown_library_is_not_verified(cpu_package: Maker, tmp_path: Path) -> None:
    (finding,) = linkage(write_conda(cpu_package(UNKNOWN, depends=DEPENDS), tmp_path), Options())
    assert (finding.code, finding.level) == ("L01", Level.UNVERIFIED)
    assert "libtorch, unknown provides it: give --prefix or --channel" in finding.observation.seen


def test_prefix_that_provides_it_is_believed(cpu_package: Maker, tmp_path: Path, prefix: Path) -> None:
    record(prefix, Spec(name="unknown", files={"lib/libunknown.so.3": b"x"}))
    path = write_conda(cpu_package(UNKNOWN, depends=DEPENDS), tmp_path)
    assert linkage(path, Options(prefix=prefix)) == []


def test_prefix_without_it_proves_the_fault(cpu_package: Maker, tmp_path: Path, prefix: Path) -> None:
    path = write_conda(cpu_package(UNKNOWN, depends=DEPENDS), tmp_path)
    (finding,) = linkage(path, Options(prefix=prefix))
    assert (finding.level, finding.observation.seen) == (
        Level.ERROR,
        "no package of the environment provides it",
    )


def test_provider_that_nobody_requires_is_a_fault(cpu_package: Maker, tmp_path: Path, prefix: Path) -> None:
    record(prefix, Spec(name="stranger", files={"lib/libunknown.so.3": b"x"}))
    path = write_conda(cpu_package(UNKNOWN, depends=DEPENDS), tmp_path)
    (finding,) = linkage(path, Options(prefix=prefix))
    assert finding.observation.seen == "provided by stranger, which no requirement brings"


def test_companion_provides(cpu_package: Maker, tmp_path: Path) -> None:
    paths = [
        write_conda(cpu_package(UNKNOWN, depends=DEPENDS), tmp_path),
        write_conda(Spec(name="unknown", files={"lib/libunknown.so.3": b"x"}), tmp_path),
    ]
    assert audit_packages(paths, Options(select="L")).findings == ()


def test_wheel_in_prefix_provides(wheel_package: Maker, tmp_path: Path) -> None:
    site = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    for name, library in (("torch", "libtorch_cpu.so"), ("core", "libunknown.so.3")):
        info = site / f"{name}-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1\n")
        (info / "WHEEL").write_text("Wheel-Version: 1.0\n")
        (info / "RECORD").write_text(f"{name}/lib/{library},,\n")
    path = wheel_package(UNKNOWN, requires=("torch >=2.10", "core")).write(tmp_path)
    assert linkage(path, Options(prefix=tmp_path / "env")) == []


@pytest.fixture
def channel(tmp_path: Path) -> str:
    from rattler.index import index_fs

    root = tmp_path / "channel"
    (root / "linux-64").mkdir(parents=True)
    write_conda(LIBTORCH, root / "linux-64")
    write_conda(Spec(name="unknown", depends=(), files={"lib/libunknown.so.3": b"x"}), root / "linux-64")
    asyncio.run(index_fs(root))
    return root.as_uri()


def test_channel_is_solved_and_its_packages_read(cpu_package: Maker, tmp_path: Path, channel: str) -> None:
    path = write_conda(cpu_package(UNKNOWN, depends=DEPENDS), tmp_path)
    assert linkage(path, Options(channels=(channel,))) == []


@pytest.mark.parametrize("fault", ["no such channel", "unsolvable"])
def test_channel_that_cannot_answer_leaves_it_unverified(
    fault: str, cpu_package: Maker, tmp_path: Path, channel: str
) -> None:
    channels = ((tmp_path / "none").as_uri(),) if fault == "no such channel" else (channel,)
    depends = DEPENDS if fault == "no such channel" else (*DEPENDS, "nowhere")
    path = write_conda(cpu_package(UNKNOWN, depends=depends), tmp_path)
    findings = linkage(path, Options(channels=channels))
    assert [(f.code, f.level) for f in findings] == [("L01", Level.UNVERIFIED)] * 2
    for finding in findings:
        assert f"channels {channels[0]}: " in finding.observation.seen


def test_requirements_of_a_noarch_package_are_solved_for_this_platform(tmp_path: Path, channel: str) -> None:
    spec = Spec(name="pure", subdir="noarch", depends=("unknown",), files={"site-packages/pure.py": b"x"})
    assert linkage(write_conda(spec, tmp_path), Options(channels=(channel,))) == []


def test_wheel_is_not_solved_in_channels(wheel_package: Maker, tmp_path: Path, channel: str) -> None:
    (finding,) = linkage(wheel_package().write(tmp_path), Options(channels=(channel,)))
    assert finding.level is Level.UNVERIFIED
    assert finding.observation.seen.startswith("a wheel's requirements are not solved")


def test_installed_package_is_audited_by_name(cpu_package: Maker, prefix: Path) -> None:
    record(prefix, cpu_package(depends=("libtorch >=2.10,<3", "__glibc >=2.17"), license_text=False))
    report = audit_packages(["thing"], Options(prefix=prefix))
    assert report.packages == (f"thing in {prefix}",)
    assert report.findings == ()


def test_installed_wheel_is_audited_by_name(wheel_package: Maker, tmp_path: Path) -> None:
    site = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    spec: WheelSpec = wheel_package(replace(STABLE, run_path="/home/x"), requires=())
    with zipfile.ZipFile(spec.write(tmp_path)) as archive:
        archive.extractall(site)
    (site / "thing-1.0.dist-info" / "RECORD").open("a").write("../../../bin/thing,,\n")
    report = audit_packages(["Thing"], Options(prefix=tmp_path / "env", ignore="L,T"))
    assert [f.code for f in report.findings] == ["R01"]


def test_a_prefix_that_the_installer_wrote_is_no_build_path(cpu_package: Maker, tmp_path: Path) -> None:
    """Below a directory in which packages are built, too: an environment may lie anywhere."""
    prefix = tmp_path / "tmp" / "environment"
    prefix.mkdir(parents=True)
    path, placeholder = "lib/libthing.so", "/opt/placehold_placehold"
    library = replace(STABLE, run_path=f"{prefix}/lib", strings=(f"{prefix}/share/thing/data",))
    record(prefix, LIBTORCH)
    record(prefix, cpu_package(library, placeholders={path: placeholder}, license_text=False))
    assert audit_packages(["thing"], Options(prefix=prefix, select="H01,R")).findings == ()
    record(prefix, cpu_package(library, license_text=False))
    found = audit_packages(["thing"], Options(prefix=prefix, select="H01,R")).findings
    assert [f.code for f in found] == ["R01", "H01"]


def test_installed_file_that_changed_is_found(cpu_package: Maker, prefix: Path) -> None:
    record(prefix, cpu_package(more={"share/data": b"one"}))
    (prefix / "share" / "data").write_bytes(b"two")
    report = audit_packages(["thing"], Options(prefix=prefix, select="M"))
    assert [(f.code, f.observation.file) for f in report.findings] == [("M05", "share/data")]


def test_installed_file_that_vanished_is_found(cpu_package: Maker, prefix: Path) -> None:
    record(prefix, cpu_package(more={"share/data": b"one"}))
    (prefix / "share" / "data").unlink()
    report = audit_packages(["thing"], Options(prefix=prefix, select="M"))
    assert [(f.code, f.observation.file) for f in report.findings] == [("M03", "share/data")]


def test_absent_name_is_not_found(prefix: Path) -> None:
    with pytest.raises(NotFoundError, match="no package called 'nothing' is installed"):
        read_installed(prefix, "nothing", None, Limits())


def test_absent_prefix_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        read_prefix(tmp_path / "none")


def test_record_that_is_none_is_refused(prefix: Path) -> None:
    (prefix / "conda-meta" / "x-1-0.json").write_text("{}")
    with pytest.raises(BadInputError, match=r"x-1-0\.json is no record"):
        read_prefix(prefix)


def test_absent_package_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        audit_packages([tmp_path / "none.conda"])


@pytest.mark.parametrize("form", [".conda", ".tar.bz2", "directory"])
def test_every_form_of_a_package_gets_the_same_verdict(form: str, cpu_package: Maker, tmp_path: Path) -> None:
    from forging import write_directory, write_tar_bz2

    write = {".conda": write_conda, ".tar.bz2": write_tar_bz2, "directory": write_directory}[form]
    spec = cpu_package(replace(STABLE, run_path="/home/x"), links={"lib/a.so": "libthing.so"})
    findings = audit_packages([write(spec, tmp_path)]).findings
    assert [f.code for f in findings] == ["R01"]


def test_unpacked_wheel_gets_the_same_verdict(wheel_package: Maker, tmp_path: Path) -> None:
    spec: WheelSpec = wheel_package(replace(STABLE, run_path="/home/x"))
    with zipfile.ZipFile(spec.write(tmp_path)) as archive:
        archive.extractall(tmp_path / "unpacked")
    assert [f.code for f in audit_packages([tmp_path / "unpacked"]).findings] == ["R01"]
