#!/usr/bin/env python3
"""The Python package compared with its baselines in one run.

    python bench/python_peers.py [--smoke] [--out FILE]

- `stream`: sequential reads of 64 KiB through fsspec over a local store with a delay of 20 ms, by
  our file system and by fsspec's caches; ours with its default memory, and with 9 MiB. Each runs
  in a fresh process; `memory_mib` is the growth of its peak resident memory.
- `backward`, `interleaved`, `stride`: 64 reads of 64 KiB downwards, of four streams in rotation,
  and of every fourth block, by our file system and by fsspec's caches.
- `random`: 64 random reads of 64 KiB over the same store, one by one and by one `readat_many`.
- `cached`: one `readinto_at` of a cached 4 KiB page, and `os.pread` of one, at random in 1 MiB.

Baselines alternate, five times each (once with --smoke, at a small size). Prints all rows as one
JSON document, with the medians.
"""

import argparse
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

import delayed_store

BLOCK = 65_536
DELAY_MS = 20


def peak_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def stream(url, kind):
    """One sequential pass, in this process."""
    import fsspec

    below = fsspec.filesystem("http")
    larger = {"memory": "9MiB", "readahead": "ondemand,read_ahead_kb=4096", "request": "1MiB"}
    ours = fsspec.filesystem("readpath", fs=below, **(larger if "9 MiB" in kind else {}))
    with below.open(url, cache_type="none") as file:
        file.read(BLOCK)
    before = peak_kib()
    began = time.perf_counter()
    with ours.open(url) if kind.startswith("readpath") else below.open(url, cache_type=kind) as file:
        bytes_read = 0
        while piece := file.read(BLOCK):
            bytes_read += len(piece)
    seconds = time.perf_counter() - began
    memory_mib = (peak_kib() - before) / 1024
    return {"mib_per_s": bytes_read / 2**20 / seconds, "memory_mib": memory_mib}


def pattern(url, kind, part):
    """64 reads in non-sequential order, by our file system and by fsspec's caches."""
    import fsspec

    below = fsspec.filesystem("http")
    ours = fsspec.filesystem("readpath", fs=below)
    with below.open(url, cache_type="none") as file:
        file.read(BLOCK)
    with ours.open(url) if kind == "readpath" else below.open(url, cache_type=kind) as file:
        quarter = file.size // BLOCK // 4
        orders = {
            "backward": range(64, 0, -1),
            "interleaved": [stream * quarter + nth for nth in range(16) for stream in range(4)],
            "stride": range(0, 4 * 64, 4),
        }
        began = time.perf_counter()
        for nth in orders[part]:
            file.seek(nth % (file.size // BLOCK) * BLOCK)
            file.read(BLOCK)
        return {"ms": (time.perf_counter() - began) * 1e3}


def random_reads(url, kind):
    """64 random reads, one by one or together."""
    import readpath

    with readpath.open(url) as file:
        draw = random.Random(0)
        ranges = [(draw.randrange(file.size // BLOCK) * BLOCK, BLOCK) for _ in range(64)]
        file.readat(file.size - 1, 1)
        began = time.perf_counter()
        if kind == "one by one":
            pieces = [file.readat(*one) for one in ranges]
        else:
            pieces = file.readat_many(ranges)
        assert all(len(piece) == BLOCK for piece in pieces)
        return {"ms": (time.perf_counter() - began) * 1e3}


def cached(path, kind):
    """Reads of a cached 4 KiB page."""
    import readpath

    places = [random.Random(1).randrange(256) * 4096 for _ in range(10_000)]
    buffer = bytearray(4096)
    with readpath.open(path, memory="16MiB") as file, open(path, "rb") as plain:
        file.readat(0, 1 << 20)
        read, pread, handle = file.readinto_at, os.pread, plain.fileno()
        pread(handle, 1 << 20, 0)
        best = []
        for _ in range(20):
            began = time.perf_counter()
            if kind == "readinto_at":
                for place in places:
                    read(place, buffer)
            else:
                for place in places:
                    pread(handle, 4096, place)
            best.append((time.perf_counter() - began) / len(places))
    return {"us": statistics.median(best) * 1e6}


PARTS = {
    "stream": (stream, ["readpath", "adaptive", "readahead", "readpath, 9 MiB"]),
    "backward": (pattern, ["readpath", "adaptive", "readahead"]),
    "interleaved": (pattern, ["readpath", "adaptive", "readahead"]),
    "stride": (pattern, ["readpath", "adaptive", "readahead"]),
    "random": (random_reads, ["one by one", "readat_many"]),
    "cached": (cached, ["readinto_at", "os.pread"]),
}


def alone(part, where, kind):
    """Runs one measurement in a fresh process."""
    command = [sys.executable, __file__, "--one", part, where, kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{part} {kind}: {done.stderr}")
    return {"part": part, "kind": kind} | json.loads(done.stdout)


def medians(rows):
    groups = {}
    for row in rows:
        groups.setdefault((row["part"], row["kind"]), []).append(row)
    return [
        {"part": part, "kind": kind}
        | {
            key: statistics.median(row[key] for row in group)
            for key in group[0]
            if key not in ("part", "kind")
        }
        for (part, kind), group in groups.items()
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--smoke", action="store_true", help="a small size, once")
    parser.add_argument("--out", type=Path, help="write the document here")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        part, where, kind = arguments.one
        measure = PARTS[part][0]
        print(json.dumps(measure(where, kind, *([part] if measure is pattern else []))))
        return
    mib, times = (8, 1) if arguments.smoke else (512, 5)
    rows = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        path = Path(folder) / "data"
        with path.open("wb") as file:
            for _ in range(mib):
                file.write(os.urandom(1 << 20))
        with delayed_store.running(path, DELAY_MS) as url:
            for _ in range(times):
                for part, (_, kinds) in PARTS.items():
                    where = str(path) if part == "cached" else url
                    rows += [alone(part, where, kind) for kind in kinds]
    import fsspec

    import readpath

    versions = {"readpath": readpath.__version__, "fsspec": fsspec.__version__}
    versions |= {"python": platform.python_version(), "system": platform.release()}
    document = {"versions": versions, "mib": mib, "delay_ms": DELAY_MS}
    document |= {"medians": medians(rows), "rows": rows}
    text = json.dumps(document, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
