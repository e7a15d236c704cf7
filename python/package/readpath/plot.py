"""Plots of runs (needs matplotlib).

Each function draws into `axes`, or into a new figure, and returns the axes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from readpath.modelled import Row, Trace

MS = 1e6
"""Nanoseconds in a millisecond."""


def _axes(axes: Any) -> Any:
    """Returns the given axes, or the axes of a new figure."""
    if axes is not None:
        return axes
    from matplotlib.figure import Figure

    return Figure(layout="constrained").subplots()


def window(trace: Trace, axes: Any = None) -> Any:
    """Plots the readahead beyond the requests over time."""
    axes = _axes(axes)
    calls = zip(trace.windows["now_ns"], trace.windows["ahead_pages"], strict=True)
    # Time in ms and KiB read ahead, of the calls that read ahead. A page has 4 KiB.
    points = [(now / MS, pages * 4) for now, pages in calls if pages]
    if points:
        axes.stem(*zip(*points, strict=True), markerfmt=".", basefmt=" ")
    axes.set(xlabel="time, ms", ylabel="read ahead, KiB", title=_title(trace.row), ylim=(0, None))
    return axes


def latency(traces: Trace | Iterable[Trace], axes: Any = None) -> Any:
    """Plots the cumulative distribution of read latencies on a logarithmic scale, one line per run."""
    axes = _axes(axes)
    for trace in [traces] if isinstance(traces, Trace) else traces:
        spans = zip(trace.reads["issued_ns"], trace.reads["done_ns"], strict=True)
        # A logarithmic scale has no 0: a hit in no time counts as one nanosecond.
        us = sorted(max(1, done - issued) / 1e3 for issued, done in spans)
        share = [(nth + 1) / len(us) for nth in range(len(us))]
        axes.step(us, share, where="post", label=_title(trace.row))
    axes.set(xscale="log", xlabel="latency, µs", ylabel="share of reads", ylim=(0, 1))
    axes.legend()
    return axes


def depth(trace: Trace, axes: Any = None) -> Any:
    """Plots the number of requests in the device over time."""
    axes = _axes(axes)
    steps = [(now, 1) for now in trace.requests["issued_ns"]]
    steps += [(now, -1) for now in trace.requests["done_ns"] if now is not None]
    times, depths, in_device = [0.0], [0], 0
    for now, change in sorted(steps):
        in_device += change
        times.append(now / MS)
        depths.append(in_device)
    axes.step(times, depths, where="post")
    axes.set(xlabel="time, ms", ylabel="requests in the device", title=_title(trace.row))
    return axes


def regret(
    rows: Iterable[Row],
    by: str = "readahead",
    across: str = "storage",
    axes: Any = None,
) -> Any:
    """Plots the regret of each choice as a heat map of `by` over `across`.

    The regret of a row is its time ÷ the least time of all choices of `by` for the
    same job, storage, memory and seed; a cell has the worst of its rows.
    """
    axes = _axes(axes)
    cells = regrets(rows, by, across)
    choices = list(dict.fromkeys(choice for choice, _ in cells))
    places = list(dict.fromkeys(place for _, place in cells))
    nothing = float("nan")
    table = [[cells.get((choice, place), nothing) for place in places] for choice in choices]
    image = axes.imshow(table, cmap="magma_r", vmin=1, aspect="auto")
    axes.figure.colorbar(image, ax=axes, label="time ÷ the best")
    axes.set_xticks(range(len(places)), places, rotation=30, ha="right")
    axes.set_yticks(range(len(choices)), choices)
    for (choice, place), value in cells.items():
        at = places.index(place), choices.index(choice)
        axes.annotate(f"{value:.2f}", at, ha="center", va="center")
    return axes


def regrets(rows: Iterable[Row], by: str, across: str) -> dict[tuple[str, str], float]:
    """Returns the worst regret of each choice of `by` in each `across`."""
    names = ("job", "storage", "readahead", "scheduler", "memory_bytes", "seed")
    cases: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        case = tuple(row.get(name) for name in names if name != by)
        cases.setdefault(case, []).append(row)
    cells: dict[tuple[str, str], float] = {}
    for case_rows in cases.values():
        best = min(row["seconds"] for row in case_rows)
        for row in case_rows:
            cell = (str(row[by]), str(row[across]))
            cells[cell] = max(cells.get(cell, 1.0), row["seconds"] / best)
    return cells


def _title(row: Row) -> str:
    return f"{row['job']} on {row['storage']}, {row['readahead']}"
