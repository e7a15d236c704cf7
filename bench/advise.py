#!/usr/bin/env python3
"""Programs on a device of a millisecond a request, with and without `readpath advise`.

usage: bench/advise.py [--times N] [--mib N] [--memory SIZE] [--command PATH] [--only NAME] [--user]
       [--save] (default 5, 256)

Needs root, and for the last two rows `db_bench` (Debian's rocksdb-tools). The device is that
`bench/one_head.py constant` uses. A loop device with the kernel's default readahead of 128 KiB and
an ext4 file system lie above it. The files are dropped from the kernel's page cache before each
run, and the order alternates. A program measures itself. `--user` runs the rows as an ordinary user,
who may only read the files of the first three and owns the databases; the recording is made as root. `--save` writes the rows to
bench/results/advise.json, or to bench/results/advise-user.json.

- `mapped`: tensors of one file in a new random order for each run; a byte of each page is touched
  in a mapping;
- `pread`: the same, each tensor by one call; `pieces`: the same, by calls of 64 KiB;
- `readrandom`, `seekrandom`: db_bench for ten seconds on a database of a GiB.

The first three rows also run with `advise --from`: the pages of one recorded run, whose order was
another, are brought in next to the program. They also have upper bounds. `cached`: the program with its whole file in the page
cache. `foreseen`: another process reads the whole file in order by readahead(2), four calls of
1,280 KiB at once, from the moment at which the program opens it.
"""

import argparse
import concurrent.futures
import ctypes
import json
import mmap
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import one_head

ROWS = ["mapped", "pread", "pieces", "readrandom", "seekrandom"]
OF_TENSORS = ROWS[:3]
USER = 65534
CALL_BYTES = 1280 << 10
CALLS_AT_ONCE = 4
SIZES_KIB = [64, 512, 1024, 4096, 6144]


def lay_out(path, mib):
    """Writes a file of tensors; returns the offset and length of each."""
    draw = random.Random(7)
    tensors, at = [], 4096
    while at < mib << 20:
        size = draw.choice(SIZES_KIB) << 10
        tensors.append((at, size))
        at += size
    with open(path, "wb") as file:
        file.write(bytes(4096))
        for _, size in tensors:
            file.write(random.randbytes(size))
        os.fsync(file.fileno())
    Path(f"{path}.json").write_text(json.dumps(tensors))


def program(name, path, seed):
    """One pass over the tensors; prints its seconds and a sum of the bytes."""
    tensors = json.loads(Path(f"{path}.json").read_text())
    order = random.Random(int(seed)).sample(tensors, len(tensors))
    begun, found = time.monotonic(), {}
    handle = os.open(path, os.O_RDONLY)
    data = memoryview(mmap.mmap(handle, 0, prot=mmap.PROT_READ)) if name == "mapped" else None
    for at, size in order:
        if name == "mapped":
            found[at] = zlib.crc32(bytes(data[at : at + size : 4096]))
        elif name == "pread":
            found[at] = zlib.crc32(os.pread(handle, size, at))
        else:
            parts = range(at, at + size, 64 << 10)
            found[at] = sum(zlib.crc32(os.pread(handle, 64 << 10, part)) for part in parts)
    seconds = time.monotonic() - begun
    print(json.dumps({"seconds": seconds, "sum": zlib.crc32(json.dumps(sorted(found.items())).encode())}))


def cold(path):
    """Drops a file of the device from the kernel's page cache, not the backing file."""
    if path.is_file():
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def has_open(process, path):
    """True if a process has the file open."""
    folder = Path(f"/proc/{process}/fd")
    try:
        return any(os.readlink(entry) == str(path) for entry in folder.iterdir())
    except OSError:
        return False


