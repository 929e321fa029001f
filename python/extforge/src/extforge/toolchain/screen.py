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
    console.print(header(toolchain))
    console.print(parts_table(toolchain))
    if toolchain.root_tried:
        console.print(heading("not taken as the CUDA root"))
        for tried in toolchain.root_tried:
            console.print(Padding(Text(str(tried), style="dim"), (0, 0, 0, 2)))
    if outcomes:
        console.print(heading("probes"))
        console.print(probes_table(outcomes))
    if findings:
        console.print(heading("findings"))
        for finding in sorted(findings, key=lambda finding: LEVELS.index(finding.level)):
            console.print(finding_block(finding))
    console.print(verdict(findings))


def heading(text: str) -> RenderableType:
    return Padding(Rule(f"[bold]{text}", align="left", style="dim"), (1, 0, 0, 0))


def header(toolchain: Toolchain) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    kind = "conda environment" if toolchain.conda else "Python environment"
    grid.add_row(kind, Text(f"{toolchain.prefix}  ").append(f"via {toolchain.prefix_via}", "dim"))
    grid.add_row("python", f"{toolchain.interpreter.version}, {toolchain.machine}")
    root = toolchain.root
    if root is None:
        grid.add_row("CUDA root", Text("none", "yellow"))
    else:
        words = Text(f"{root.path}  ").append(f"{root.kind}, CUDA {root.version}, via {root.via}", "dim")
        grid.add_row("CUDA root", words)
    return Group(heading("environment"), Padding(grid, (0, 0, 0, 2)))


def parts_table(toolchain: Toolchain) -> RenderableType:
    blocks: list[RenderableType] = []
    for section, rows in SECTIONS:
        table = Table.grid(padding=(0, 2))
        for width in (1, 12, 12):
            table.add_column(min_width=width, no_wrap=True)
        table.add_column(overflow="fold")
        for name, label in rows:
            table.add_row(*part_row(toolchain, name, label))
        blocks += [heading(section), Padding(table, (0, 0, 0, 2))]
    return Group(*blocks)


def part_row(toolchain: Toolchain, name: str, label: str) -> tuple[RenderableType, ...]:
    part = toolchain.get(name)
    if not isinstance(part, Found):
        return Text("-", "yellow"), Text(label), Text("missing", "yellow"), Text(part.hint, "dim")
    version = part.version or ""
    if name == "torch":
        version += "" if toolchain.torch_cuda is None else f" (CUDA {toolchain.torch_cuda})"
    place = shorten(part.path, toolchain)
    if toolchain.root is None or part.root != toolchain.root.path:
        place.append(f"  via {part.via}", "dim")
    return Text("✓", "green"), Text(label), Text(version), place


def shorten(path: Path, toolchain: Toolchain) -> Text:
    """Write a path below the CUDA root or the prefix as ``…/rest``: the header has named them."""
    for base in filter(None, (toolchain.root.path if toolchain.root else None, toolchain.prefix)):
        if path.is_relative_to(base) and path != base:
            return Text("…/", "dim").append(str(path.relative_to(base)), "not dim")
    return Text(str(path))


def probes_table(outcomes: Sequence[Outcome]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for outcome in outcomes:
        style = OUTCOME_STYLES[outcome.state]
        first = outcome.text.splitlines()[0] if outcome.text else ""
        text = "failed, see below" if outcome.state == "failed" else first
        table.add_row(
            Text(SIGNS[outcome.state], style), Text(outcome.name), Text(text, "dim" if style == "dim" else "")
        )
    return Padding(table, (0, 0, 0, 2))


def finding_block(finding: Finding) -> RenderableType:
    style = STYLES[finding.level]
    line = (
        Text(f"{SIGNS[finding.level]} ", style)
        .append(finding.text, "default")
        .append(f"  [{finding.code}]", "dim")
    )
    lines: list[RenderableType] = [line]
    lines += [Padding(Text(evidence, "dim"), (0, 0, 0, 4)) for evidence in finding.evidence]
    if finding.fix:
        lines.append(Padding(Text("→ ", "green").append(finding.fix, "default"), (0, 0, 0, 2)))
    return Padding(Group(*lines), (0, 0, 0, 2))


def verdict(findings: Sequence[Finding]) -> RenderableType:
    counts = {level: sum(finding.level == level for finding in findings) for level in LEVELS}
    words = [
        f"{count} {level}{'s' if count > 1 and level != 'refused' else ''}"
        for level, count in counts.items()
        if count
    ]
    worst = next((level for level in LEVELS if counts[level]), None)
    if worst in (None, "note"):
        return Padding(Text("ready", "bold green").append(f"  {', '.join(words)}", "dim"), (1, 0, 1, 0))
    return Padding(Text(", ".join(words), STYLES[worst or "note"]), (1, 0, 1, 0))
