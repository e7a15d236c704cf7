#!/usr/bin/env python3
"""Interleaved streams, skips and far reads through one handle, next to a plain sequential read.

usage: bench/interleaved.py [--device NAME | --on FOLDER] [--mib N] [--times N] [--small] [--save]
       (default network, 256 MiB, 5 runs)

Needs root (with --on: only for `device reads`), and the Python package of this project. `--device`
emulates a device with latency as `bench/latency.py` does, with 128 KiB of kernel readahead; `--on`
measures the storage of a folder. Each run is a new process with default options and one handle,
cold; ours and `pread` alternate. All reads are of 128 KiB. `--save` adds the rows of this device to
bench/results/interleaved.json.

- `sequential`: the file in order;
- `cursors, 1 MiB`: eight readers in eight parts of the file, in turn, eight reads a visit;
- `cursors, 128 KiB`: the same, one read a visit;
- `skips`: one read, then four are left out;
- `far, every eighth`: after each seven reads in order, one at a random place;
- `far, seven`: after each eighth read in order, seven reads at random places.

A row has the rate of the reads in order and its ratio to `sequential` of the same side; the mean
time of a far read; and the bytes that the device read for each byte asked for.
"""

import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import latency

READ = 128 << 10
PATTERNS = ["sequential", "cursors, 1 MiB", "cursors, 128 KiB", "skips", "far, every eighth",
            "far, seven"]


def places(pattern, blocks, seed):
    """Block numbers of the reads, each with whether it is far."""
    draw = random.Random(seed)
    if pattern == "sequential":
        return [(block, False) for block in range(blocks)]
    if pattern.startswith("cursors"):
        visit, part = (8 if pattern == "cursors, 1 MiB" else 1), blocks // 8
        return [
            (cursor * part + block, False)
            for first in range(0, part, visit)
            for cursor in range(8)
            for block in range(first, min(first + visit, part))
        ]
    if pattern == "skips":
        return [(block, False) for block in range(0, blocks, 5)]
    near, far = (7, 1) if pattern == "far, every eighth" else (8, 7)
    found = []
    for block in range(blocks // 2):
        found.append((block, False))
        if (block + 1) % near == 0:
            found += [(draw.randrange(blocks // 2, blocks), True) for _ in range(far)]
    return found


def read_all(side, path, pattern, seed):
    """Reads in this process. Prints seconds of near and far reads, and a check of the bytes."""
    blocks = os.path.getsize(path) // READ
    if side == "ours":
        import readpath

        file = readpath.open(path)

        def read(offset):
            return file.readat(offset, READ)
    else:
        handle = os.open(path, os.O_RDONLY)

        def read(offset):
            return os.pread(handle, READ, offset)

    seconds, count, check = [0.0, 0.0], [0, 0], 0
    for block, is_far in places(pattern, blocks, seed):
        begun = time.perf_counter()
        data = read(block * READ)
        seconds[is_far] += time.perf_counter() - begun
        count[is_far] += 1
        check ^= hash((block, bytes(data[:8]), bytes(data[-8:]), len(data)))
    print(json.dumps({"seconds": seconds, "count": count, "check": check}))


def drop(path):
    """Removes the pages of the file from the kernel's page cache."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def device_bytes(folder):
    """Bytes that the block device of a folder has read so far; None if there is none."""
    number = os.stat(folder).st_dev
    stat = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
    return int(stat.read_text().split()[2]) * 512 if stat.exists() else None


def run(side, path, pattern, seed):
    drop(path)
    before = device_bytes(path.parent)
    command = [sys.executable, __file__, "--read", side, str(path), pattern, str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found = json.loads(done.stdout)
    after = device_bytes(path.parent)
    found["device_bytes"] = None if before is None else after - before
    return found


def measure(folder, mib, times):
    """The rows of a folder. Both sides must find the same bytes."""
    path = folder / "readpath-interleaved"
    try:
        write(path, mib)
        return [row(path, pattern, times) for pattern in PATTERNS]
    finally:
        path.unlink(missing_ok=True)


def write(path, mib):
    """Writes a file of random bytes."""
    draw = random.Random(5)
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(draw.randbytes(1 << 20))
        os.fsync(file.fileno())


def row(path, pattern, times):
    runs = {"ours": [], "pread": []}
    for seed in range(times):
        sides = list(runs) if seed % 2 == 0 else list(runs)[::-1]
        for side in sides:
            runs[side].append(run(side, path, pattern, seed))
        if runs["ours"][-1]["check"] != runs["pread"][-1]["check"]:
            sys.exit(f"{pattern}: the sides read different bytes")
    return {"pattern": pattern, **{side: summary(found) for side, found in runs.items()}}


def summary(runs):
    """Rates in MiB/s of the reads in order, milliseconds of a far read, and read amplification."""
    rates = [it["count"][0] * READ / 2**20 / it["seconds"][0] for it in runs]
    far = [1_000 * it["seconds"][1] / it["count"][1] for it in runs if it["count"][1]]
    asked = [sum(it["count"]) * READ for it in runs]
    moved = [it["device_bytes"] for it in runs]
    return {
        "mib_per_s": statistics.median(rates),
        "mib_per_s_by_run": rates,
        "far_ms": statistics.median(far) if far else None,
        "device_bytes_per_byte": None if None in moved else sum(moved) / sum(asked),
    }


def print_rows(rows):
    print(f"{'pattern':20} {'side':6} {'MiB/s':>7} {'least':>7} {'most':>7} {'of sequential':>14} "
          f"{'far, ms':>8} {'bytes':>6}")
    for found in rows:
        for side in ("ours", "pread"):
            it = found[side]
            ratio = it["mib_per_s"] / rows[0][side]["mib_per_s"]
            far = "-" if it["far_ms"] is None else f"{it['far_ms']:.2f}"
            moved = it["device_bytes_per_byte"]
            print(f"{found['pattern']:20} {side:6} {it['mib_per_s']:7.1f} "
                  f"{min(it['mib_per_s_by_run']):7.1f} {max(it['mib_per_s_by_run']):7.1f} "
                  f"{ratio:14.2f} {far:>8} {'-' if moved is None else f'{moved:.2f}':>6}")


def main():
    if len(sys.argv) == 6 and sys.argv[1] == "--read":
        side, path, pattern, seed = sys.argv[2:]
        return read_all(side, path, pattern, int(seed))
    arguments = parsed(__doc__, 256)
    with storage(arguments, __doc__) as folder:
        rows = measure(folder, arguments.mib, arguments.times)
    print_rows(rows)
    if arguments.save:
        save("interleaved", arguments, rows)
    return None


def parsed(usage, mib):
    """The options of a script that measures one device; `mib` is the default size of its file."""
    parser = latency.device_parser(usage)
    parser.add_argument("--on", type=Path)
    parser.add_argument("--mib", type=int, default=mib)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="16 MiB, one run: a check")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.mib, arguments.times = 16, 1
    latency.use_command(arguments)
    return arguments


@contextlib.contextmanager
def storage(arguments, usage):
    """A folder on the emulated device, or a temporary one in the folder of `--on`."""
    if arguments.on:
        with tempfile.TemporaryDirectory(dir=arguments.on) as folder:
            yield Path(folder)
    elif os.geteuid() != 0:
        sys.exit(usage)
    else:
        with latency.mounted(arguments.device, 128) as folder:
            yield folder


def save(name, arguments, rows):
    """Adds the rows of a device to the results file of this name."""
    fields = {"python": platform.python_version(), "mib": arguments.mib, "rows": rows}
    latency.save_rows(name, "folder" if arguments.on else arguments.device, fields)


if __name__ == "__main__":
    main()
