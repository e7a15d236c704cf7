#!/usr/bin/env python3
"""What `readpath watch` costs a program that reads 50,000 times a second from the page cache.

usage: bench/watch_overhead.py [--times N] [--command PATH] [--without-root]     (default 12; about half a minute)

Needs root, also to take it as a user without rights (`setpriv`, with `--without-root`). The program reads 4 KiB at random places of 64 MiB, which the kernel holds, and computes for about 18 µs
between two reads, so about 50,000 times a second. It measures its own processor time; with and without a
watch by turns. Prints the medians in µs a read with what it computes, the difference, and how many events were lost.
"""

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READS, FILE_BYTES = 50_000, 64 << 20
# What takes about 18 µs.
COMPUTED = range(1900)


def program(path):
    """Prints how long a read takes, in µs."""
    handle = os.open(path, os.O_RDONLY)
    draw = random.Random(1)
    places = [draw.randrange(FILE_BYTES // 4096) * 4096 for _ in range(READS)]
    for at in range(0, FILE_BYTES, 1 << 20):
        os.pread(handle, 1 << 20, at)
    pread, begun = os.pread, time.process_time_ns()
    for place in places:
        pread(handle, 4096, place)
        for _ in COMPUTED:
            pass
    print((time.process_time_ns() - begun) / READS / 1e3)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--program", type=Path)
    parser.add_argument("--times", type=int, default=12)
    parser.add_argument("--command", type=Path, default=ROOT / "target/release/readpath")
    parser.add_argument("--without-root", action="store_true")
    arguments = parser.parse_args()
    if arguments.program:
        return program(arguments.program)
    if os.geteuid() != 0:
        sys.exit(__doc__)
    took, lost = {False: [], True: []}, 0
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as folder:
        data, recording = Path(folder) / "data", Path(folder) / "reads.rec"
        data.write_bytes(os.urandom(FILE_BYTES))
        os.chmod(folder, 0o777)
        user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"] if arguments.without_root else []
        for nth in range(2 * arguments.times):
            is_watched = nth % 2 == 1
            before = [arguments.command.resolve(), "watch", "-o", recording, "--"] if is_watched else []
            # Another user may not enter what root has of its own.
            python = "/usr/bin/python3" if user else sys.executable
            words = [*user, *before, python, Path(__file__).resolve(), "--program", data]
            ran = subprocess.run(words, check=True, capture_output=True, text=True)
            took[is_watched].append(float(ran.stdout))
            found = re.search(r"(\d+) events were lost", ran.stderr)
            lost += int(found[1]) if found else 0
    alone, watched = statistics.median(took[False]), statistics.median(took[True])
    more = watched / alone - 1
    print(f"a read and what is computed: {alone:.2f} us alone, {watched:.2f} us watched, {more:.1%} more; {lost} events lost")


if __name__ == "__main__":
    main()
