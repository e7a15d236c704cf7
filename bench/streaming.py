#!/usr/bin/env python3
"""Memory and time of commands that read a large recording.

usage: bench/streaming.py [--events N] [--files N] [--command PATH] [--on FOLDER] [--save]
       (default 100000000, 100000)

`cargo run --example large_recording` writes a recording of N events, and a second one of a tenth.
Both take about nine bytes an event in FOLDER (default: a temporary one next to the build); their
output takes as much again. `--save` writes the rows to bench/results/streaming.json.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import built

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = [
    ("explain", ["explain", "large.rec"]),
    ("explain --html", ["explain", "large.rec", "--html", "page.html"]),
    ("recording cut", ["recording", "cut", "large.rec", "--from", "10s", "-o", "cut.rec"]),
    ("recording anonymize", ["recording", "anonymize", "large.rec", "-o", "cut.rec"]),
    ("recording show", ["recording", "show", "large.rec"]),
    ("recording merge", ["recording", "merge", "large.rec", "second.rec", "-o", "cut.rec"]),
    ("recording export", ["recording", "export", "large.rec", "--as", "iolog"]),
]


def make(path, *numbers):
    words = ["cargo", "run", "--quiet", "-p", "readpath-sim", "--example", "large_recording", "--", *map(str, numbers)]
    with open(path, "wb") as recording:
        subprocess.run(words, cwd=ROOT, check=True, stdout=recording)


def measured(words, folder):
    """Seconds, and peak memory in MiB."""
    begun = time.monotonic()
    with open(os.devnull, "wb") as nowhere:
        child = subprocess.Popen(words, cwd=folder, stdout=nowhere)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit code {child.returncode}")
    return time.monotonic() - begun, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--events", type=int, default=100_000_000)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--command", type=Path, default=built.COMMAND)
    parser.add_argument("--on", type=Path, default=built.TARGET)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.on) as folder:
        folder = Path(folder)
        make(folder / "large.rec", arguments.events, arguments.files, 1)
        make(folder / "second.rec", arguments.events // 10, arguments.files // 10, 2)
        mib = (folder / "large.rec").stat().st_size / (1 << 20)
        print(f"{arguments.events} events of {arguments.files} files, {mib:.0f} MiB\n{'command':18} {'s':>8} {'MiB':>8}")
        for name, words in COMMANDS:
            seconds, memory = measured([arguments.command.resolve(), *words], folder)
            rows.append({"command": name, "seconds": seconds, "memory_mib": memory})
            print(f"{name:18} {seconds:8.1f} {memory:8.1f}", flush=True)
    if arguments.save:
        result = {"machine": f"{platform.machine()}, Linux {platform.release()}", "events": arguments.events,
                  "files": arguments.files, "recording_mib": mib, "rows": rows}
        (ROOT / "bench/results/streaming.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
