#!/usr/bin/env python3
"""Bytes from the device for a skewed working set and a scan: eviction policies and the kernel.

    bench/kept.py FOLDER [--policies adaptive,two-lists/none] [--reads 150000] [--one-file] [--save]

Needs root. Creates two files of 1 GiB in FOLDER, or one of 2 GiB. `kept_reads`
(crates/eval/benches/kept_reads.rs) reads pages of the first GiB with a Zipf skew of 0.9. After
every 64th, 16th and 4th of these reads it reads 64 KiB of the second. Memory is a quarter of the
first file. A contender is `kernel`, or an eviction policy with an optional readahead policy. Each
runs alone in a memory control group of that size and 32 MiB more. The kernel may use these for
pages, and the library needs them for its tables.

The result is the number of bytes from the device, which other load does not change; it changes the
times. `optimum` is the count of a cache of that size that knows the future (`readpath cachesim`,
Belady's). The file also has the bytes of the scan. --save writes bench/results/kept.json.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile

import built

MEMORY_MIB = 256
OWN_MIB = 32
EVERY = (64, 16, 4)
ROOT = pathlib.Path(__file__).resolve().parent


class Group:
    """A memory control group of a given size."""

    def __init__(self, mib):
        first = pathlib.Path("/sys/fs/cgroup/memory")
        self.path = (first if first.exists() else pathlib.Path("/sys/fs/cgroup")) / f"readpath-kept-{os.getpid()}"
        self.limit = "memory.limit_in_bytes" if first.exists() else "memory.max"
        self.mib = mib

    def __enter__(self):
        self.path.mkdir()
        (self.path / self.limit).write_text(str(self.mib << 20))
        return self.path

    def __exit__(self, *_):
        self.path.rmdir()


def forget(names):
    for name in names:
        with open(name, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def optimum(program, cache, folder, reads, every):
    """Bytes that Belady's optimum would have read; `cache` is the command that reports them."""
    trace = f"{folder}/trace"

    def missed(asked):
        with open(trace, "wb") as pages:
            subprocess.run([program, "-", "-", "trace", "0", str(asked), str(every)], check=True, stdout=pages)
        command = [cache, "cachesim", trace, "--format", "lirs", "--eviction", "lru", "--sizes", f"{MEMORY_MIB}MiB", "--json"]
        rows = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["results"]
        return next(row["misses"] for row in rows if row["eviction"] == "optimum")

    return (missed(2 * reads) - missed(reads)) * 4096


def counted(program, names, policy, reads, every):
    """Bytes from the device, bytes that the scan requested meanwhile, and milliseconds."""
    forget(names)
    with Group(MEMORY_MIB + OWN_MIB) as group:
        def enter():
            (group / "cgroup.procs").write_text(str(os.getpid()))
        command = [program, names[0], names[-1], policy, str(MEMORY_MIB), str(reads), str(every)]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, preexec_fn=enter).stdout
        # Pages that it leaves in the kernel's page cache are charged to the group while they are
        # there.
        forget(names)
    return [int(word) for word in told.split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where a file of 2 GiB is made, on the storage to be read")
    parser.add_argument("--policies", "--policies", default="adaptive,adaptive/none,two-lists/none")
    parser.add_argument("--reads", type=int, default=150_000)
    parser.add_argument("--one-file", action="store_true", help="both in one file")
    parser.add_argument("--save", action="store_true", help="write bench/results/kept.json")
    words = parser.parse_args()
    program, cache = built.bench("kept_reads"), built.command()
    rows = []
    with tempfile.TemporaryDirectory(dir=words.folder) as folder:
        names = [f"{folder}/wanted"] if words.one_file else [f"{folder}/wanted", f"{folder}/scanned"]
        for name in names:
            with open(name, "wb") as file:
                for _ in range((2 << 10) // len(names)):
                    file.write(os.urandom(1 << 20))
                os.fsync(file.fileno())
        for every in EVERY:
            kernel = None
            for policy in ["kernel", *words.policies.split(",")]:
                device, scanned, ms = counted(program, names, policy, words.reads, every)
                kernel = kernel or device
                rows.append({"every": every, "policy": policy, "device_bytes": device, "scanned_bytes": scanned, "ms": ms})
                print(f"a scan after {every:3} reads  {policy:14} {device / 1e6:8.0f} MB  {device / kernel:.2f}  {ms / 1e3:6.1f} s", flush=True)
            least = optimum(program, cache, folder, words.reads, every)
            rows.append({"every": every, "policy": "optimum", "device_bytes": least})
            print(f"a scan after {every:3} reads  {'optimum':14} {least / 1e6:8.0f} MB  {least / kernel:.2f}", flush=True)
    if words.save:
        told = {"memory_mib": MEMORY_MIB, "reads": words.reads, "rows": rows}
        (ROOT / "results/kept.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
