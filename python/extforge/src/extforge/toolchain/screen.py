"""The screen of ``extforge doctor``: what was found where, what was overruled, what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from extforge.toolchain.model import LEVELS, Finding, Found, Toolchain
from extforge.toolchain.probe import Outcome

# Section -> (part, what people call it).
SECTIONS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("compilers", (("cc", "C compiler"), ("cxx", "C++ compiler"), ("ninja", "ninja"), ("cmake", "cmake"))),
    ("python", (("python_include", "Python.h"), ("libpython", "libpython"), ("torch", "torch"))),
    (
        "cuda",
        (
            ("nvcc", "nvcc"),
            ("ptxas", "ptxas"),
            ("cuda_include", "headers"),
            ("cudart", "runtime"),
            ("libdevice", "libdevice"),
            ("cuobjdump", "cuobjdump"),
            ("nvdisasm", "nvdisasm"),
        ),
    ),
    ("driver", (("libcuda", "to link"), ("libcuda_runtime", "to run"))),
)
STYLES = {"refused": "bold red", "error": "red", "warning": "yellow", "note": "cyan"}
SIGNS = {
    "refused": "✗",
    "error": "✗",
    "warning": "!",
    "note": "·",
    "passed": "✓",
    "failed": "✗",
    "skipped": "-",
}
OUTCOME_STYLES = {"passed": "green", "failed": "red", "skipped": "dim"}


def show(
    console: Console, toolchain: Toolchain, findings: Sequence[Finding], outcomes: Sequence[Outcome]
) -> None:
    """Print the whole report."""
    console.print(_header(toolchain))
    console.print(_parts_table(toolchain))
    if toolchain.root_tried:
        console.print(_heading("not taken as the CUDA root"))
        for tried in toolchain.root_tried:
            console.print(Padding(Text(str(tried), style="dim"), (0, 0, 0, 2)))
    if outcomes:
        console.print(_heading("probes"))
        console.print(_probes_table(outcomes))
    if findings:
        console.print(_heading("findings"))
        for finding in sorted(findings, key=lambda finding: LEVELS.index(finding.level)):
            console.print(_finding_block(finding))
    console.print(_verdict(findings))


def _heading(text: str) -> RenderableType:
    return Padding(Rule(f"[bold]{text}", align="left", style="dim"), (1, 0, 0, 0))


def _header(toolchain: Toolchain) -> RenderableType:
    """Name the two directories that the rest of the screen abbreviates."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", min_width=13, no_wrap=True)
    grid.add_column(overflow="fold")
    kind = "conda environment" if toolchain.conda else "no conda environment"
    grid.add_row("python", f"{toolchain.interpreter.version}, {toolchain.machine}")
    grid.add_row(
        "$PREFIX", Text(f"{toolchain.prefix}  ").append(f"{kind}, via {toolchain.prefix_via}", "dim")
    )
    root = toolchain.root
    if root is None:
        grid.add_row("$ROOT", Text("no CUDA toolkit", "yellow"))
    else:
        words = Text(f"{root.path}  ").append(f"{root.kind}, CUDA {root.version}, via {root.via}", "dim")
        grid.add_row("$ROOT", words)
    return Group(_heading("environment"), Padding(grid, (0, 0, 0, 2)))


def _parts_table(toolchain: Toolchain) -> RenderableType:
    blocks: list[RenderableType] = []
    for section, rows in SECTIONS:
        table = Table.grid(padding=(0, 2))
        for width in (1, 12, 12):
            table.add_column(min_width=width, no_wrap=True)
        table.add_column(overflow="fold")
        for name, label in rows:
            table.add_row(*_part_row(toolchain, name, label))
        blocks += [_heading(section), Padding(table, (0, 0, 0, 2))]
    return Group(*blocks)


def _part_row(toolchain: Toolchain, name: str, label: str) -> tuple[RenderableType, ...]:
    part = toolchain.get(name)
    if not isinstance(part, Found):
        return Text("-", "yellow"), Text(label), Text("missing", "yellow"), Text(part.hint, "dim")
    version = part.version or ""
    if name == "torch":
        version += "" if toolchain.torch_cuda is None else f" (CUDA {toolchain.torch_cuda})"
    place = _shorten(part.path, toolchain)
    if toolchain.root is None or part.root != toolchain.root.path:
        place.append(f"  via {part.via}", "dim")
    return Text("✓", "green"), Text(label), Text(version), place


def _shorten(path: Path, toolchain: Toolchain) -> Text:
    """Write a path below the CUDA root or the prefix in terms of the names that the header gives them."""
    bases = [("$PREFIX", toolchain.prefix)]
    if toolchain.root is not None and toolchain.root.path != toolchain.prefix:
        bases.insert(0, ("$ROOT", toolchain.root.path))
    for name, base in bases:
        if path.is_relative_to(base) and path != base:
            return Text(f"{name}/", "dim").append(str(path.relative_to(base)), "not dim")
    return Text(str(path))


def _probes_table(outcomes: Sequence[Outcome]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for outcome in outcomes:
        style = OUTCOME_STYLES[outcome.state]
        first = outcome.text.splitlines()[0] if outcome.text else ""
        text = "failed, see below" if outcome.state == "failed" else first
        table.add_row(
            Text(SIGNS[outcome.state], style), Text(outcome.name), Text(text, "dim" if style == "dim" else "")
        )
    return Padding(table, (0, 0, 0, 2))


def _finding_block(finding: Finding) -> RenderableType:
    style = STYLES[finding.level]
    lines = [Text(finding.text).append(f"  [{finding.code}]", "dim")]
    lines += [Text(evidence, "dim") for evidence in finding.evidence]
    if finding.fix:
        lines.append(Text("→ ", "green").append(finding.fix, "default"))
    grid = Table.grid(padding=(0, 1))
    grid.add_row(Text(SIGNS[finding.level], style), Group(*lines))
    return Padding(grid, (0, 0, 0, 2))


def _verdict(findings: Sequence[Finding]) -> RenderableType:
    """Close with one line: ready, usable or not, and how many findings of each level."""
    counts = {level: sum(finding.level == level for finding in findings) for level in LEVELS}
    worst = next((level for level in LEVELS if counts[level]), "note")
    words = [
        f"{count} {level}{'s' * (count > 1 and level != 'refused')}"
        for level, count in counts.items()
        if count
    ]
    line = Text(VERDICTS[worst], f"bold {STYLES[worst]}" if worst != "note" else "bold green")
    return Padding(line.append(f"  {', '.join(words)}", "not bold dim"), (1, 0, 1, 0))


VERDICTS = {"refused": "contradictory", "error": "not ready", "warning": "usable", "note": "ready"}
