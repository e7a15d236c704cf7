#!/usr/bin/env python3
"""Scripted programs with a known cause, next to the first cause that `readpath explain` names.

usage: bench/explained.py [--only NAME,...] [--user] [--command PATH] [--save]

Needs root. Each program has one fault, or none, and starts with cold files, on an emulated device or
on the local disk. `--user` runs the programs as an ordinary user who owns the files, where explain
records without tracepoints. `--save` writes the rows to bench/results/explained.json, or to
bench/results/explained-user.json.
"""

import argparse
import contextlib
import ctypes
import hashlib
import json
import mmap
import os
import pathlib
import platform
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import gains
import kept
import latency
import one_head

MIB = 1 << 20
USER = 65534
# Further devices next to the ones of `bench/latency.py`: one with slow answers, one with few
# connections.
TAIL = "object,first_byte_min=400us,first_byte_p50=500us,first_byte_p90=600us,first_byte_p99=100ms," \
       "first_byte_max=200ms,connections=16,get_rate=64000"
latency.DEVICES |= {"tail": (TAIL, "0"), "narrow": (one_head.constant(1_000, 4), "0")}


def direct_again(folder: pathlib.Path) -> None:
    """The same 2 MiB, ten times, past the page cache."""
    file = os.open(folder / "data", os.O_RDONLY | os.O_DIRECT)
    for _ in range(10):
        gains.read_all(file, random.sample(range(0, 2 * MIB, 16384), 128), 16384, 1)


def passes(folder: pathlib.Path) -> None:
    """A file of 256 MiB four times, in a control group of 64 MiB."""
    script = "import sys; [sum(map(len, iter(lambda: f.read(1 << 20), b''))) for _ in range(4) " \
             "for f in [open(sys.argv[1], 'rb', 0)]]"
    with kept.Group(64) as group:
        def enter() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        subprocess.run([sys.executable, "-c", script, folder / "data"], check=True, preexec_fn=enter)
        # Its cached pages are charged to the group.
        gains.make_cold(folder)


