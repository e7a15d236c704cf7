#!/usr/bin/env python3
"""Predictions of `readpath replay` for a change, compared with the measured effect.

usage: bench/predicted.py [--times N] [--command PATH] [--only PART] [--save]   (default 3)

Needs root. A program reads a file of 64 MiB behind `readpath emulate`, and `readpath record`
records it. Its time after a change is predicted from the recording, on the device that `readpath
devices measure` describes. Then the program runs with the change. There are three kinds:

- device: from 1 ms a request and 200 MB/s to 4 ms and 100 MB/s;
- policy: kernel readahead is off, or the program reads by the library under a policy (`readpath
  run`);
- memory: a control group with less or more memory for the kernel's pages, or an own cache.

The file is not in memory at first. Each measurement is taken N times, interleaved, and medians are
compared. `--save` writes the rows to bench/results/predicted.json.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import built

ROOT = Path(__file__).resolve().parent.parent
FILE_BYTES = 64 << 20
PAGE = 4096


def device(request_us, mb_per_s):
    points = ",".join(f"first_byte_{at}={request_us}" for at in ["min", "p50", "p90", "p99", "max"])
    return f"object,connections=64,get_rate=100000,connection={mb_per_s},{points}"


NEAR, FAR = device(1000, 200), device(4000, 100)


def places(count, seed, pages=FILE_BYTES // PAGE):
    return [page * PAGE for page in random.Random(seed).sample(range(pages), count)]


def reads(offsets, size=PAGE, work_us=0):
    return [(offset, size, work_us) for offset in offsets]


# Reads of the threads of each program: lists of offset, size, and microseconds of work before.
PROGRAMS = {
    "random": [reads(places(1500, 1))],
    "random, work between": [reads(places(1000, 2), PAGE, 1000)],
    "in order": [reads(range(0, FILE_BYTES, 64 << 10), 64 << 10)],
    "small, in order": [reads(range(0, 16 << 20, 16 << 10), 16 << 10)],
    "random, twice": [reads(places(1200, 3) * 2)],
    "stride": [reads(range(0, FILE_BYTES, 48 << 10))],
    "threads": [reads(places(600, seed)) for seed in range(4)],
    "in order, twice": [reads([*range(0, FILE_BYTES, 64 << 10)] * 2, 64 << 10)],
    "hot and cold": [reads([offset for round in range(8) for offset in places(150, 5, 150) + places(150, 10 + round)])],
}

# The program, with as little work besides its reads as possible. Arguments: the file, the group
# that it enters, its advice to the kernel, and a file with the reads of each thread.
PROGRAM = """
import os, sys, time
path, group, advice, *threads = sys.argv[1:]
lists = [[tuple(map(int, line.split())) for line in open(name)] for name in threads]
handle = os.open(path, os.O_RDONLY)
if advice:
    os.posix_fadvise(handle, 0, 0, getattr(os, advice))
