#!/usr/bin/env python3
"""Reads through a `File`, compared with pread, memcpy and fio in the same run.

usage: bench/file.py FILE [ROUNDS]   (FILE of at least 1 GiB on the storage to be measured;
       default 5 rounds)

Builds and runs the benchmark file_speed, prints each figure as a ratio to its baseline, and writes
the raw medians to bench/results/file.json.
"""

import json
import os
import pathlib
import platform
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Group, ours, baseline, quantity; a ratio of ours to the baseline in time (or processor time).
RATIOS = [
    ("cached 4 KiB", "read_at", "memcpy", "cpu_ns"),
    ("cached 4 KiB", "read_at", "pread", "cpu_ns"),
    ("cached 4 KiB", "page guard, not looked at", "pread", "cpu_ns"),
    ("cached 4 KiB", "page guard", "pread", "cpu_ns"),
    ("cached 4 KiB", "two threads", "one thread", "ns"),
    ("cached 4 KiB", "memcpy, two threads", "memcpy, one thread", "ns"),
    ("cached 4 KiB", "read_at", "read_at, policy none", "cpu_ns"),
    ("cached 4 KiB", "read_at, policy adaptive", "read_at, policy none", "cpu_ns"),
    ("cached 64 KiB", "read_at", "memcpy", "cpu_ns"),
    ("cached 64 KiB", "read_at", "pread", "cpu_ns"),
    ("cold random 4 KiB, depth 32", "batch", "fio io_uring", "ns"),
    ("cold random 4 KiB, depth 32", "batch", "fio io_uring", "cpu_ns"),
    ("cold random 4 KiB, depth 32", "batch", "batch, scheduler noop", "ns"),
    ("cold random 4 KiB, depth 32", "batch", "batch, scheduler noop", "cpu_ns"),
    ("cold random 64 KiB, depth 32", "batch", "fio io_uring", "ns"),
    ("cold random 64 KiB, depth 32", "batch", "fio io_uring", "cpu_ns"),
    ("cold sequential 1 MiB", "read_at, nothing set", "fio direct, depth 8", "ns"),
    ("cold sequential 1 MiB", "read_at, nothing set", "kernel's buffered read", "ns"),
    ("cold sequential 1 MiB", "read_at, nothing set", "kernel's buffered read", "cpu_ns"),
    ("cold sequential 1 MiB", "read_at 8 MiB", "fio direct, depth 8", "ns"),
    ("cold sequential 1 MiB", "read_at 8 MiB", "kernel's buffered read", "ns"),
    ("cold sequential 1 MiB", "read_at 8 MiB", "kernel's buffered read", "cpu_ns"),
]


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    command = ["cargo", "bench", "--quiet", "-p", "readpath-eval", "--bench", "file_speed",
               "--", str(pathlib.Path(sys.argv[1]).resolve()), *sys.argv[2:], "--json"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    rows = [json.loads(line) for line in output.splitlines()]
    load = os.getloadavg()[0]
    raw = {"machine": f"{platform.machine()}, Linux {platform.release()}, load {load:.1f}",
           "rows": rows}
    (ROOT / "bench/results/file.json").write_text(json.dumps(raw, indent=1) + "\n")
    by_name = {(row["group"], row["row"]): row for row in rows}
    print(f"{'ours':42} {'peer':24} {'of':7} {'ratio':>6}")
    for group, ours, peer, unit in RATIOS:
        ours_row, peer_row = by_name[group, ours], by_name[group, peer]
        if ours_row["ns"] is None or peer_row["ns"] is None:
            continue
        ratio = ours_row[unit] / peer_row[unit]
        print(f"{group + ': ' + ours:42} {peer:24} {unit:7} {ratio:6.2f}")


if __name__ == "__main__":
    main()