def touches(folder: pathlib.Path, advice: int | None, places: list[int]) -> None:
    with open(folder / "data", "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    if advice is not None:
        mapping.madvise(advice)
    for place in places:
        mapping[place]


def one_slow_file(folder: pathlib.Path) -> None:
    """Random reads of nine files, eight of them on the local disk."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as local:
        for number in range(8):
            pathlib.Path(f"{local}/{number}").write_bytes(os.urandom(8 * MIB))
        os.sync()
        paths = [pathlib.Path(f"{local}/{number}") for number in range(8)] + [folder / "data"]
        files = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in paths]
        order = [(file, place) for file in files for place in random.sample(range(0, 8 * MIB, 16384), 100)]
        random.shuffle(order)
        for file, place in order:
            gains.read_all(file, [place], 16384, 1)


def reads_next_to(folder: pathlib.Path, other: Callable[[], None]) -> None:
    """Random direct reads while a thread of the same program works."""
    threading.Thread(target=other, daemon=True).start()
    gains.direct_4k(folder, False)


def write_much(folder: pathlib.Path) -> None:
    """Direct writes by sixteen threads, without an end."""
    def write(number: int) -> None:
        file = os.open(folder / "written", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        memory = mmap.mmap(-1, MIB)
        while True:
            os.pwritev(file, [memory], random.randrange(16) * MIB + number * 16 * MIB)

    for number in range(16):
        threading.Thread(target=write, args=[number], daemon=True).start()


def append(folder: pathlib.Path) -> None:
    with open(folder / "log", "ab", buffering=0) as file:
        for _ in range(300):
            file.write(b"line\n" * 100)
            os.fsync(file.fileno())


def insert(folder: pathlib.Path) -> None:
    import sqlite3
    base = sqlite3.connect(folder / "base.db", isolation_level=None)
    base.execute("create table if not exists t (id integer primary key, text text)")
    for number in range(60):
        base.execute("insert into t (text) values (?)", (f"{number:08}" * 50,))


def small_calls(folder: pathlib.Path) -> None:
    file = os.open(folder / "data", os.O_RDONLY)
    os.pread(file, 16 * MIB, 0)
    for place in range(0, 16 * MIB, 64):
        os.pread(file, 64, place)


def compute(folder: pathlib.Path) -> None:
    data = (folder / "files/0").read_bytes()
    for _ in range(40_000):
        hashlib.sha256(data).digest()


def cached(folder: pathlib.Path) -> None:
    """One pass over 64 MiB in memory, twenty times."""
    file = os.open(folder / "data", os.O_RDONLY)
    memory = mmap.mmap(-1, MIB)
    for place in list(range(0, 64 * MIB, MIB)) * 40:
        os.preadv(file, [memory], place)


def ahead(folder: pathlib.Path) -> None:
    """Reads of 64 KiB in order, each announced 4 MiB before."""
    file = os.open(folder / "data", os.O_RDONLY)
    os.posix_fadvise(file, 0, 4 * MIB, os.POSIX_FADV_WILLNEED)
    for place in range(0, 128 * MIB, 65536):
        os.posix_fadvise(file, place + 4 * MIB, 65536, os.POSIX_FADV_WILLNEED)
        os.pread(file, 65536, place)


def standard_library(folder: pathlib.Path) -> None:
    """`fread` of 4 KiB at random places."""
    library = ctypes.CDLL(None, use_errno=True)
    library.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(library.fopen(bytes(folder / "data"), b"rb"))
    memory = ctypes.create_string_buffer(4096)
    for place in gains.offsets(1000, 4096):
        library.fseek(file, ctypes.c_long(place), 0)
        library.fread(memory, 1, 4096, file)


def fio(folder: pathlib.Path, *options: str) -> list[str]:
    """A job of reads of `data`."""
    return ["fio", "--name=j", f"--filename={folder}/data", "--size=256m", "--minimal", *options]


def fio_random(folder: pathlib.Path, *options: str) -> list[str]:
    return fio(folder, "--rw=randread", "--direct=1", "--bs=4k", *options)


RANDOM_PAGES = [slot * 4096 for slot in random.Random(5).sample(range(65536), 1200)]
ORDERED = list(range(0, 24 * MIB, 4096))

# Name: the device, the expected first causes (none: no cause), and the program as a function of the
# folder.
FUNCTIONS: dict[str, tuple[str, set[str], Callable[[pathlib.Path], None]]] = {
    "direct_4k": ("network", {"depth"}, lambda it: gains.direct_4k(it, False)),
    "buffered_16k": ("network", {"depth"}, lambda it: gains.buffered_16k(it, False)),
    "fread": ("network", {"depth"}, standard_library),
    "random_touches": ("network", {"depth", "page_faults"}, lambda it: touches(it, mmap.MADV_RANDOM, RANDOM_PAGES)),
    "files": ("network", {"many_files"}, lambda it: gains.files(it, False)),
    "touches_far": ("folder", {"over_read"}, lambda it: touches(it, None, RANDOM_PAGES[:256])),
    "advised": ("network", {"advice"}, lambda it: gains.advised(it, False)),
    "map_advised": ("network", {"advice", "page_faults"}, lambda it: touches(it, mmap.MADV_RANDOM, ORDERED[:1500])),
    "slices": ("network", {"page_faults"}, lambda it: gains.slices(it, False)),
    "direct_again": ("network", {"again"}, direct_again),
    "passes": ("network", {"again"}, passes),
    "one_slow_file": ("network", {"slow_file"}, one_slow_file),
    "own_writer": ("narrow", {"writers"}, lambda it: reads_next_to(it, lambda: write_much(it))),
    "append": ("network", {"sync"}, append),
    "insert": ("network", {"sync"}, insert),
    "map_stream": ("network", {"readahead"}, lambda it: touches(it, None, ORDERED)),
    "small_calls": ("network", {"calls"}, small_calls),
    "stalls": ("tail", {"stalls"}, lambda it: gains.direct_4k(it, False)),
    "next_to_bursts": ("narrow", {"readers"}, lambda it: gains.direct_4k(it, False)),
    "stream_next_to_bursts": ("narrow", {"readers"}, lambda it: gains.advised(it, True)),
    "next_to_readers": ("narrow", {"depth"}, lambda it: gains.direct_4k(it, False)),
    "compute": ("network", set(), compute),
    "cached": ("network", set(), cached),
    "ahead": ("network", set(), ahead),
}
# Programs that are command lines.
COMMANDS: dict[str, tuple[str, set[str], Callable[[pathlib.Path], list[str]]]] = {
    "aio_one": ("network", {"depth"},
        lambda it: fio_random(it, "--io_size=4m", "--ioengine=libaio", "--iodepth=1")),
    "uring_one": ("network", {"depth"},
        lambda it: fio(it, "--rw=randread", "--bs=16k", "--io_size=16m", "--ioengine=io_uring", "--iodepth=1")),
    "dd_direct": ("network", {"small"},
        lambda it: ["dd", f"if={it}/data", "of=/dev/null", "bs=4k", "iflag=direct", "count=1200"]),
    "uring_small": ("network", {"small"},
        lambda it: fio(it, "--rw=read", "--direct=1", "--bs=8k", "--io_size=8m", "--ioengine=io_uring", "--iodepth=1")),
    "grep": ("network", {"many_files"}, lambda it: ["grep", "-r", "-c", ".", f"{it}/files"]),
    "tar": ("network", {"many_files"}, lambda it: ["sh", "-c", f"tar cf - -C {it} files | cat >/dev/null"]),
    "find": ("network", {"metadata"}, lambda it: ["find", f"{it}/tree", "-size", "+1G"]),
    "du": ("network", {"metadata"}, lambda it: ["du", "-s", f"{it}/tree"]),
    "cat": ("network", {"readahead"}, lambda it: ["cat", f"{it}/data"]),
    "stalls_uring": ("tail", {"stalls"},
        lambda it: fio_random(it, "--io_size=4m", "--ioengine=io_uring", "--iodepth=1")),
    "aio_buffered": ("network", {"direct"},
        lambda it: fio(it, "--rw=randread", "--bs=4k", "--io_size=4m", "--ioengine=libaio", "--iodepth=16")),
    "aio_journal": ("journal", {"direct"},
        lambda it: fio_random(it, "--io_size=4m", "--ioengine=libaio", "--iodepth=16")),
    "sleep": ("network", set(), lambda it: ["sleep", "0.5"]),
    "aio_deep": ("network", set(),
        lambda it: fio_random(it, "--io_size=32m", "--ioengine=libaio", "--iodepth=32")),
    "local_cat": ("folder", set(), lambda it: ["cat", f"{it}/data"]),
}
PROGRAMS = FUNCTIONS | COMMANDS
# Programs next to another program that reads the same file, 32 requests at a time: three quarters
# of the time, or all the time.
NEXT_TO_READERS = {"next_to_bursts": True, "stream_next_to_bursts": True, "next_to_readers": False}
# Programs with cached files.
WARM = {"cached", "small_calls"}
# Programs that need root themselves: they make a control group.
AS_ROOT = {"passes"}


@contextlib.contextmanager
def storage(device: str) -> Iterator[pathlib.Path]:
    """Storage of `bench/gains.py`. With `journal`, direct reads go through the page cache."""
    if device == "journal":
        with latency.mounted("network", read_ahead_kb=128, options="data=journal") as folder:
            yield folder
    else:
        with gains.storage(device) as folder:
            yield folder


def lay_out(folder: pathlib.Path) -> None:
    gains.lay_out(folder)
    for number in range(4000):
        path = folder / f"tree/{number % 200}/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    os.sync()


@contextlib.contextmanager
def readers(folder: pathlib.Path, in_bursts: bool) -> Iterator[None]:
    """Another program that reads at random, 32 requests at a time."""
    command = fio_random(folder, "--ioengine=libaio", "--iodepth=32", "--time_based", "--runtime=600", "--thread")
    other = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    has_ended = threading.Event()

    def pause() -> None:
        while not has_ended.wait(0.3):
            other.send_signal(signal.SIGSTOP)
            has_ended.wait(0.1)
            other.send_signal(signal.SIGCONT)

    pausing = threading.Thread(target=pause)
    try:
        time.sleep(1)
        if in_bursts:
            pausing.start()
        yield
    finally:
        has_ended.set()
        if in_bursts:
            pausing.join()
        other.terminate()
        other.wait()


def explained(folder: pathlib.Path, name: str, as_user: bool) -> dict:
    """The explanation of one run."""
    gains.make_cold(folder)
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
    if name in WARM:
        (folder / "data").read_bytes()
    command = [sys.executable, __file__, "--program", name, "--folder", str(folder)]
    if as_user:
        command[0] = "/usr/bin/python3"
    # The files of Python are no part of the program, and are in memory at its start.
    subprocess.run([*command[:3], "nothing", *command[4:]], check=True)
    if name in COMMANDS:
        command = COMMANDS[name][2](folder)
    # The output of the program is dropped.
    command = [one_head.COMMAND, "explain", "--json", "--", "sh", "-c", 'exec "$@" >/dev/null', "sh", *command]
    if as_user:
        command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command]
    with readers(folder, NEXT_TO_READERS[name]) if name in NEXT_TO_READERS else contextlib.nullcontext():
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr}")
    return json.loads(done.stdout)


def show(name: str, explanation: dict) -> dict:
    expected = PROGRAMS[name][1]
    found = [(it["cause"], it["share"], it["remedy"]) for it in explanation["findings"]]
    first = found[0][0] if found else "-"
    is_right = first in expected if expected else not found
    causes = ", ".join(f"{cause} {share:.0%}" for cause, share, _ in found) or explanation["limit"]
    print(f"{name:23} {' or '.join(sorted(expected)) or '-':18} {'' if is_right else 'WRONG':6} {causes}", flush=True)
    return {"program": name, "expected": sorted(expected), "is_right": is_right, "limit": explanation["limit"],
            "seconds": explanation["seconds"], "findings": explanation["findings"]}


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--only")
    parser.add_argument("--user", action="store_true")
    parser.add_argument("--command", type=pathlib.Path)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.program:
        if arguments.program != "nothing":
            FUNCTIONS[arguments.program][2](arguments.folder)
        os._exit(0)
    if os.geteuid() != 0:
        sys.exit(__doc__)
    if arguments.command:
        one_head.COMMAND = arguments.command.resolve()
    names = arguments.only.split(",") if arguments.only else [it for it in PROGRAMS if not (arguments.user and it in AS_ROOT)]
    rows = []
    for device in dict.fromkeys(PROGRAMS[name][0] for name in names):
        with storage(device) as folder:
            lay_out(folder)
            subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
            if arguments.user:
                subprocess.run(["chown", "-R", f"{USER}:{USER}", folder], check=True)
            if folder.parent.stat().st_mode & 0o777 == 0o700:
                folder.parent.chmod(0o711)
            rows += [show(name, explained(folder, name, arguments.user))
                     for name in names if PROGRAMS[name][0] == device]
    print(f"{sum(row['is_right'] for row in rows)} of {len(rows)} right")
    if arguments.save:
        machine = f"{platform.machine()}, Linux {platform.release()}, {os.cpu_count()} processors"
        path = one_head.ROOT / f"bench/results/explained{'-user' * arguments.user}.json"
        path.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
