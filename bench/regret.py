#!/usr/bin/env python3
"""The policy matrix as it is stored: bench/regret.py DOCUMENT [DOCUMENT ...]

A document is the output of `readpath eval policies --json`. Writes bench/results/regret.json, one
cell a line with its best baseline, and with the cause of a regret. Prints the table of devices, and
the loss of each classic pair as a fixed default.

Documents of real storage (`--on`): writes bench/results/regret-real.json, one cell a line with all
rates, of first runs and of second ones. Prints the share of the best that ours and each baseline
have.
"""

import json
import math
import platform
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "regret.json"
REAL = RESULTS.with_name("regret-real.json")
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
        "adaptive": run(cell["adaptive"]), "best": run(cell["baselines"][0])}


def row(name, ratios):
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    below = sum(ratio < 0.95 for ratio in ratios)
    print(f"| {name} | {len(ratios)} | {mean:.3f} | {min(ratios):.3f} | {below} |")


def fixed(summary):
    for pair in summary["fixed"]:
        numbers = f"{pair['geometric_mean']:.3f} | {pair['minimum']:.3f}"
        print(f"| {pair['policies']} | {numbers} | {pair['below_95_percent']} |")


def rates(cell):
    name = lambda run: " ".join(filter(None, [run["readahead"], run["scheduler"]]))
    sorted_rates = lambda run: [rounded(rate) for rate in run["mib_per_s_by_seed"]]
    baselines = {name(run): sorted_rates(run) for run in cell["baselines"]}
    return {"ratio": rounded(cell["ratio"]), "ours": sorted_rates(cell["adaptive"])} | baselines


def real(documents):
    lines = []
    for document in documents:
        policies, first = document["policies"], document["first_runs"]
        for one, two in zip(first["results"], document["results"], strict=True):
            place = {key: two[key] for key in ["workload", "processes"]}
            line = {"policies": policies} | place | {"first": rates(one), "second": rates(two)}
            lines.append(json.dumps(line, separators=(",", ":")))
        for runs, part in ("first", first), ("second", document):
            print(f"{policies}, {runs} runs:")
            row("ours", [cell["ratio"] for cell in part["results"]])
            kernel = lambda cell: next(run for run in cell["baselines"] if run["readahead"] == "kernel")
            row("relative to the kernel alone", [cell["adaptive"]["mib_per_s"] / kernel(cell)["mib_per_s"] for cell in part["results"]])
            fixed(part["summary"])
    machine = json.dumps(f"{platform.machine()}, {platform.system()} {platform.release()}")
    REAL.write_text(f'{{"machine":{machine},"cells":[\n' + ",\n".join(lines) + "\n]}\n")


def main():
    documents = [json.loads(Path(path).read_text()) for path in sys.argv[1:]]
    document = documents[0]
    if "first_runs" in document:
        return real(documents)
    cells = document["results"]
    lines = [json.dumps(kept(cell), separators=(",", ":")) for cell in cells]
    RESULTS.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    for device in dict.fromkeys(cell["device"] for cell in cells):
        row(device, [cell["ratio"] for cell in cells if cell["device"] == device])
    row("all", [cell["ratio"] for cell in cells])
    print()
    fixed(document["summary"])


main()
