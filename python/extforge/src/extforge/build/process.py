"""Run rattler-build in a process of its own.

``run_build`` keeps Python's global lock from its first to its last second: in the process that calls it
nothing is drawn and no interrupt is heard. So that process only builds; this one follows it, and ends it when
it must.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from extforge.build.normalising import COMPRESSION_LEVEL
from extforge.build.progress import Progress
from extforge.errors import FailedCommand

if TYPE_CHECKING:
    from rattler_build import RenderedVariant

PR_SET_PDEATHSIG = 1


class Said(NamedTuple):
    """A message of the build; ``span`` names the step that it belongs to."""

    span: str
    message: str


class Ended(NamedTuple):
    """How a build ended: with a package, or for a reason."""

    package: str = ""
    reason: str = ""


def build_in_process(
    variant: RenderedVariant, stage: Path, channels: list[str], progress: Progress
) -> Path:
    """Build and test ``variant`` in ``stage``, follow it with ``progress``, and return the package's path.

    Raises :class:`FailedCommand` with rattler-build's reason. An interrupt ends all that the build started.
    """
    context = multiprocessing.get_context("fork")  # a rendered variant cannot be pickled
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=work, args=(variant, stage, channels, sender))
    child.start()
    sender.close()
    try:
        with progress:
            return follow(receiver, progress)
    finally:
        if child.is_alive():
            os.killpg(child.pid or 0, signal.SIGKILL)
        child.join()


def follow(receiver: Connection, progress: Progress) -> Path:
    """Hand messages on until the build has ended."""
    try:
        while isinstance(what := receiver.recv(), Said):
            progress.on_message(*what)
    except EOFError:
        what = Ended(reason="the process that built it crashed")
    if what.reason:
        raise FailedCommand(what.reason)
    return Path(what.package)


def work(variant: RenderedVariant, stage: Path, channels: list[str], sender: Connection) -> None:
    """Build in a new session, so that the whole family can be ended, and not outlive the parent."""
    from rattler_build import RattlerBuildError, ToolConfiguration

    temporary = stage / "tmp"
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = str(temporary)  # goes with the stage, whatever happens
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        result = variant.run_build(
            tool_config=ToolConfiguration(test_strategy="native"),
            output_dir=stage,
            channels=channels,
            progress_callback=Reporter(sender),
            package_format=f"conda:{COMPRESSION_LEVEL}",
        )
        sender.send(Ended(package=str(result.packages[0])))
    except RattlerBuildError as error:
        sender.send(Ended(reason=str(error)))


class Reporter:
    """Sends the events of rattler-build, except the count of bytes downloaded."""

    def __init__(self, sender: Connection) -> None:
        self.sender = sender

    def on_log(self, event: Any) -> None:
        """Send a line of the log."""
        self.sender.send(Said(event.span or "", event.message))

    def on_build_step(self, event: Any) -> None:
        """Send the beginning of a step."""
        self.sender.send(Said(event.step_name, event.message))

    def on_download_start(self, event: Any) -> None:
        """Send which file is fetched."""
        self.sender.send(Said("", f"download {event.url}"))

    def on_download_progress(self, event: Any) -> None:
        """See the class."""

    def on_download_complete(self, event: Any) -> None:
        """See the class."""
