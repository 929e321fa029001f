"""What a build in progress shows: everything goes to a log, one line a step to the screen."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape

#: What the spans of rattler-build's log mean to a reader.
STEPS = {
    "Fetching source code": "copying sources",
    "Running build for": "solving and installing build and host environments",
    "Running build script": "running the build script",
    "Packaging new files": "packaging",
    "Running script test for": "testing",
}
#: After this line rattler-build tells how to go on by hand, in directories that are gone by then.
HINTS = "Script execution failed."


#: How a build ended, by the exception that ended it.
VERDICTS: dict[type[BaseException] | None, str] = {None: "built and tested", KeyboardInterrupt: "interrupted"}


class Progress:
    """Shows one build; ``title`` heads what is shown."""

    def __init__(self, title: str, log: Path) -> None:
        self.title, self.log = title, log
        self.lines: list[str] = []
        self.step = ""
        self.start = time.monotonic()

    def __enter__(self) -> Progress:
        """Open the log and, on a terminal, the status line."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.stream = self.log.open("w")
        self.console = Console(stderr=True, highlight=False)
        self.status = self.console.status(escape(self.title)) if self.console.is_terminal else None
        if self.status:
            self.status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close both and say how it ended."""
        if self.status:
            self.status.stop()
        self.stream.close()
        verdict = VERDICTS.get(kind, "failed")
        self.say(f"{verdict} in {time.monotonic() - self.start:.1f} s")

    def say(self, what: str) -> None:
        """Write a line to the screen."""
        self.console.print(f"{self.title}: {what}", markup=False, soft_wrap=True)

    def tail(self, count: int) -> str:
        """Return the last ``count`` lines that tell what happened, indented."""
        end = self.lines.index(HINTS) if HINTS in self.lines else len(self.lines)
        told = [line for line in self.lines[:end] if line.strip()]
        return "\n".join(f"  {line}" for line in told[-count:])

    def on_message(self, span: str, message: str) -> None:
        """Take a message of the build; ``span`` names the step that it belongs to, or nothing known."""
        for line in message.splitlines():
            self.lines.append(line)
            print(line, file=self.stream, flush=True)
        step = STEPS.get(span, self.step)
        if self.status:
            beginning = message.strip().partition("\n")[0][:80]
            self.status.update(f"{escape(self.title)}: {step}  [dim]{escape(beginning)}")
        elif step != self.step:
            self.say(step)
        self.step = step
