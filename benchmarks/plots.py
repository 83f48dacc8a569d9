"""The plots of a report, from the tables in it. ``python -m benchmarks.plots REPORT.md`` draws them anew.

Needs matplotlib, which `benchmarks/run` keeps in an environment of its own. One SVG for each plot, in the
folder beside the report that has its name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.tables import Table, cell, number, read_tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS = "launcher"
OUR_COLOUR, PLAIN = "#0067b8", "#b9c3cf"
OTHERS = ("#8a8f98", "#c06c2b", "#d9a441", "#7a9e4b", "#4f9a94", "#8e6bb0", "#b5566f", "#5b6f9a", "#a08a70")
HEADING = re.compile(r"^## .*\(`python -m benchmarks\.(\w+)`\)$", re.MULTILINE)


class Plot(NamedTuple):
    """One picture.

    Attributes:
        module: Whose tables it is made of.
        name: Of the file, without its ending.
        title: What it shows, with its unit.
        needs: A column that the table has.
        paint: Draws the table.
    """

    module: str
    name: str
    title: str
    needs: str
    paint: Callable[[Axes, Table], None]


def paint_bars(column: str, *, log: bool = False, most: bool = False) -> Callable[[Axes, Table], None]:
    """Return how to draw one bar for each row, the best at the top: who takes least, or does most."""

    def paint(axes: Axes, table: Table) -> None:
        found = sorted(table.numbers(column).items(), key=lambda pair: pair[1], reverse=not most)
        names, values = [name.strip("`") for name, _ in found], [value for _, value in found]
        colours = [OUR_COLOUR if name.startswith(OURS) else PLAIN for name in names]
        bars = axes.barh(names, values, color=colours)
        axes.bar_label(bars, [cell(value) for value in values], padding=4)
        if log:
            axes.set_xscale("symlog", linthresh=1)
        axes.margins(x=0.15)

    return paint


def paint_counts(axes: Axes, table: Table) -> None:
    """Draw a line for each launcher over the number of processes."""
    counts = [number(head) or 0 for head in table.head[1:]]
    others = iter(OTHERS)
    for name, *cells in table.rows:
        points = [pair for pair in zip(counts, map(number, cells), strict=True) if pair[1] is not None]
        if points:
            colour, width = (OUR_COLOUR, 3.0) if name.startswith(OURS) else (next(others), 1.5)
            style = "--" if name.startswith(f"{OURS} -") else "-"  # with a flag
            line, values = {"color": colour, "linewidth": width}, zip(*points, strict=True)
            axes.plot(*values, style, marker="o", label=name, **line)
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:g}" for count in counts])
    axes.set_xlabel("processes")
    finish_lines(axes)


def paint_growth(*columns: str) -> Callable[[Axes, Table], None]:
    """Return how to draw a line for each of some columns over the numbers of the first."""

    def paint(axes: Axes, table: Table) -> None:
        counts = [number(text) or 0 for text in table.column(table.head[0])]
        for column, colour in zip(columns, (OUR_COLOUR, *OTHERS[1:]), strict=False):
            values = [number(text) for text in table.column(column)]
            axes.plot(counts, values, marker="o", label=column, color=colour)
        axes.set_xscale("log")
        axes.set_xticks(counts, [f"{count:,.0f}" for count in counts], minor=False)
        axes.minorticks_off()
        axes.set_xlabel(table.head[0])
        finish_lines(axes)

    return paint


def finish_lines(axes: Axes) -> None:
    """A logarithmic scale with plain numbers, and the names at the right."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    low, high = axes.get_ylim()
    axes.yaxis.set_minor_formatter(
        "{x:,g}" if high < 10 * low else ""
    )  # a scale without a second power of ten
    axes.grid(visible=True, axis="y", color="#e4e8ee")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


PLOTS = (
    Plot(
        "processes",
        "start",
        "Start: ms to the first line of the last process",
        "2 processes",
        paint_counts,
    ),
    Plot("processes", "memory", "Memory of the parent, MiB", "of all, MiB", paint_bars("of all, MiB")),
    Plot("processes", "idle", "CPU of the idle parent, ms", "CPU in", paint_bars("CPU in")),
    Plot(
        "processes",
        "death",
        "From one process's death to the launcher's exit, ms",
        "the other obeys",
        paint_bars("the other obeys", log=True),
    ),
    Plot(
        "processes",
        "output",
        "Output of 2 processes that passes, MiB/s",
        "MiB/s",
        paint_bars("MiB/s", log=True, most=True),
    ),
    *(
        Plot("first_step", f"step-{mode}", f"Seconds until {what}", f"2 ranks, {mode}", paint_counts)
        for mode, what in (
            ("torch", "the last rank has imported torch"),
            ("transformers", "the last rank has imported transformers"),
            ("allreduce", "the last rank's first all-reduce (gloo)"),
        )
    ),
    Plot(
        "first_step",
        "step-cold",
        "The same with a cold page cache, 8 ranks: seconds",
        "8 ranks, allreduce, cold",
        paint_bars("8 ranks, allreduce, cold"),
    ),
    Plot(
        "first_step",
        "step-memory",
        "Memory of 8 ranks behind their all-reduce, all processes, proportional MiB",
        "proportional",
        paint_bars("proportional"),
    ),
    Plot(
        "hook",
        "hook",
        "The hook: CPU of a start over a bare Python, ms",
        "over bare",
        paint_bars("over bare"),
    ),
    Plot("planning", "planning", "Planning, ms", "hosts", paint_growth("Azure Batch, ms", "Slurm, ms")),
    Plot(
        "peers_load",
        "nodes",
        "Many nodes at node 0",
        "roll call",
        paint_growth("roll call, s", "a failure told to all, ms", "all know the end, s"),
    ),
)


def read_report(text: str) -> dict[str, list[Table]]:
    """Return the tables of each part of a report."""
    pieces = HEADING.split(text)
    return {name: read_tables(body) for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}


def find_table(tables: Sequence[Table], needs: str) -> Table | None:
    """Return the first table that has such a column."""
    return next((table for table in tables if any(head.startswith(needs) for head in table.head)), None)


def draw(tables: Mapping[str, Sequence[Table]], folder: Path) -> None:
    """Write an SVG for each plot that has a table."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "launcher", "font.size": 10})
    import matplotlib.pyplot as pyplot

    folder.mkdir(exist_ok=True)
    for plot in PLOTS:
        table = find_table(tables.get(plot.module, ()), plot.needs)
        if table is None:
            continue
        figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
        axes.spines[["top", "right"]].set_visible(False)
        plot.paint(axes, table)
        figure.suptitle(plot.title, x=0.01, horizontalalignment="left", fontweight="bold")
        figure.savefig(folder / f"{plot.name}.svg", metadata={"Date": None})
        pyplot.close(figure)


def main(words: Sequence[str]) -> int:
    """Draw the plots of one report."""
    path = Path(words[0])
    draw(read_report(path.read_text()), path.with_suffix(""))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
