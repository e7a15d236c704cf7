#!/usr/bin/env python3
"""Overhead of `readpath record` for a program with 50,000 cached reads a second.

usage: bench/watch_overhead.py [--times N] [--command PATH] [--without-root]
       (default 12; about half a minute)

Needs root, also with `--without-root`, which runs as an unprivileged user (`setpriv`). The program
reads 4 KiB at random places of 64 MiB in the kernel's page cache, and computes for about 18 us
between two reads. It measures its own processor time, with and without recording, alternating.
Prints the medians in us a read with the computation, the difference, and the number of lost events.
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

import built

READS, FILE_BYTES = 50_000, 64 << 20
# Work of about 18 us.
COMPUTED = range(1900)


def program(path):
    """Prints the time of a read, in us."""
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
    parser.add_argument("--command", type=Path, default=built.COMMAND)
    parser.add_argument("--without-root", action="store_true")
    arguments = parser.parse_args()
    if arguments.program:
        return program(arguments.program)
    if os.geteuid() != 0:
        sys.exit(__doc__)
    took, lost = {False: [], True: []}, 0
    with tempfile.TemporaryDirectory(dir=built.TARGET) as folder:
        data, recording = Path(folder) / "data", Path(folder) / "reads.rec"
        data.write_bytes(os.urandom(FILE_BYTES))
        os.chmod(folder, 0o777)
        user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"] if arguments.without_root else []
        for nth in range(2 * arguments.times):
            is_watched = nth % 2 == 1
            before = [arguments.command.resolve(), "record", "-o", recording, "--"] if is_watched else []
            # Another user has no access to root's own folders.
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
