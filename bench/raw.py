#!/usr/bin/env python3
"""Raw transfers beside fio, with the same chunk and depth, in the same run.

usage: bench/raw.py FOLDER [RUNS [MIB]]   (FOLDER on the storage to be measured, where a file of
MIB mebibytes, 512 by default, is made and removed; default 5 runs)

Reads the file, and writes it, through RawFile (`ioengine=raw`, bench/raw/*.fio) and with fio
(io_uring, direct, one request of a chunk's size at a time for each of the depth), one after the
other, in turns that change who is first. Prints the median of the ratios ours / fio of throughput
and of processor time. The raw rows go to bench/results/raw.json; a run shorter than 512 MiB
measures nothing and writes nothing.
"""

import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPES = [("512k", 1), ("512k", 4), ("64k", 4)]
FULL_MIB = 512


def main() -> None:
    if len(sys.argv) not in (2, 3, 4):
        sys.exit(__doc__)
    data = pathlib.Path(sys.argv[1]) / "readpath-raw.data"
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    mib = int(sys.argv[3]) if len(sys.argv) > 3 else FULL_MIB
    command = os.environ.get("READPATH") or build()
    raw = {"machine": f"{platform.machine()}, Linux {platform.release()}", "mib": mib,
           "fio": text("fio", "--version"), "jobs": {}}
    print(f"{'job':6} {'chunk':>6} {'depth':>5} {'ours MiB/s':>11} {'fio MiB/s':>10} {'ratio':>6} "
          f"{'cpu ratio':>10}")
    try:
        make(data, mib)
        for job in ("read", "write"):
            for chunk, depth in SHAPES:
                rows = [turn(command, data, job, chunk, depth, nth) for nth in range(runs)]
                raw["jobs"][f"{job} {chunk} x {depth}"] = rows
                show(job, chunk, depth, rows)
    finally:
        data.unlink(missing_ok=True)
    if mib >= FULL_MIB:
        results = ROOT / "bench/results/raw.json"
        results.write_text(json.dumps(raw, indent=1) + "\n")


def build() -> str:
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    return str(pathlib.Path(target) / "release/readpath")


def text(*command: object) -> str:
    return subprocess.run(list(map(str, command)), check=True, capture_output=True,
                          text=True).stdout.strip()


def make(data: pathlib.Path, mib: int) -> None:
    with open(data, "wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())


def turn(command: str, data: pathlib.Path, job: str, chunk: str, depth: int, nth: int) -> dict:
    sides = {"ours": lambda: ours(command, data, job, chunk, depth),
             "fio": lambda: fio(data, job, chunk, depth)}
    order = list(sides) if nth % 2 == 0 else list(reversed(sides))
    return {side: sides[side]() for side in order}


def ours(command: str, data: pathlib.Path, job: str, chunk: str, depth: int) -> dict:
    # With nothing but a first and a last moment of its operations, as fio counts.
    row = json.loads(text(command, "run", ROOT / f"bench/raw/{job}.fio", "--on", f"file:{data}",
                          "--overwrite", "--raw", f"ring,chunk={chunk},depth={depth}",
                          "--json"))["results"][0]
    return {"mib_per_s": row["sections"][0]["mib_per_s"], "cpu_seconds": row["cpu_seconds"],
            "requests": row["device_requests"], "note": row["note"]}


def fio(data: pathlib.Path, job: str, chunk: str, depth: int) -> dict:
    said = json.loads(text("fio", "--name=peer", f"--filename={data}", f"--rw={job}",
                           f"--bs={chunk}", f"--iodepth={depth}", "--ioengine=io_uring",
                           "--direct=1", "--output-format=json"))["jobs"][0]
    seconds = said["job_runtime"] / 1e3
    return {"mib_per_s": said[job]["bw_bytes"] / 2**20,
            "cpu_seconds": (said["usr_cpu"] + said["sys_cpu"]) / 100 * seconds}


def show(job: str, chunk: str, depth: int, rows: list[dict]) -> None:
    def median(key: str, side: str) -> float:
        return statistics.median(row[side][key] for row in rows)

    def ratio(key: str) -> float:
        return statistics.median(row["ours"][key] / max(row["fio"][key], 1e-9) for row in rows)

    print(f"{job:6} {chunk:>6} {depth:5} {median('mib_per_s', 'ours'):11.0f} "
          f"{median('mib_per_s', 'fio'):10.0f} {ratio('mib_per_s'):6.2f} "
          f"{ratio('cpu_seconds'):10.2f}", flush=True)


if __name__ == "__main__":
    main()
