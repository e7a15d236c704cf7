#!/usr/bin/env python3
"""Cold reads through the library with default options, and through the kernel, in the same run.

usage: bench/cold.py FOLDER [RUNS]   (FOLDER on the storage to be measured; default 5 runs)

Builds the release command and runs each job of bench/jobs RUNS times on one file. Both paths run
each time, in alternating order, in fresh processes. Prints the median ratio ours / kernel of
throughput and of processor time per byte. Writes the raw rows to bench/results/cold.json.
"""

import json
import pathlib
import platform
import statistics
import subprocess
import sys

import built

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    data = pathlib.Path(sys.argv[1]) / "readpath-bench.data"
    runs = int(sys.argv[2]) if len(sys.argv) == 3 else 5
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
    raw = {"machine": f"{platform.machine()}, Linux {platform.release()}", "jobs": {}}
    print(f"{'job':28} {'ours MiB/s':>11} {'kernel MiB/s':>13} {'ratio':>6} {'cpu ratio':>10}")
    for job in sorted((ROOT / "bench/jobs").glob("*.fio")):
        rows = [once(job, data, run % 2 == 1) for run in range(runs)]
        raw["jobs"][job.stem] = rows
        ours = statistics.median(ours["mib_per_s"] for ours, _ in rows)
        kernel = statistics.median(kernel["mib_per_s"] for _, kernel in rows)
        ratio = statistics.median(o["mib_per_s"] / k["mib_per_s"] for o, k in rows)
        cpu = statistics.median(o["cpu_seconds"] / k["cpu_seconds"] for o, k in rows)
        print(f"{job.stem:28} {ours:11.0f} {kernel:13.0f} {ratio:6.2f} {cpu:10.2f}")
    results = ROOT / "bench/results/cold.json"
    results.write_text(json.dumps(raw, indent=1) + "\n")


def once(job: pathlib.Path, data: pathlib.Path, is_kernel_first: bool) -> tuple[dict, dict]:
    storages = [f"kernel:{data}", f"file:{data}"] if is_kernel_first else [f"file:{data}", f"kernel:{data}"]
    command = [built.COMMAND, "run", job, "--on", storages[0], "--on", storages[1],
               "--create", "--json"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = {row["storage"].split(":")[0]: row for row in json.loads(output)["results"]}
    ours, kernel = rows["file"], rows["kernel"]
    keep = ("storage", "mib_per_s", "iops", "latency_us", "device_requests", "device_request_kib_mean",
            "amplification", "coverage", "cpu_seconds", "note")
    return tuple({key: row[key] for key in keep} | {"storage": row["storage"].split(":")[0]}
                 for row in (ours, kernel))


if __name__ == "__main__":
    main()
