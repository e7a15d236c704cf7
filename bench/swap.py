#!/usr/bin/env python3
"""Memory larger than memory: the kernel's swap and ours on the same device.

usage: bench/swap.py [--runs N] [--swapin POLICY,...] [--load FILE] [--name NAME] STORAGE...

STORAGE is a value of `readpath run --on`: kernel:FOLDER first, then the storages to be compared
with it. Builds the release command and runs the loads of FILE (bench/loads/swap.toml) N times (5),
each storage and policy in each run, one after the other. Prints medians, and the ratio of each
row's seconds to the first row of the same load in the same run. Writes the raw rows to
bench/results/NAME.json (swap).
"""

import argparse
import json
import pathlib
import platform
import statistics
import subprocess

import built

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEPT = ("job", "storage", "swapin", "scheduler", "seconds", "fill_seconds", "touches", "major_faults",
        "minor_faults", "latency_us", "pages_in", "pages_out", "device_requests", "device_bytes", "cpu_seconds", "note")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("storages", nargs="+", metavar="STORAGE")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--swapin")
    parser.add_argument("--load", type=pathlib.Path, default=ROOT / "bench/loads/swap.toml")
    parser.add_argument("--name", default="swap")
    options = parser.parse_args()
    command = built.command()
    raw = {"machine": f"{platform.machine()}, Linux {platform.release()}", "runs": []}
    results = ROOT / f"bench/results/{options.name}.json"
    for _ in range(options.runs):
        raw["runs"].append(once(command, options))
        # Written after each run, so an interrupted measurement keeps its rows.
        results.write_text(json.dumps(raw, indent=1) + "\n")
    report(raw["runs"])


def once(command: pathlib.Path, options: argparse.Namespace) -> list[dict]:
    words = [command, "run", options.load, "--json"]
    for storage in options.storages:
        words += ["--on", storage]
    if options.swapin:
        words += ["--swapin", options.swapin]
    output = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = json.loads(output)["results"]
    # A path describes the machine rather than the measurement.
    return [{key: row[key] for key in KEPT} | {"storage": row["storage"].split(":")[0]}
            for row in rows]


def report(runs: list[list[dict]]) -> None:
    print(f"{'load':14} {'storage':8} {'swap-in':24} {'seconds':>8} {'min':>7} {'max':>7} {'ratio':>6} "
          f"{'cpu s':>6} {'pages in':>9} {'pages out':>9} {'faults':>8}")
    for at, row in enumerate(runs[0]):
        first = next(place for place, other in enumerate(runs[0]) if other["job"] == row["job"])
        seconds = [run[at]["seconds"] for run in runs]
        ratio = statistics.median(run[at]["seconds"] / run[first]["seconds"] for run in runs)
        middle = lambda key: median([run[at][key] for run in runs])
        print(f"{row['job']:14} {row['storage']:8} {row['swapin'] or '-':24} "
              f"{statistics.median(seconds):8.2f} {min(seconds):7.2f} {max(seconds):7.2f} {ratio:6.2f} "
              f"{middle('cpu_seconds'):>6} {middle('pages_in'):>9} {middle('pages_out'):>9} "
              f"{middle('major_faults'):>8}")


def median(values: list) -> str:
    """Median of a value over all runs."""
    if any(value is None for value in values):
        return "-"
    middle = statistics.median(values)
    return f"{middle:.1f}" if isinstance(values[0], float) else f"{middle:.0f}"


if __name__ == "__main__":
    main()
