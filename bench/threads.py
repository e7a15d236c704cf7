#!/usr/bin/env python3
"""Synchronous random reads of 4 KiB, cold, by eight threads and by one, compared with pread.

    bench/threads.py FOLDER [RUNS]      (default 5 runs)

Default options, each measurement in a fresh process, in alternating order: the library, pread(2)
through the kernel's page cache, and pread(2) with O_DIRECT, on one file of 1 GiB in FOLDER. Prints
reads a second and processor microseconds a read (medians, with the start), and the ratio of the
library to the better of the two. Writes the raw figures to bench/results/threads.json.
"""

import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

import built

READS = {"threads": 16000, "one": 4000}
WAYS = ["readpath", "pread", "direct"]


def once(program: str, name: str, way: str, reads: int, with_: str) -> tuple[float, float]:
    with open(name, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = [program, name, way, str(reads)] + ([] if with_ == "readpath" else [with_])
    seconds, cpu = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return reads / float(seconds), float(cpu) / reads * 1e6


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    runs = int(sys.argv[2]) if len(sys.argv) == 3 else 5
    program = built.bench("miss_cost")
    raw = {"machine": f"{platform.machine()}, Linux {platform.release()}", "ways": {}}
    with tempfile.NamedTemporaryFile(dir=sys.argv[1]) as file:
        for _ in range(1024):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        for way, reads in READS.items():
            rows = {with_: [] for with_ in WAYS}
            for run in range(runs):
                for turn in range(len(WAYS)):
                    with_ = WAYS[(run + turn) % len(WAYS)]
                    rows[with_].append(once(program, file.name, way, reads, with_))
            raw["ways"][way] = rows
            rate = {with_: statistics.median(rate for rate, _ in row) for with_, row in rows.items()}
            cpu = {with_: statistics.median(cpu for _, cpu in row) for with_, row in rows.items()}
            for with_ in WAYS:
                print(f"{way:8} {with_:9} {rate[with_]:9.0f} reads/s {cpu[with_]:7.1f} us of processor")
            best_rate, best_cpu = max(rate["pread"], rate["direct"]), min(cpu["pread"], cpu["direct"])
            print(f"{way:8} ours      {rate['readpath'] / best_rate:9.2f} of the faster "
                  f"{cpu['readpath'] / best_cpu:5.2f} of the cheaper")
    results = pathlib.Path(__file__).resolve().parent / "results" / "threads.json"
    results.write_text(json.dumps(raw, indent=1) + "\n")


if __name__ == "__main__":
    main()
