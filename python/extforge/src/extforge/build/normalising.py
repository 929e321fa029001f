"""Make a package depend on nothing but its inputs, so that two builds of the same sources are byte-equal.

rattler-build notes in a package when and in which directories it was built, and some lists in no fixed order.
What is installed stays as it is, apart from the times of the files; what is noted becomes:

* times: one date, see :func:`source_date`;
* ``index.json``: requirements sorted;
* ``about.json``: channels without the directories of this machine;
* ``rendered_recipe.yaml``: neither this machine's directories nor its virtual packages, requirements sorted.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from conda_package_streaming.create import conda_builder
from conda_package_streaming.package_streaming import stream_conda_component

from extforge.channel.archive import TIMESTAMP, copy_without_times
from extforge.errors import BadInputError

DATE_VARIABLE = "SOURCE_DATE_EPOCH"
#: What conda-build compresses with: a tenth smaller than rattler-build's own 15.
COMPRESSION_LEVEL = 19
#: Keys of the rendered recipe's notes that are true of this machine and this time alone.
OF_THIS_BUILD = {"directories", "virtual_packages", "timestamp"}
LOCAL = "file:"


class SourceDate(NamedTuple):
    """The date of sources in seconds since 1970, and where it was found."""

    seconds: int
    via: str

    def __str__(self) -> str:
        """The date in words."""
        return f"{datetime.fromtimestamp(self.seconds, UTC):%Y-%m-%d %H:%M:%S} UTC ({self.via})"


def source_date(folder: Path) -> SourceDate:
    """Return the date of the sources at ``folder``, which packages made from them are stamped with.

    It is ``SOURCE_DATE_EPOCH``, else the date of the last commit in the repository around ``folder``, else a
    fixed one. Of packages that are equal otherwise, solvers prefer the latest: so a commit's goes before.

    Raises :class:`BadInputError` for a variable that holds no date.
    """
    text = os.environ.get(DATE_VARIABLE)
    if text is not None:
        if not re.fullmatch(r"[0-9]{1,10}", text):
            raise BadInputError(f"{DATE_VARIABLE} is {text!r}; valid: seconds since 1970, as {TIMESTAMP}")
        return SourceDate(int(text), DATE_VARIABLE)
    if shutil.which("git") is None:
        return SourceDate(TIMESTAMP, "fixed, because there is no git to ask for the last commit")
    command = ["git", "-C", str(folder), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return SourceDate(int(done.stdout), "the last commit")
    reason = done.stderr.strip().partition("\n")[0]
    return SourceDate(TIMESTAMP, f"fixed, because git knows of no commit in {folder}: {reason}")


def normalise(package: Path, directory: Path, date: int) -> Path:
    """Write ``package``, a ``.conda`` file, anew below ``directory``, and return where it lies."""
    directory.mkdir(parents=True)
    with conda_builder(package.stem, directory, compression_level=COMPRESSION_LEVEL) as archive:
        for component in ("pkg", "info"):
            for tar, member in stream_conda_component(str(package), component=component):
                content = tar.extractfile(member) if member.isreg() else None
                if content is not None and member.name in SETTLED:
                    settled = SETTLED[member.name](content.read(), date)
                    member.size, content = len(settled), io.BytesIO(settled)
                archive.addfile(stamped(member, date), content)
    timeless = copy_without_times(directory / package.name, directory / "timeless")
    return timeless.replace(directory / package.name)


def stamped(member: tarfile.TarInfo, date: int) -> tarfile.TarInfo:
    """Return an entry without owner and with this time."""
    member.mtime, member.uid, member.gid = date, 0, 0
    member.uname = member.gname = ""
    member.pax_headers = {}
    return member


def settle_index(content: bytes, date: int) -> bytes:
    """Return ``index.json`` with this time and its requirements in alphabetical order."""
    index = json.loads(content)
    lists = {key: sorted(index[key]) for key in ("depends", "constrains") if key in index}
    return as_json({**index, **lists, "timestamp": date * 1000})


def settle_about(content: bytes, _: int) -> bytes:
    """Return ``about.json`` with the channels that others can reach."""
    about = json.loads(content)
    channels = [channel for channel in about.get("channels", []) if not channel.startswith(LOCAL)]
    return as_json({**about, "channels": channels})


def as_json(value: dict[str, Any]) -> bytes:
    """Return JSON as rattler-build writes it."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False).encode()


def settle_rendered_recipe(content: bytes, _: int) -> bytes:
    """Return the rendered recipe, its notes without what is true of one build alone.

    The document is changed as a tree of nodes, so that every value that stays keeps its spelling.
    """
    document = yaml.compose(content, Loader=yaml.SafeLoader)
    for key, section in document.value:
        if key.value in ("build_configuration", "finalized_dependencies"):
            settle_notes(section, in_any_order=key.value == "finalized_dependencies")
    settled: str = yaml.serialize(document, Dumper=yaml.SafeDumper, allow_unicode=True, width=1 << 20)
    return settled.encode()


def settle_notes(node: yaml.Node, in_any_order: bool) -> None:
    """Remove from ``node`` what is of one build; sort its lists if their order says nothing."""
    if isinstance(node, yaml.MappingNode):
        node.value = [
            (key, value)
            for key, value in node.value
            if key.value not in OF_THIS_BUILD and not is_local(value)
        ]
        children = [value for _, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        node.value = children = [value for value in node.value if not is_local(value)]
    else:
        return
    for child in children:
        settle_notes(child, in_any_order)
    if in_any_order and isinstance(node, yaml.SequenceNode):
        node.value.sort(key=yaml.serialize)


def is_local(node: yaml.Node) -> bool:
    """Return whether a value is an address on this machine."""
    return isinstance(node, yaml.ScalarNode) and node.value.startswith(LOCAL)


SETTLED: dict[str, Callable[[bytes, int], bytes]] = {
    "info/index.json": settle_index,
    "info/about.json": settle_about,
    "info/recipe/rendered_recipe.yaml": settle_rendered_recipe,
}
