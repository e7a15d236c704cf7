#!/usr/bin/env python3
"""Gains that `readpath explain` predicts, next to the gains of the applied remedies.

usage: bench/gains.py [--device NAME,...] [--only NAME,...] [--times N] [--command PATH] [--save]
       (default network,nvme,folder, all programs, 3)

Needs root. `network` and `nvme` are the emulated devices of `bench/latency.py`, with ext4; `folder`
is the folder of temporary files. Each program has one fault. It runs alone, under `explain`, and
with the remedy, in turn, with a cold file; medians count. `--save` writes the rows to bench/results/gains.json.
"""

import argparse
import concurrent.futures
import contextlib
import json
import mmap
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import latency
import one_head

MIB = 1 << 20
FILE_BYTES = 256 * MIB
FILES = 2000


def offsets(count: int, step: int) -> list[int]:
    """Distinct random multiples of `step` in the file."""
    return [slot * step for slot in random.Random(7).sample(range(FILE_BYTES // step), count)]


def read_all(file: int, places: list[int], size: int, threads: int) -> None:
    """Reads at each place, with this number of threads."""
    def part(number: int) -> None:
        memory = mmap.mmap(-1, size)
        for place in places[number::threads]:
            os.preadv(file, [memory], place)

    if threads == 1:
        part(0)
        return
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, range(threads)))


def random_reads(folder: pathlib.Path, with_remedy: bool, size: int, count: int, flags: int) -> None:
    file = os.open(folder / "data", os.O_RDONLY | flags)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    read_all(file, offsets(count, size), size, 16 if with_remedy else 1)


def direct_4k(folder: pathlib.Path, with_remedy: bool) -> None:
    random_reads(folder, with_remedy, 4096, 1500, os.O_DIRECT)


def buffered_16k(folder: pathlib.Path, with_remedy: bool) -> None:
    random_reads(folder, with_remedy, 16384, 1500, 0)


def small_direct(folder: pathlib.Path, with_remedy: bool) -> None:
    """Direct reads of 16 KiB in order; the remedy is 256 KiB a read."""
    file = os.open(folder / "data", os.O_RDONLY | os.O_DIRECT)
    size = 262144 if with_remedy else 16384
    read_all(file, list(range(0, 32 * MIB, size)), size, 1)


def slices(folder: pathlib.Path, with_remedy: bool) -> None:
    """Slices of 64 KiB in a mapping with MADV_RANDOM; the remedy is MADV_WILLNEED for each."""
    with open(folder / "data", "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapping.madvise(mmap.MADV_RANDOM)
    for place in offsets(100, 65536):
        if with_remedy:
            mapping.madvise(mmap.MADV_WILLNEED, place, 65536)
        for page in range(place, place + 65536, 4096):
            mapping[page]


def advised(folder: pathlib.Path, with_remedy: bool) -> None:
    """Reads of 16 KiB in order under POSIX_FADV_RANDOM; the remedy is no advice."""
    file = os.open(folder / "data", os.O_RDONLY)
    if not with_remedy:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    read_all(file, list(range(0, 32 * MIB, 16384)), 16384, 1)


def files(folder: pathlib.Path, with_remedy: bool) -> None:
    """Files of 16 KiB, one after the other; the remedy is 16 threads."""
    def read(number: int) -> None:
        (folder / f"files/{number}").read_bytes()

    with concurrent.futures.ThreadPoolExecutor(16 if with_remedy else 1) as pool:
        list(pool.map(read, range(FILES)))


def stream(folder: pathlib.Path, with_remedy: bool) -> None:
    """Reads of 64 KiB in order through the page cache; the remedy is the window that `explain` names."""
    device = os.stat(folder).st_dev
    setting = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue/read_ahead_kb")
    before = setting.read_text()
    try:
        if with_remedy:
            setting.write_text(os.environ["WINDOW_KIB"])
        file = os.open(folder / "data", os.O_RDONLY)
        read_all(file, list(range(0, 128 * MIB, 65536)), 65536, 1)
    finally:
        setting.write_text(before)


PROGRAMS = {
    "direct_4k": (direct_4k, "depth"),
    "buffered_16k": (buffered_16k, "depth"),
    "small_direct": (small_direct, "small"),
    "slices": (slices, "page_faults"),
    "advised": (advised, "advice"),
    "files": (files, "many_files"),
    "stream": (stream, "readahead"),
}


def lay_out(folder: pathlib.Path) -> None:
    (folder / "files").mkdir()
    with open(folder / "data", "wb") as file:
        for _ in range(FILE_BYTES // MIB):
            file.write(os.urandom(MIB))
    for number in range(FILES):
        (folder / f"files/{number}").write_bytes(os.urandom(16384))
    os.sync()


def make_cold(folder: pathlib.Path) -> None:
    for path in [folder / "data", *(folder / "files").iterdir()]:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def once(folder: pathlib.Path, name: str, way: str) -> dict:
    """Runs a program in a new process: "alone", "remedy", or "explained"."""
    make_cold(folder)
    program = [sys.executable, __file__, "--program", name, "--folder", str(folder)]
    program += ["--with-remedy"] if way == "remedy" else []
    if way != "explained":
        done = subprocess.run(program, check=True, capture_output=True, text=True)
        return {"seconds": float(done.stdout)}
    with tempfile.NamedTemporaryFile() as output:
        command = [one_head.COMMAND, "explain", "--json", "--", "sh", "-c", f'exec "$@" > {output.name}', "sh"]
        done = subprocess.run([*command, *program], check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)["findings"]
    cause = PROGRAMS[name][1]
    return next((finding for finding in found if finding["cause"] == cause), {"found": [it["cause"] for it in found]})


def measure(device: str, folder: pathlib.Path, name: str, times: int) -> dict:
    seconds, predicted, findings = {"alone": [], "remedy": []}, [], []
    for _ in range(times):
        for way in ("alone", "explained", "remedy"):
            run = once(folder, name, way)
            if way == "explained":
                findings.append(run)
                if gain := run.get("gain", {}).get("measured"):
                    predicted.append(gain["saved_seconds"])
                    os.environ["WINDOW_KIB"] = "".join(filter(str.isdigit, gain["with"]))
            else:
                seconds[way].append(run["seconds"])
    gained = statistics.median(seconds["alone"]) - statistics.median(seconds["remedy"])
    row = {"device": device, "program": name, "seconds": seconds, "gained": gained, "predicted": predicted,
           "findings": findings}
    error = f"{statistics.median(predicted) / gained - 1:+7.0%}" if predicted else "  none"
    shown = f"{statistics.median(predicted):9.3f}" if predicted else "        -"
    print(f"{device:8} {name:13} {statistics.median(seconds['alone']):8.3f} {gained:8.3f} {shown} {error}", flush=True)
    if not predicted:
        print(f"    {findings[-1].get('gain', findings[-1])}")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--device", default="network,nvme,folder")
    parser.add_argument("--only", default=",".join(PROGRAMS))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--command", type=pathlib.Path)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--with-remedy", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.program:
        began = time.perf_counter()
        PROGRAMS[arguments.program][0](arguments.folder, arguments.with_remedy)
        print(time.perf_counter() - began)
        return
    if os.geteuid() != 0:
        sys.exit(__doc__)
    if arguments.command:
        one_head.COMMAND = arguments.command.resolve()
    rows = []
    print(f"{'device':8} {'program':13} {'alone':>8} {'gained':>8} {'predicted':>9} {'error':>7}")
    for device in arguments.device.split(","):
        with storage(device) as folder:
            lay_out(folder)
            for name in arguments.only.split(","):
                rows.append(measure(device, folder, name, arguments.times))
    if arguments.save:
        machine = f"{platform.machine()}, Linux {platform.release()}, {os.cpu_count()} processors"
        path = one_head.ROOT / "bench/results/gains.json"
        path.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


@contextlib.contextmanager
def storage(device: str) -> Iterator[pathlib.Path]:
    """A folder on a device."""
    if device == "folder":
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            yield pathlib.Path(folder)
    else:
        with latency.mounted(device, read_ahead_kb=128) as folder:
            yield folder


if __name__ == "__main__":
    main()
