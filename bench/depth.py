#!/usr/bin/env python3
"""One thread with a queue of random reads, next to fio at each depth.

usage: bench/depth.py [--device NAME | --on FOLDER] [--mib N] [--times N] [--small] [--save]
       (default network, 1,024 MiB, 5 runs)

Needs root and fio, and the Python package of this project. Devices and folders as in
`bench/interleaved.py`. Ours hands 4,096 reads to one call of `readinto_many`, with default options,
in a new process, cold; nothing states a depth. fio reads as many places from one thread by
io_uring, with O_DIRECT, at depths from 1 to 256. Both read the same file, in turn. `--save` adds
the rows of this device to bench/results/depth.json.

A row has the median reads a second of ours, those of fio at each depth, and the ratio of ours to
fio's best.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import interleaved

READS = 4_096
SIZES = [4 << 10, 64 << 10]
DEPTHS = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def read_all(path, size, seed):
    """Reads in this process; prints reads a second."""
    import readpath

    draw = random.Random(seed)
    blocks = os.path.getsize(path) // size
    offsets = [place * size for place in draw.sample(range(blocks), min(READS, blocks))]
    buffers = [bytearray(size) for _ in offsets]
    file = readpath.open(path)
    begun = time.perf_counter()
    file.readinto_many(offsets, buffers)
    seconds = time.perf_counter() - begun
    with open(path, "rb") as other:
        for offset, buffer in list(zip(offsets, buffers, strict=True))[:64]:
            if os.pread(other.fileno(), size, offset) != buffer:
                sys.exit("the bytes differ from the file's")
    print(len(offsets) / seconds)


def ours(path, size, seed):
    interleaved.drop(path)
    command = [sys.executable, __file__, "--read", str(path), str(size), str(seed)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def fio(path, size, depth, seed):
    """Reads a second of fio; the run ends after as many reads as ours has."""
    interleaved.drop(path)
    reads = min(READS, os.path.getsize(path) // size)
    command = ["fio", "--name=depth", f"--filename={path}", "--readonly", "--rw=randread",
               "--ioengine=io_uring", "--direct=1", f"--bs={size}", f"--iodepth={depth}",
               f"--number_ios={reads}", f"--randseed={seed + 1}", "--runtime=20",
               "--output-format=json"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output[output.index("{"):])["jobs"][0]["read"]["iops"]


def measure(folder, mib, times, depths):
    """A row for each size of read."""
    path = folder / "readpath-depth"
    try:
        interleaved.write(path, mib)
        return [row(path, size, times, depths) for size in SIZES]
    finally:
        path.unlink(missing_ok=True)


def row(path, size, times, depths):
    mine, peers = [], {depth: [] for depth in depths}
    for seed in range(times):
        mine.append(ours(path, size, seed))
        for depth in depths:
            peers[depth].append(fio(path, size, depth, seed))
    return {"size": size, "ours": statistics.median(mine), "ours_by_run": mine,
            "fio": {depth: statistics.median(found) for depth, found in peers.items()},
            "fio_by_run": peers}


def print_rows(rows):
    for found in rows:
        best = max(found["fio"], key=found["fio"].get)
        print(f"{found['size'] >> 10} KiB: ours {found['ours']:.0f} reads/s "
              f"({min(found['ours_by_run']):.0f} to {max(found['ours_by_run']):.0f}), "
              f"{found['ours'] / found['fio'][best]:.2f} of fio at its best depth ({best})")
        print("    fio: " + ", ".join(f"{depth}: {rate:.0f}"
                                      for depth, rate in found["fio"].items()))


def main():
    if len(sys.argv) == 5 and sys.argv[1] == "--read":
        return read_all(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    arguments = interleaved.parsed(__doc__, 1_024)
    with interleaved.storage(arguments, __doc__) as folder:
        depths = [16] if arguments.small else DEPTHS
        rows = measure(folder, arguments.mib, arguments.times, depths)
    print_rows(rows)
    if arguments.save:
        interleaved.save("depth", arguments, rows)
    return None


if __name__ == "__main__":
    main()
