#!/usr/bin/env python3
"""The regret matrix as it is kept: bench/regret.py DOCUMENT, which `readpath regret --json` printed.

Writes bench/results/regret.json, a cell a line with its best rival and, where it is a regret, the
cause; prints the table of devices and what each classic pair would lose as a fixed default.
"""

import json
import math
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "regret.json"
KEPT = ["readahead", "swapin", "scheduler", "mib_per_s", "mib_per_s_by_seed", "device_requests",
        "device_request_kib_mean", "device_depth_mean", "amplification", "coverage", "waste_bytes"]


def rounded(value):
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def kept(cell):
    run = lambda run: {key: rounded(run[key]) for key in KEPT if key in run}
    small = {key: rounded(cell[key]) for key in ["device", "workload", "processes", "ratio"]}
    cause = cell.get("cause")
    return small | ({"cause": cause["line"]} if cause else {}) | {
        "adaptive": run(cell["adaptive"]), "best": run(cell["rivals"][0])}


def row(name, ratios):
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    below = sum(ratio < 0.95 for ratio in ratios)
    print(f"| {name} | {len(ratios)} | {mean:.3f} | {min(ratios):.3f} | {below} |")


def main():
    document = json.loads(Path(sys.argv[1]).read_text())
    cells = document["results"]
    lines = [json.dumps(kept(cell), separators=(",", ":")) for cell in cells]
    RESULTS.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    for device in dict.fromkeys(cell["device"] for cell in cells):
        row(device, [cell["ratio"] for cell in cells if cell["device"] == device])
    row("all", [cell["ratio"] for cell in cells])
    print()
    for pair in document["summary"]["fixed"]:
        numbers = f"{pair['geometric_mean']:.3f} | {pair['minimum']:.3f}"
        print(f"| {pair['laws']} | {numbers} | {pair['below_95_percent']} |")


main()
