"""Rows and wheels become planned packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from extforge.channel.archive import PLACEHOLDER, Entry, PlannedPackage
from extforge.channel.catalogue import DROP_REST, KEEP_REST, Row, Rule
from extforge.channel.repack import match_spec, plan
from extforge.channel.wheels import Wheel
from packaging.specifiers import SpecifierSet
from rattler import MatchSpec

from .conftest import write_wheel

SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
NEXT = f"{sys.version_info[0]}.{sys.version_info[1] + 1}.0a0"
POINTS = "[console_scripts]\ntool = tool.cli:app.main [x]\n[other]\na = b:c\n"
ANY, LINUX = "py3-none-any", "py3-none-manylinux_2_17_x86_64"


def make(directory: Path, row: Row, tags: str, files: dict[str, str], metadata: str = "") -> PlannedPackage:
    stem = f"{row.wheel_project.replace('-', '_')}-{row.version}-{tags}"
    return plan(
        row, Wheel(write_wheel(directory, stem, files, metadata)), {"typing-extensions": "typing_extensions"}
    )


def by_path(package: PlannedPackage) -> dict[str, Entry]:
    return {entry.path: entry for entry in package.entries()}


def test_pure_wheel_is_noarch_python(tmp_path: Path) -> None:
    package = make(
        tmp_path,
        Row("tool", "1.0"),
        ANY,
        {
            "tool/__init__.py": "",
            "tool-1.0.data/scripts/run.sh": "#!/bin/sh\n",
            "tool-1.0.data/data/share/man/t.1": "",
            "tool-1.0.data/purelib/extra.py": "",
            "tool-1.0.data/headers/t.h": "",
            "tool-1.0.dist-info/INSTALLER": "pip\n",
            "tool-1.0.dist-info/entry_points.txt": POINTS,
        },
    )
    assert (package.subdir, package.noarch, package.build[:3]) == ("noarch", "python", "pyh")
    assert package.entry_points == ("tool = tool.cli:app.main",)
    info = "site-packages/tool-1.0.dist-info"
    assert set(by_path(package)) == {
        "site-packages/tool/__init__.py",
        "site-packages/extra.py",
        "python-scripts/run.sh",
        "share/man/t.1",
        f"include/{SITE.split('/')[1]}/t.h",
        f"{info}/METADATA",
        f"{info}/WHEEL",
        f"{info}/INSTALLER",
        f"{info}/entry_points.txt",
    }
    assert by_path(package)[f"{info}/INSTALLER"].text == "conda\n"


def test_platform_wheel_has_its_scripts_and_pins_python(tmp_path: Path) -> None:
    package = make(
        tmp_path,
        Row("tool", "1.0"),
        LINUX,
        {
            "tool.py": "",
            "tool-1.0.data/scripts/run": "#!python\nprint(1)\n",
            "tool-1.0.data/scripts/elf": "\x7fELF",
            "tool-1.0.dist-info/entry_points.txt": "[console_scripts]\ntool = tool.cli:app.main\n",
        },
    )
    files = by_path(package)
    assert (package.subdir, package.noarch, package.entry_points) == ("linux-64", None, ())
    assert files["bin/run"].text == f"#!{PLACEHOLDER}/bin/python\nprint(1)\n"
    assert files["bin/elf"].executable
    script = files["bin/tool"].text or ""
    assert script.startswith(f"#!{PLACEHOLDER}/bin/python\n")
    assert "from tool.cli import app" in script
    assert "sys.exit(app.main())" in script
    minor = "{}.{}".format(*sys.version_info)
    assert package.depends == (
        f"python >={minor},<{NEXT}",
        f"python_abi {minor}.* *_cp{minor.replace('.', '')}",
        "__glibc >=2.17,<3.0.a0",
    )


def test_requirements_become_match_specs(tmp_path: Path) -> None:
    package = make(
        tmp_path,
        Row("tool", "1.0", depends=("more",)),
        ANY,
        {},
        "\n".join(
            [
                "Requires-Python: >=3.8, !=3.9.1",
                "Requires-Dist: typing-extensions (>=4)",
                'Requires-Dist: x; extra == "all"',
                'Requires-Dist: winreg; sys_platform == "win32"',
                "Requires-Dist: Jinja2[i18n] ~=3.1",
                "Requires-Dist: six ==1.*",
            ]
        )
        + "\n",
    )
    assert package.depends == (
        "python !=3.9.1,>=3.8",
        "more",
        "typing_extensions >=4",
        "jinja2 ~=3.1",
        "six 1.*",
    )


@pytest.mark.parametrize(
    ("specifiers", "spec"),
    [
        ("", "a"),
        ("<2,>=1.0", "a <2,>=1.0"),
        ("==1.4.*", "a 1.4.*"),
        ("!=1.5.*", "a !=1.5.*"),
        ("===1.0", "a ==1.0"),
        ("==1.0+cpu", "a ==1.0+cpu"),
        (">=1.0.dev0, ~=1.2", "a >=1.0.dev0,~=1.2"),
    ],
)
def test_match_spec_is_accepted_by_a_solver(specifiers: str, spec: str) -> None:
    assert match_spec("a", SpecifierSet(specifiers)) == spec
    assert MatchSpec(spec, strict=True).name.normalized == "a"


def test_rules_move_link_and_drop(tmp_path: Path) -> None:
    files = {
        "t/lib/liba.so": "a",
        "t/lib/libb.so": "bb",
        "t/lib/c.txt": "",
        "t/include/deep/x.h": "",
        "t/__init__.py": "",
    }
    rules = (
        Rule("t/lib/liba.so", "lib", put="both"),
        Rule("t/lib/*.so", "lib", put="link"),
        Rule("t/include/*", "include"),
        Rule("t/lib/*", None),
        KEEP_REST,
    )
    row = Row("t", "1.0", rules=rules, links=(("{site_packages}/t/share", "share"),))
    package = make(tmp_path, row, LINUX, files)
    found = by_path(package)
    kept = {path: entry.link for path, entry in found.items() if "dist-info" not in path}
    assert kept == {
        "lib/liba.so": None,
        f"{SITE}/t/lib/liba.so": "../../../../liba.so",
        "include/deep/x.h": None,
        f"{SITE}/t/lib/libb.so": "../../../../libb.so",
        f"{SITE}/t/__init__.py": None,
        f"{SITE}/t/share": "../../../../share",
    }
    assert (found[f"{SITE}/t/lib/libb.so"].size, found[f"{SITE}/t/lib/libb.so"].sha256[:8]) == (2, "3b64db95")


def test_link_of_a_noarch_package_leads_there_once_installed(tmp_path: Path) -> None:
    rules = (Rule("t/include/*", "include", put="both"), KEEP_REST)
    package = make(tmp_path, Row("t", "1.0", rules=rules), ANY, {"t/include/t.h": "", "t/__init__.py": ""})
    assert by_path(package)["site-packages/t/include/t.h"].link == "../../../../../include/t.h"


def test_plain_package_sees_no_python(tmp_path: Path) -> None:
    row = Row(
        "ninja",
        "1.0",
        rules=(Rule("ninja-1.0.data/scripts/*", "bin"), DROP_REST),
        plain=True,
        flavour="cpu_",
        run_exports=("ninja >=1",),
    )
    package = make(
        tmp_path,
        row,
        LINUX,
        {
            "ninja.py": "",
            "ninja-1.0.data/scripts/ninja": "\x7fELF",
            "ninja-1.0.dist-info/entry_points.txt": "[console_scripts]\nninja = ninja:main\n",
        },
        "Requires-Python: >=3\nRequires-Dist: six\n",
    )
    assert set(by_path(package)) == {"bin/ninja"}
    assert package.depends == ("__glibc >=2.17,<3.0.a0",)
    assert package.run_exports == {"weak": ["ninja >=1"]}
    assert package.build.startswith("cpu_h")


@pytest.mark.parametrize(
    ("row", "files", "metadata"),
    [
        (Row("t", "1.0", depends=("more",)), {"t.py": "x = 1\n"}, ""),
        (Row("t", "1.0"), {"t.py": "x = 2\n"}, ""),
        (Row("t", "1.0"), {"t.py": "x = 1\n"}, "Requires-Dist: six\n"),
    ],
    ids=["row", "content", "requirement"],
)
def test_build_string_changes_with(tmp_path: Path, row: Row, files: dict[str, str], metadata: str) -> None:
    before = make(tmp_path, Row("t", "1.0"), ANY, {"t.py": "x = 1\n"}).build
    assert make(tmp_path, Row("t", "1.0"), ANY, {"t.py": "x = 1\n"}).build == before
    assert make(tmp_path, row, ANY, files, metadata).build != before


def test_build_string_changes_with_the_name_of_a_requirement(tmp_path: Path) -> None:
    wheel = Wheel(write_wheel(tmp_path, f"t-1.0-{ANY}", {}, "Requires-Dist: tzdata\n"))
    builds = {plan(Row("t", "1.0"), wheel, names).build for names in ({}, {"tzdata": "python-tzdata"})}
    assert len(builds) == 2


@pytest.mark.parametrize(
    ("metadata", "license"),
    [
        ("License-Expression: MIT OR Apache-2.0\n", "MIT OR Apache-2.0"),
        ("License: BSD\n", "BSD"),
        (f"License: {'word ' * 40}\nClassifier: License :: OSI Approved :: MIT License\n", "MIT License"),
        ("", "LicenseRef-see-package"),
    ],
    ids=["expression", "field", "text", "none"],
)
def test_license(tmp_path: Path, metadata: str, license: str) -> None:
    assert make(tmp_path, Row("t", "1.0"), ANY, {}, metadata).license == license
