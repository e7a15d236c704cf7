#!/usr/bin/env python3
"""Random slices of a mapping, modelled: `adaptive`, `runs` and `ondemand`.

usage: bench/slices.py [--quick]

Slices of 8 KiB to 1 MiB, touched page by page, by 1, 8 and 64 processes, on six devices. Each runs
with the advice that reads are random (`MADV_RANDOM`, as fio gives it) and without. `runs` has
windows of up to an eighth of the memory. Prints the ratios of the rates as geometric means over the
devices, and writes all rows to bench/results/slices.json. A few minutes; `--quick` uses two devices
and writes no results. Time is virtual: the result is equal on each machine.
"""

import collections
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import built

ROOT = pathlib.Path(__file__).resolve().parent.parent
ONE_MS = "object,connection=1000,connections=8,get_rate=1000000," + ",".join(
    f"first_byte_{at}=1000" for at in ("min", "p50", "p90", "p99", "max"))
DEVICES = {"1 ms": ONE_MS, "hdd": "hdd", "ssd": "ssd", "nvme": "nvme", "nfs": "nfs", "nfs, 10 ms": "nfs,rtt=10ms"}
SLICES = ["8k", "16k", "64k", "256k", "1m"]
PROCESSES = {1: 24, 8: 6, 64: 1}  # each reads so many MiB
POLICIES = ["adaptive", "runs,read_ahead_kb=32768", "ondemand"]


def main() -> None:
    if sys.argv[1:] not in ([], ["--quick"]):
        sys.exit(__doc__)
    is_quick = bool(sys.argv[1:])
    command = built.command()
    rows = []
    for name in list(DEVICES)[:2] if is_quick else DEVICES:
        for slice_size in SLICES:
            for processes, mib in PROCESSES.items():
                for is_advised in (False, True):
                    rates = [run(command, DEVICES[name], slice_size, processes, mib, is_advised, policy) for policy in POLICIES]
                    rows.append({"device": name, "slice": slice_size, "processes": processes, "advised": is_advised,
                                 **dict(zip(("adaptive", "runs", "ondemand"), rates, strict=True))})
    told(rows)
    if not is_quick:
        (ROOT / "bench/results/slices.json").write_text(json.dumps({"rows": rows}, indent=1) + "\n")


def run(command: pathlib.Path, device: str, slice_size: str, processes: int, mib: int, is_advised: bool, policy: str) -> dict:
    job = (f"[slices]\nioengine=mmap\nrw=randread\nbs={slice_size}\nsize=1g\nfilename=mapped\nio_size={mib}m\n"
           f"numjobs={processes}\nfadvise_hint={int(is_advised)}\n")
    with tempfile.NamedTemporaryFile("w", suffix=".fio") as file:
        file.write(job)
        file.flush()
        words = [command, "run", file.name, "--on", device, "--readahead", policy, "--json"]
        row = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)["results"][0]
    return {key: row[key] for key in ("mib_per_s", "device_requests", "amplification")}


def told(rows: list[dict]) -> None:
    print(f"{'slice':>6} {'processes':>9} {'advised':>7} {'÷ runs':>7} {'÷ ondemand':>10}")
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["slice"], row["processes"], row["advised"]].append(row)
    for (slice_size, processes, is_advised), group in groups.items():
        ratios = [over(policy, group) for policy in ("runs", "ondemand")]
        print(f"{slice_size:>6} {processes:9} {'yes' if is_advised else 'no':>7} {ratios[0]:7.2f} {ratios[1]:10.2f}")
    for processes in PROCESSES:
        all_of = [row for row in rows if row["processes"] == processes and not row["advised"]]
        print(f"{processes:3} processes, not advised: {over('runs', all_of):.4f} of runs")


def over(policy: str, rows: list[dict]) -> float:
    """Rate under `adaptive` / rate under the policy, a geometric mean."""
    return statistics.geometric_mean(row["adaptive"]["mib_per_s"] / row[policy]["mib_per_s"] for row in rows)


if __name__ == "__main__":
    main()
