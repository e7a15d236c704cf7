#!/usr/bin/env python3
"""Our schedulers next to the running kernel's, over the same modelled disk. Needs root.

usage: bench/loop_schedulers.py [--workloads NAME,...] [--depths N,...] [--runs N] [--command PATH]
       [--small] [--save]   (default: all workloads, depths 32 and 1, 3 runs; about half an hour)

`readpath emulate` serves a disk of 7,200 rpm as a file, in real time. A loop device over it has the
schedulers of the kernel. Each workload of bench/loop-schedulers runs three ways:

- `kernel`: direct reads of the loop device under each of the kernel's schedulers;
- `ours`: the same reads through our path under each of ours; the loop device then has `none`.
  Priorities and writes do not reach our schedulers there, so their workloads have no such rows;
- `modelled`: our schedulers over the same disk in virtual time.

Depth is the number of requests that the disk accepts at once. The loop device passes as many, and
at least four, the kernel's least `nr_requests`. The modelled disk accepts as many as the loop
device, of its largest size, and chooses among as many as the disk.
Prints the figures, medians of the runs, and compares the order of the schedulers: each pair is
better, level (within 1.25) or worse. `--save` writes bench/results/loop-schedulers.json; rows
of other workloads and depths stay.
`--small` runs 16 reads of the start of a program once, as a check.

Other programs delay those of the measurement, and an idle time of 8 ms is then over. The emulated
disk and the programs of the jobs therefore run in the class `SCHED_FIFO`.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

import one_head

JOBS = one_head.ROOT / "bench/loop-schedulers"
RESULTS = one_head.ROOT / "bench/results/loop-schedulers.json"
KERNELS = ["none", "mq-deadline", "kyber", "bfq"]
OURS = ["noop", "mq-deadline", "kyber", "bfq", "cfq", "adaptive"]
DATA = "/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None
"""Folder of the data: in memory, as a real disk below would delay the answers to writes."""
LEVEL = 1.25
"""Figures of one factor, or less, count as level. Runs of one scheduler differ by up to 1.2."""


class Workload(NamedTuple):
    """A job, and its figure in a row of `readpath run`."""

    figure: Callable[[dict], float]
    unit: str
    is_less_better: bool
    reaches_ours: bool
    """True if its operations reach our schedulers on real storage."""


def section(row: dict, name: str) -> dict:
    return next(it for it in row["sections"] if it["name"] == name)


def share(first: str, second: str) -> Callable[[dict], float]:
    """Share of the first of two sections in their bytes."""
    def of(row: dict) -> float:
        return section(row, first)["bytes"] / (section(row, first)["bytes"] + section(row, second)["bytes"])
    return of


WORKLOADS = {
    "program-start": Workload(lambda row: section(row, "start")["seconds"], "s", True, True),
    "readers-and-writer": Workload(lambda row: section(row, "readers")["iops"], "reads/s", False, False),
    "levels": Workload(share("high", "low"), "share of high", False, False),
    "classes": Workload(share("real-time", "best-effort"), "share of real time", False, False),
}


def main() -> None:
    # Without this a SIGTERM leaves the loop device and the mount.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    arguments = parsed()
    if os.geteuid() != 0:
        sys.exit(__doc__)
    if arguments.command:
        one_head.COMMAND = arguments.command.resolve()
    else:
        subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=one_head.ROOT, check=True)
    rows = []
    for depth in arguments.depths:
        rows += at_depth(depth, arguments)
    document = {
        "machine": f"{platform.machine()}, Linux {platform.release()}, {os.cpu_count()} processors",
        "load": [round(load, 1) for load in os.getloadavg()],
        "runs": arguments.runs,
        "rows": rows,
    }
    print_tables(rows)
    if arguments.save:
        document["rows"] = kept_rows(rows) + rows
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")


def kept_rows(rows: list[dict]) -> list[dict]:
    """Rows of the saved results whose workload and depth were not measured again."""
    if not RESULTS.exists():
        return []
    measured = {(it["workload"], it["depth"]) for it in rows}
    saved = json.loads(RESULTS.read_text())["rows"]
    return [it for it in saved if (it["workload"], it["depth"]) not in measured]


def parsed() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--workloads", type=names, default=list(WORKLOADS))
    parser.add_argument("--depths", type=numbers, default=[32, 1])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--command", type=pathlib.Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    unknown = set(arguments.workloads) - set(WORKLOADS)
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    if arguments.small:
        arguments.workloads, arguments.depths, arguments.runs = ["program-start"], [32], 1
        arguments.save = False
    return arguments


def at_depth(depth: int, arguments: argparse.Namespace) -> list[dict]:
    """All rows of one disk."""
    device = f"hdd,drive=sata2010,queue.depth={depth},queue.window={min(depth, 9)}"
    rows = []
    with (
        tempfile.TemporaryDirectory() as mount,
        one_head.Disk(device, "1", mount, "24GiB", DATA) as disk,
        restored(disk) as queue,
    ):
        # Under `none` this limits the requests in the device, also for the next scheduler.
        select(queue, "none")
        (queue / "nr_requests").write_text(str(depth))
        passed = int((queue / "nr_requests").read_text())
        # Each segment of a request to the loop device is a page.
        request_kib = 4 * int((queue / "max_segments").read_text())
        modelled = f"hdd,drive=sata2010,queue.depth={passed},queue.window={min(depth, 9)}"
        modelled += f",queue.request_kib={request_kib}"
        available = (queue / "scheduler").read_text().replace("[", "").replace("]", "").split()
        kernels = [name for name in KERNELS if name in available]
        for missing in set(KERNELS) - set(kernels):
            print(f"skipped: this kernel has no scheduler {missing}", file=sys.stderr)
        for name in arguments.workloads:
            runs = [once(name, modelled, disk, queue, kernels, arguments.small)
                    for _ in range(arguments.runs)]
            rows += merged(runs, name, depth)
    return rows


@contextlib.contextmanager
def restored(disk: pathlib.Path) -> Iterator[pathlib.Path]:
    """The request queue of the loop device, with its settings of before at the end."""
    queue = pathlib.Path(f"/sys/block/{disk.name}/queue")
    select(queue, "none")
    requests = (queue / "nr_requests").read_text()
    try:
        yield queue
    finally:
        select(queue, "none")
        (queue / "nr_requests").write_text(requests)


def select(queue: pathlib.Path, scheduler: str) -> None:
    # Select none first: a scheduler that is selected again has its defaults.
    for name in ("none", scheduler):
        (queue / "scheduler").write_text(name)


def once(name: str, device: str, disk: pathlib.Path, queue: pathlib.Path, kernels: list[str],
         is_small: bool) -> list[dict]:
    """One run of a workload: a row of each scheduler and way."""
    workload = WORKLOADS[name]
    text = (JOBS / f"{name}.fio").read_text()
    if is_small:
        text = text.replace("io_size=4m", "io_size=256k").replace("startdelay=2s", "startdelay=200ms")
    rows = []
    for scheduler in kernels:
        select(queue, scheduler)
        rows.append(row("kernel", scheduler, name, run(text, f"kernel:{disk}", "--overwrite")))
    select(queue, "none")
    # Of the others `adaptive` alone is the default of a path.
    reaching = ["noop", "bfq"] if is_small else [it for it in OURS if it != "cfq"]
    for scheduler in reaching if workload.reaches_ours else []:
        # Direct reads pass our schedulers by. Pages of its own, and no readahead, are as direct.
        options = ["--page-cache", "own", "--memory", "64MiB", "--readahead", "none"]
        answer = run(text.replace("direct=1", "direct=0"), f"file:{disk}", *options, "--scheduler", scheduler)
        rows.append(row("ours", scheduler, name, answer))
    for scheduler in OURS:
        rows.append(row("modelled", scheduler, name, run(text, device, "--scheduler", scheduler)))
    return rows


def row(way: str, scheduler: str, name: str, answer: dict) -> dict:
    sections = {it["name"]: {key: it[key] for key in ("bytes", "seconds", "mib_per_s", "latency_us")}
                for it in answer["sections"]}
    figure = WORKLOADS[name].figure(answer)
    return {"way": way, "scheduler": scheduler, "figure": figure, "sections": sections}


def run(text: str, storage: str, *options: str) -> dict:
    """The result of a job on a storage."""
    with tempfile.NamedTemporaryFile("w", suffix=".fio") as job:
        job.write(text)
        job.flush()
        command = [one_head.COMMAND, "run", job.name, "--on", storage, "--json", *options]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                                preexec_fn=one_head.first_in_line).stdout
    return json.loads(output)["results"][0]


def merged(runs: list[list[dict]], name: str, depth: int) -> list[dict]:
    """The rows of all runs of a workload, with the median of their figures."""
    rows = []
    for same in zip(*runs, strict=True):
        figures = [it["figure"] for it in same]
        rows.append({"workload": name, "depth": depth, "way": same[0]["way"],
                     "scheduler": same[0]["scheduler"], "unit": WORKLOADS[name].unit,
                     "median": statistics.median(figures), "figures": figures,
                     "sections": [it["sections"] for it in same]})
    return rows


def print_tables(rows: list[dict]) -> None:
    for (name, depth), cell in itertools.groupby(rows, lambda it: (it["workload"], it["depth"])):
        by_way: dict[str, dict[str, float]] = {"kernel": {}, "ours": {}, "modelled": {}}
        for it in cell:
            scheduler = "none" if it["scheduler"] == "noop" else it["scheduler"]
            by_way[it["way"]][scheduler] = it["median"]
        print(f"{name}, depth {depth} ({WORKLOADS[name].unit}; "
              f"{'less' if WORKLOADS[name].is_less_better else 'more'} is better)")
        print(f"  {'scheduler':12}" + "".join(f"{way:>10}" for way in by_way))
        for scheduler in dict.fromkeys(it for figures in by_way.values() for it in figures):
            texts = [figures.get(scheduler) for figures in by_way.values()]
            print(f"  {scheduler:12}" + "".join("         -" if it is None else f"{it:10.2f}" for it in texts))
        for way in ("ours", "modelled"):
            if by_way[way]:
                print(f"  order, {way}: {compared(by_way['kernel'], by_way[way])}")


def compared(kernel: dict[str, float], other: dict[str, float]) -> str:
    """The pairs of schedulers with the same order, and the other ones."""
    def order(figures: dict[str, float], first: str, second: str) -> int:
        ratio = figures[first] / figures[second]
        return 0 if 1 / LEVEL <= ratio <= LEVEL else 1 if ratio > 1 else -1

    equal, level, opposite = 0, [], []
    for first, second in itertools.combinations([it for it in kernel if it in other], 2):
        orders = order(kernel, first, second), order(other, first, second)
        if orders[0] == orders[1]:
            equal += 1
        else:
            (opposite if orders[0] == -orders[1] else level).append(f"{first} and {second}")
    text = f"{equal} of {equal + len(level) + len(opposite)} pairs as in the kernel"
    text += f"; level in one only: {', '.join(level)}" if level else ""
    return text + (f"; opposite: {', '.join(opposite)}" if opposite else "")


if __name__ == "__main__":
    main()
