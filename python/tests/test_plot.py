"""Pictures show the figures that they are drawn from."""

import pytest

import readpath
from samples import SEQUENTIAL

pytest.importorskip("matplotlib")
from readpath import plot  # noqa: E402


def test_depth_plot_ends_at_zero_and_reaches_the_rows_maximum():
    trace = readpath.trace(SEQUENTIAL, "ssd", readahead="ondemand")
    (line,) = plot.depth(trace).lines
    depths = line.get_ydata()
    assert depths[-1] == 0 and max(depths) == trace.row["device_depth_max"]


def test_latency_plot_has_the_rows_median_at_one_half():
    trace = readpath.trace(SEQUENTIAL, "hdd", readahead="none")
    (line,) = plot.latency(trace).lines
    us, share = line.get_xdata(), line.get_ydata()
    median = us[next(nth for nth, part in enumerate(share) if part >= 0.5)]
    # The row's latency ends when the bytes are copied, some microseconds later.
    assert median == pytest.approx(trace.row["latency_us"]["p50"], rel=0.02)


def test_window_plot_draws_every_readahead_window():
    trace = readpath.trace(SEQUENTIAL, "hdd", readahead="ondemand")
    axes = plot.window(trace)
    drawn = axes.containers[0].markerline.get_ydata()
    assert sum(drawn) == sum(trace.windows["ahead_pages"]) * 4
    nothing = readpath.trace(SEQUENTIAL, "hdd", readahead="none")
    assert plot.window(nothing).containers == []


def test_regret_is_the_time_over_the_best_for_the_same_case():
    def row(job, policy, seconds):
        return {"job": job, "storage": "hdd", "readahead": policy, "seconds": seconds}

    rows = [row("a", "x", 1.0), row("a", "y", 3.0), row("b", "x", 4.0), row("b", "y", 2.0)]
    assert plot.regrets(rows, "readahead", "storage") == {("x", "hdd"): 2.0, ("y", "hdd"): 3.0}
    assert [text.get_text() for text in plot.regret(rows).texts] == ["2.00", "3.00"]
