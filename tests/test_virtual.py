"""What the solver believes of this machine's driver, and for how long."""

import os
from pathlib import Path

import pytest

pytest.importorskip("extforge", reason="extforge is not installed here")

from extforge import virtual
from extforge.channel.archive import Entry, PlannedPackage, write_package
from extforge.channels import index_channel
from extforge.errors import NotFoundError
from extforge.install import install
from extforge.virtual import OVERRIDE, knows_cuda, solving_for_cuda


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OVERRIDE, raising=False)
    monkeypatch.setattr(virtual, "driver_version", lambda: None)


@pytest.mark.parametrize("driver", [None, "12.9"], ids=["no driver", "an older one"])
def test_a_missing_cuda_is_assumed_and_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], driver: str | None
) -> None:
    monkeypatch.setattr(virtual, "driver_version", lambda: driver)
    with solving_for_cuda("13.0"):
        assert os.environ[OVERRIDE] == "13.0"
    assert OVERRIDE not in os.environ
    told = "no driver for CUDA 13.0 here: packages are chosen as if there were (CONDA_OVERRIDE_CUDA=13.0)\n"
    assert capsys.readouterr().err == told


def test_the_variable_goes_when_the_block_fails() -> None:
    with pytest.raises(NotFoundError), solving_for_cuda("13.0"):
        raise NotFoundError("no solution")
    assert OVERRIDE not in os.environ


@pytest.mark.parametrize("own", ["", "12.4"], ids=["none", "another"])
def test_what_a_user_has_set_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own: str
) -> None:
    monkeypatch.setenv(OVERRIDE, own)
    with solving_for_cuda("13.0"):
        assert os.environ[OVERRIDE] == own
    assert os.environ[OVERRIDE] == own
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("driver", "version"), [("13.0", "13.0"), ("13.10", "13.9"), (None, None)])
def test_nothing_is_assumed_without_need(
    monkeypatch: pytest.MonkeyPatch, driver: str | None, version: str | None
) -> None:
    monkeypatch.setattr(virtual, "driver_version", lambda: driver)
    with solving_for_cuda(version):
        assert OVERRIDE not in os.environ


def test_versions_are_no_decimal_fractions() -> None:
    assert not knows_cuda("13.2", "13.10")


def test_a_package_that_needs_a_driver_installs_without_one(tmp_path: Path) -> None:
    package = PlannedPackage(
        *("kernels", "1.0", "cuda130_h0_200", "noarch", "needs a driver", "MIT"),
        entries=lambda: iter([Entry("share/kernels.txt", text="x")]),
        depends=("__cuda >=13",),
        noarch="generic",
    )
    write_package(package, tmp_path / "channel" / "noarch")
    index_channel(tmp_path / "channel")
    channels = [(tmp_path / "channel").as_uri()]
    with pytest.raises(NotFoundError, match="__cuda"):
        install(tmp_path / "env", ["kernels"], channels)
    with solving_for_cuda("13.0"):
        assert install(tmp_path / "env", ["kernels"], channels)