if group:
    with open(group + "/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))
def run(reads):
    for offset, size, work_us in reads:
        until = time.perf_counter() + work_us / 1e6
        while work_us and time.perf_counter() < until:
            pass
        os.pread(handle, size, offset)
if len(lists) == 1:
    run(lists[0])
else:
    import threading
    threads = [threading.Thread(target=run, args=(reads,)) for reads in lists]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
"""

JOBS = {
    "stride": "rw=read:44k\nbs=4k\nsize=64m\nio_size=5m",
    "four streams": "rw=read\nbs=16k\nnumjobs=4\nfilename=f\nsize=16m\noffset_increment=16m\nthinktime=1000",
    "random": "rw=randread\nbs=4k\nsize=64m\nio_size=6m\nrandseed=7",
    "skewed": "rw=randread\nbs=4k\nsize=64m\nio_size=10m\nrandom_distribution=zipf:1.1\nnorandommap=1\nrandseed=9",
}


class Group:
    """A control group with this much memory for pages."""

    # Memory of the interpreter and its buffers, in addition to the pages.
    OWN_BYTES = 1 << 20

    def __init__(self, page_bytes):
        first = Path("/sys/fs/cgroup/memory")
        self.path = (first if first.exists() else Path("/sys/fs/cgroup")) / f"readpath-predicted-{os.getpid()}"
        self.path.mkdir()
        limit = "memory.limit_in_bytes" if first.exists() else "memory.max"
        (self.path / limit).write_text(str(page_bytes + Group.OWN_BYTES))

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        while True:
            try:
                return self.path.rmdir()
            except OSError:
                time.sleep(0.05)


class Served:
    """A device behind a file."""

    def __init__(self, command, name, folder):
        self.command, self.name, self.folder = command, name, folder

    def __enter__(self):
        self.folder.mkdir()
        backing = self.folder.parent / "data"
        words = [self.command, "emulate", self.name, "--at", self.folder, "--backing", backing]
        # The device keeps its time under any other load of the machine.
        first = lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(2))
        self.server = subprocess.Popen(words, stdout=subprocess.DEVNULL, preexec_fn=first)
        while not (self.folder / "device").exists():
            if self.server.poll() is not None:
                sys.exit("the device could not be served")
            time.sleep(0.05)
        return self.folder / "device"

    def __exit__(self, *_):
        self.server.send_signal(signal.SIGTERM)
        self.server.wait()


def python(name, advice=""):
    return lambda folder, path, group: [sys.executable, "-I", "-S", "-c", PROGRAM, path, group or "", advice,
                                        *(folder / f"{name}.{nth}" for nth in range(len(PROGRAMS[name])))]


def job(name, storage, *options):
    return lambda folder, path, group: ["JOB", folder / f"{name}.fio", "--on", f"{storage}:{path}", *options]


MODEL = ["--scheduler", "noop"]
KERNEL = ["--readahead", "ondemand"]
# Kind, name; the recorded program, its memory for pages; the options of the prediction; the device,
# the program and its memory after the change. No memory: all of the machine's.
CASES = [
    *[("device", name, python(name), None, KERNEL, FAR, python(name), None)
      for name in ["random", "random, work between", "in order", "random, twice", "stride", "threads"]],
    ("policy", "small, in order: nothing ahead", python("small, in order"), None, ["--readahead", "none"], NEAR,
     python("small, in order", "POSIX_FADV_RANDOM"), None),
    ("policy", "stride: adaptive", job("stride", "kernel"), None, ["--readahead", "adaptive"], NEAR,
     job("stride", "file", "--readahead", "adaptive", "--scheduler", "noop"), None),
    ("policy", "four streams: adaptive", job("four streams", "kernel"), None, ["--readahead", "adaptive"], NEAR,
     job("four streams", "file", "--readahead", "adaptive", "--scheduler", "noop"), None),
    ("policy", "random: adaptive", job("random", "kernel"), None, ["--readahead", "adaptive"], NEAR,
     job("random", "file", "--readahead", "adaptive", "--scheduler", "noop"), None),
    ("memory", "in order, twice: enough", python("in order, twice"), 8 << 20, [*KERNEL, "--memory", "1GiB"], NEAR,
     python("in order, twice"), None),
    ("memory", "in order, twice: a third", python("in order, twice"), None, [*KERNEL, "--memory", "8MiB"], NEAR,
     python("in order, twice"), 8 << 20),
    ("memory", "hot and cold: 2 MiB", python("hot and cold"), None, [*KERNEL, "--memory", "2MiB"], NEAR,
     python("hot and cold"), 2 << 20),
    ("memory", "skewed: our cache of 4 MiB", job("skewed", "kernel"), None,
     ["--readahead", "none", "--memory", "4MiB", "--eviction", "adaptive"], NEAR,
     job("skewed", "file", "--readahead", "none", "--scheduler", "noop", "--memory", "4MiB"), None),
]


class Bench:
    def __init__(self, command, folder):
        self.command, self.folder, self.count = command, folder, 0
        with open(folder / "data", "wb") as data:
            data.write(os.urandom(FILE_BYTES))
        self.measured = {}
        for name, text in JOBS.items():
            (folder / f"{name}.fio").write_text(f"[j]\n{text}\n")
        for name, threads in PROGRAMS.items():
            for nth, reads in enumerate(threads):
                (folder / f"{name}.{nth}").write_text("".join("%d %d %d\n" % read for read in reads))

    def run(self, device_name, words_of, page_bytes, before=()):
        """Seconds of a program, from its start to its end."""
        self.count += 1
        with contextlib.ExitStack() as stack:
            path = stack.enter_context(Served(self.command, device_name, self.folder / str(self.count)))
            group = stack.enter_context(Group(page_bytes)) if page_bytes else None
            words = words_of(self.folder, path, group)
            if words[0] == "JOB":
                words = [self.command, "run", *words[1:]]
            begun = time.monotonic()
            ran = subprocess.run([*before, *words], capture_output=True, text=True)
            seconds = time.monotonic() - begun
            if ran.returncode:
                sys.exit(f"{' '.join(map(str, words))}: {ran.stderr}")
        return seconds

    def profile(self, device_name):
        """The device as `readpath devices measure` describes it."""
        if device_name not in self.measured:
            toml = self.folder / f"{len(self.measured)}.toml"
            self.run(device_name, lambda _, path, __: [self.command, "devices", "measure", path, "--toml", toml], None)
            # Space for the program's own files as well.
            toml.write_text(toml.read_text().replace(f"\nbytes = {FILE_BYTES}", f"\nbytes = {FILE_BYTES * 64}", 1))
            self.measured[device_name] = f"measured,toml={toml}"
        return self.measured[device_name]

    def predicted(self, device_name, recording, options):
        """Seconds as recorded, and as predicted."""
        words = [self.command, "replay", recording, "--on", self.profile(device_name), *MODEL, *options, "--json"]
        ran = subprocess.run(words, capture_output=True, text=True)
        if ran.returncode:
            sys.exit(ran.stderr)
        return [row["seconds"] for row in json.loads(ran.stdout)["results"]]

    def case(self, times, case):
        kind, name, recorded, recorded_bytes, options, then_device, then, then_bytes = case
        rows = []
        for _ in range(times):
            recording = self.folder / "reads.rec"
            watch = [self.command, "record", "-o", recording, "--"]
            self.run(NEAR, recorded, recorded_bytes, watch)
            before, predicted = self.predicted(then_device, recording, options)
            rows.append((before, predicted, self.run(then_device, then, then_bytes)))
        before, predicted, measured = (statistics.median(column) for column in zip(*rows))
        return {"kind": kind, "name": name, "recorded": before, "predicted": predicted, "measured": measured,
                "error": predicted / measured - 1, "rows": rows}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--command", type=Path, default=built.COMMAND)
    parser.add_argument("--only", default="")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit(__doc__)
    # Real-time priority keeps other programs out of the measurement.
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    rows = []
    print(f"{'change':8} {'program':32} {'recorded s':>10} {'predicted s':>12} {'then s':>7} {'error':>6}")
    with tempfile.TemporaryDirectory(dir=built.TARGET) as folder:
        bench = Bench(arguments.command.resolve(), Path(folder))
        for case in CASES:
            if arguments.only not in f"{case[0]}: {case[1]}":
                continue
            row = bench.case(arguments.times, case)
            rows.append(row)
            print(f"{row['kind']:8} {row['name']:32} {row['recorded']:10.2f} {row['predicted']:12.2f} "
                  f"{row['measured']:7.2f} {row['error']:+6.0%}", flush=True)
    errors = [abs(row["error"]) for row in rows]
    print(f"within 15 %: {sum(error <= 0.15 for error in errors)} of {len(errors)}; "
          f"within 30 %: {sum(error <= 0.30 for error in errors)}")
    if arguments.save:
        machine = f"{platform.machine()}, Linux {platform.release()}"
        (ROOT / "bench/results/predicted.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