class Bench:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.tensors = folder / "tensors"
        lay_out(self.tensors, arguments.mib)
        self.database = folder / "db"
        self.recordings = {}

    def has(self, name):
        if name in OF_TENSORS:
            return True
        if not shutil.which("db_bench"):
            return False
        if not self.database.exists():
            self.db_bench("fillseq", ["--num=1000000", "--value_size=1000"], [])
            # db_bench needs a lock file and a log of its own.
            if self.arguments.user:
                subprocess.run(["chown", "-R", f"{USER}:{USER}", self.database], check=True)
        return True

    def db_bench(self, name, options, before):
        command = [*before, "db_bench", f"--db={self.database}", f"--benchmarks={name}",
                   "--compression_type=none", *options]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            sys.exit(ran.stderr)
        return ran

    def drop(self):
        subprocess.run(["sync"], check=True)
        for path in self.folder.rglob("*"):
            cold(path)

    def program(self, name, nth):
        python = "/usr/bin/python3" if self.arguments.user else sys.executable
        return [python, __file__, "--program", name, self.tensors, str(nth)]

    def limits(self, name, nth):
        """Seconds of a program with its file foreseen, and with it cached."""
        self.drop()
        handle, size = os.open(self.tensors, os.O_RDONLY), self.tensors.stat().st_size
        bring = ctypes.CDLL(None, use_errno=True).readahead
        bring.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_size_t]
        seconds = []
        with concurrent.futures.ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
            with subprocess.Popen(self.program(name, nth), stdout=subprocess.PIPE, text=True) as running:
                while running.poll() is None and not has_open(running.pid, self.tensors):
                    pass
                list(pool.map(lambda at: bring(handle, at, CALL_BYTES), range(0, size, CALL_BYTES)))
                seconds.append(json.loads(running.stdout.read())["seconds"])
        os.close(handle)
        ran = subprocess.run(self.program(name, nth), capture_output=True, text=True, check=True)
        return [*seconds, json.loads(ran.stdout)["seconds"]]

    def recording(self, name):
        """A recording of one cold run in an order of its own."""
        if name not in self.recordings:
            self.drop()
            path = Path(self.scratch) / f"{name}.rec"
            command = [one_head.COMMAND, "record", "-o", path, "--", *self.program(name, 1_000_000)]
            subprocess.run(command, capture_output=True, check=True)
            self.recordings[name] = path
        return self.recordings[name]

    def run(self, name, nth, help):
        """Seconds of a run, or of an operation in it, and the report about the advice."""
        before = []
        if help:
            before = [one_head.COMMAND, "advise", "--memory", self.arguments.memory]
            before += ["--from", self.recording(name), "--"] if help == "recorded" else ["--"]
        self.drop()
        if self.arguments.user:
            before = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *before]
        if name in OF_TENSORS:
            ran = subprocess.run([*before, *self.program(name, nth)], capture_output=True, text=True)
            if ran.returncode:
                sys.exit(ran.stderr)
            return json.loads(ran.stdout)["seconds"], ran.stderr
        options = ["--use_existing_db", "--num=1000000", "--value_size=1000", "--duration=10",
                   f"--seed={nth + 1}"]
        ran = self.db_bench(name, options, before)
        each = re.search(rf"{name}\s*:\s*([\d.]+) micros/op", ran.stdout)
        return float(each[1]) / 1e6, ran.stderr


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--program", nargs=3)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--command", type=Path)
    parser.add_argument("--only", choices=ROWS, action="append")
    parser.add_argument("--user", action="store_true")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    if arguments.program:
        return program(*arguments.program)
    if os.geteuid() != 0:
        sys.exit(__doc__)
    if arguments.command:
        one_head.COMMAND = arguments.command.resolve()
    device, is_rotational, _ = one_head.DEVICES["constant"]
    rows = []
    with (
        tempfile.TemporaryDirectory() as served,
        one_head.Disk(device, is_rotational, served) as disk,
    ):
        Path(f"/sys/block/{disk.name}/queue/read_ahead_kb").write_text("128")
        with one_head.mounted(disk) as folder, tempfile.TemporaryDirectory() as scratch:
            bench = Bench(arguments, folder)
            bench.scratch = scratch
            if arguments.user:
                # The mount and the recording may lie in private folders.
                for private in [folder.parent, Path(scratch)]:
                    if private.stat().st_mode & 0o777 == 0o700:
                        private.chmod(0o711)
            rows.append(floor(bench, arguments.times))
            for name in filter(bench.has, arguments.only or ROWS):
                rows.append(measure(bench, name, arguments.times))
    if arguments.save:
        machine = f"{platform.machine()}, Linux {platform.release()}"
        result = {"machine": machine, "device": device, "memory": arguments.memory, "rows": rows}
        path = one_head.ROOT / f"bench/results/advise{'-user' * arguments.user}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")


def floor(bench, times):
    """Maximum rate of the device: the file in order by direct I/O, 8 MiB at a time."""
    seconds = []
    for _ in range(times):
        begun = time.monotonic()
        command = ["dd", f"if={bench.tensors}", "of=/dev/null", "bs=8M", "iflag=direct", "status=none"]
        subprocess.run(command, check=True)
        seconds.append(time.monotonic() - begun)
    print(f"{'direct':12} {statistics.median(seconds):.6f} s")
    return {"name": "direct", "alone": seconds}


def measure(bench, name, times):
    ways = ["", "helped", "recorded"] if name in OF_TENSORS else ["", "helped"]
    seconds, told, limits = {way: [] for way in ways}, [], []
    for nth in range(times):
        if name in OF_TENSORS:
            limits.append(bench.limits(name, nth))
        for way in ways if nth % 2 == 0 else reversed(ways):
            took, said = bench.run(name, nth, way)
            seconds[way].append(took)
            if way == "helped":
                told += [line for line in said.splitlines() if line.startswith("readpath:")]
    alone, helped = (statistics.median(seconds[way]) for way in ("", "helped"))
    print(f"{name:12} alone {alone:.6f} s, helped {helped:.6f} s: {alone / helped:.2f} times as fast", flush=True)
    row = {"name": name, "ratio": alone / helped, "alone": seconds[""], "helped": seconds["helped"], "told": told}
    if "recorded" in seconds:
        recorded = statistics.median(seconds["recorded"])
        print(f"  from a recording {recorded:.6f} s: {alone / recorded:.2f} times as fast", flush=True)
        row["recorded"] = seconds["recorded"]
    if limits:
        row["foreseen"], row["cached"] = map(list, zip(*limits, strict=True))
        foreseen, cached = statistics.median(row["foreseen"]), statistics.median(row["cached"])
        print(f"  foreseen {foreseen:.6f} s ({alone / foreseen:.2f} times as fast), cached {cached:.6f} s; "
              f"load {os.getloadavg()[0]:.1f}", flush=True)
    if told:
        print("  " + "\n  ".join(told[-3:]), flush=True)
    return row


if __name__ == "__main__":
    main()
