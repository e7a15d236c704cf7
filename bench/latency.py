#!/usr/bin/env python3
"""Access patterns of `readpath bench` on storage with latency.

usage: bench/latency.py [--device NAME] [--read-ahead-kb N] [--runs N] [--minutes N] [--rows PART,...]
       [--queue DEPTH,...] [--command PATH] [--small] [--save]   (default network, 128, 3, 9, all rows)

Needs root. A modelled device is emulated in real time (`readpath emulate`). A loop device with
`read_ahead_kb` as given lies above it, and above that an ext4 file system. `readpath bench` then
measures its rows cold, with default options, in fresh processes, next to `pread`, `mmap` and
`O_DIRECT`. With `--queue` also next to a program that knows its reads beforehand and keeps as many
in flight. `--save` writes its document to bench/results/latency-NAME.json, or latency-NAME-N.json
with another readahead window than 128 KiB.

- `network`: a network volume; 1 ms a request, 16 requests at once;
- `nvme`: a solid-state drive; 0.1 ms a request, 32 at once;
- `far`: an object store; 20 ms a request, 64 at once;
- `disk`: a disk of 7,200 rpm with one head.
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import one_head


# Device, and whether it rotates.
DEVICES = {
    "network": (one_head.constant(1_000, 16), "0"),
    "nvme": (one_head.constant(100, 32), "0"),
    "far": (one_head.constant(20_000, 64), "0"),
    "disk": ("hdd,drive=sata2010", "1"),
}


def main() -> None:
    parser = device_parser(__doc__)
    parser.add_argument("--read-ahead-kb", type=int, default=128)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--minutes", type=int, default=9)
    parser.add_argument("--rows")
    parser.add_argument("--queue")
    parser.add_argument("--small", action="store_true", help="files of at most 4 MiB: a check")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit(__doc__)
    use_command(arguments)
    with mounted(arguments.device, arguments.read_ahead_kb) as folder:
        command = [one_head.COMMAND, "bench", folder, "--states", "cold", "--json"]
        command += ["--runs", str(arguments.runs), "--minutes", str(arguments.minutes)]
        command += ["--rows", arguments.rows] if arguments.rows else []
        command += ["--queue", arguments.queue] if arguments.queue else []
        command += ["--small"] if arguments.small else []
        # A row below its bar is exit status 1, and no failure of this measurement.
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.returncode)
    document = json.loads(done.stdout)
    document = {
        "machine": machine(),
        "device": DEVICES[arguments.device][0],
        "read_ahead_kb": arguments.read_ahead_kb,
        **document,
    }
    print_summary(document)
    if arguments.save:
        window = "" if arguments.read_ahead_kb == 128 else f"-{arguments.read_ahead_kb}"
        path = one_head.ROOT / f"bench/results/latency-{arguments.device}{window}.json"
        path.write_text(json.dumps(document, indent=1) + "\n")


def device_parser(usage: str) -> argparse.ArgumentParser:
    """The options of every script that measures an emulated device."""
    parser = argparse.ArgumentParser(usage=usage)
    parser.add_argument("--device", choices=DEVICES, default="network")
    parser.add_argument("--command", type=pathlib.Path)
    parser.add_argument("--save", action="store_true")
    return parser


def use_command(arguments: argparse.Namespace) -> None:
    """Uses the program of `--command`, if it is given, in place of the release build."""
    if arguments.command:
        one_head.COMMAND = arguments.command.resolve()


def machine() -> str:
    """Processor architecture, kernel and number of processors."""
    return f"{platform.machine()}, Linux {platform.release()}, {os.cpu_count()} processors"


def save_rows(name: str, device: str, fields: dict) -> None:
    """Replaces the entry of a device in the results file of this name."""
    path = one_head.ROOT / f"bench/results/{name}.json"
    document = json.loads(path.read_text()) if path.exists() else {}
    document[device] = {"machine": machine(), "load": round(os.getloadavg()[0], 1), **fields}
    path.write_text(json.dumps(document, indent=1) + "\n")


@contextlib.contextmanager
def mounted(device: str, read_ahead_kb: int, options: str = "defaults") -> Iterator[pathlib.Path]:
    """An ext4 file system on an emulated device with this readahead window, as a folder."""
    model, is_rotational = DEVICES[device]
    with (
        tempfile.TemporaryDirectory() as served,
        one_head.Disk(model, is_rotational, served) as disk,
    ):
        read_ahead = pathlib.Path(f"/sys/block/{disk.name}/queue/read_ahead_kb")
        read_ahead.write_text(str(read_ahead_kb))
        with one_head.mounted(disk, options) as folder:
            yield folder


def print_summary(document: dict) -> None:
    """Prints a line per row, and geometric means. Above 1, readpath is faster."""
    of_best, of_pread, of_queue, below = [], [], [], []
    print(f"{'row':36} {'ours':>9} {'best':>9} {'of best':>8} {'of pread':>8} {'of queue':>8}")
    for row in document["results"]:
        ours, best = row["ours"], row[row["best"].lower()] if row["best"] else None
        # Without a complete run of one side, there is nothing to compare.
        if row["ratio"] is None or not ours["seconds_by_run"] or not best["seconds_by_run"]:
            print(f"{row['row']:36} not measured: {row['note'] or 'no time was left'}")
            continue
        of_best.append(row["ratio"])
        pread = row["pread"]["seconds"] / ours["seconds"] if row["pread"] else None
        if pread:
            of_pread.append(pread)
        if row["queue_ratio"]:
            of_queue.append(row["queue_ratio"])
        queue_text = f"{row['queue_ratio']:.2f}" if row["queue_ratio"] else "-"
        # A baseline that was ended early would have taken longer.
        limit = ">" if pread and row["pread"]["broken_off"] else ""
        of_pread_text = f"{limit}{pread:.2f}" if pread else "-"
        ranges = [(min(it["seconds_by_run"]), max(it["seconds_by_run"])) for it in (ours, best)]
        is_level = ranges[0][0] <= ranges[1][1] and ranges[1][0] <= ranges[0][1]
        if of_best[-1] < 0.9 and not is_level:
            below.append(row["row"])
        print(
            f"{row['row']:36} {ours['seconds']:9.4f} {best['seconds']:9.4f} {of_best[-1]:8.2f} "
            f"{of_pread_text:>8} {queue_text:>8}{' level' if is_level else ''}"
        )
    means = [statistics.geometric_mean(ratios) if ratios else math.nan for ratios in (of_best, of_pread)]
    if of_queue:
        print(
            f"{len(of_queue)} rows: {statistics.geometric_mean(of_queue):.2f} of the fastest queue, "
            f"minimum {min(of_queue):.2f}"
        )
    print(
        f"{len(of_best)} rows: {means[0]:.2f} of the best of three, {means[1]:.2f} of pread; "
        f"minimum {min(of_best, default=math.nan):.2f}; {len(below)} below 0.9 beyond the spread"
    )


if __name__ == "__main__":
    main()
