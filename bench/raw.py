#!/usr/bin/env python3
"""Raw transfers compared with fio, with the same chunk and depth, in the same run.

usage: bench/raw.py FOLDER [TURNS [MIB]]   (FOLDER on the storage to be measured; default 9 turns.
       A file of MIB mebibytes, default 512, is created there and removed)

Reads and writes the file through `RawFile` (the benchmark raw_speed) and with fio (io_uring,
direct, requests of the size of a chunk), in short turns of alternating order. Ours runs with memory
in pages of 4 KiB, as fio's, and in huge pages (`RawMemory`), which fio cannot have without
reserved huge pages. A call moves depth x chunk bytes. Both sides thus move the same bytes of memory
repeatedly: memory in the processor's cache costs less to fill.

At a depth above 1 a call still waits for its last chunk, and fio does not. Calls of 16 MiB, with
more memory, are a further shape. A `RawReader` keeps the next chunks always in flight, as fio does:
reads run a third time through one (`chunks`), which shares its own memory.

Prints the medians over the turns of throughput, and of the ratios ours / fio within each turn, of
throughput and of processor time. Writes the raw rows to bench/results/raw.json, except for a run
below 512 MiB, which is no measurement.
"""

import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

import built

ROOT = pathlib.Path(__file__).resolve().parent.parent
KIB = 1 << 10
# Chunk, depth, bytes of a call.
SHAPES = [(512 * KIB, 1, 512 * KIB), (512 * KIB, 4, 2048 * KIB), (512 * KIB, 4, 16384 * KIB),
          (64 * KIB, 4, 256 * KIB), (64 * KIB, 4, 2048 * KIB)]
SIDES = {"read": ["fio", "small", "huge", "chunks"], "write": ["fio", "small", "huge"]}
FULL_MIB = 512


def main() -> None:
    if len(sys.argv) not in (2, 3, 4):
        sys.exit(__doc__)
    data = pathlib.Path(sys.argv[1]) / "readpath-raw.data"
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    mib = int(sys.argv[3]) if len(sys.argv) > 3 else FULL_MIB
    command = os.environ.get("RAW_SPEED") or built.bench("raw_speed")
    raw = {"machine": f"{platform.machine()}, Linux {platform.release()}", "mib": mib,
           "load_average": os.getloadavg(), "fio": text("fio", "--version"), "jobs": {}}
    print(f"{'job':6} {'chunk':>6} {'depth':>5} {'call':>6} {'fio MiB/s':>10} "
          f"{'small':>6} {'cpu':>5} {'huge':>6} {'cpu':>5} {'chunks':>6} {'cpu':>5}")
    try:
        make(data, mib)
        for job in ("read", "write"):
            for shape in SHAPES:
                rows = [turn(command, data, job, shape, nth) for nth in range(turns)]
                chunk, depth, call = shape
                name = f"{job} {chunk // KIB}k x {depth}, {call // KIB}k a call"
                raw["jobs"][name] = rows
                show(job, shape, rows)
    finally:
        data.unlink(missing_ok=True)
    if mib >= FULL_MIB:
        results = ROOT / "bench/results/raw.json"
        results.write_text(json.dumps(raw, indent=1) + "\n")


def text(*command: object) -> str:
    return subprocess.run(list(map(str, command)), check=True, capture_output=True,
                          text=True).stdout.strip()


def make(data: pathlib.Path, mib: int) -> None:
    with open(data, "wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())


def turn(command: str, data: pathlib.Path, job: str, shape: tuple[int, int, int],
         nth: int) -> dict:
    chunk, depth, call = shape
    sides = SIDES[job]
    first = nth % len(sides)
    row = {}
    for side in sides[first:] + sides[:first]:
        row[side] = (fio(data, job, chunk, depth) if side == "fio" else
                     json.loads(text(command, data, job, chunk, depth, call, side)))
    return row


def fio(data: pathlib.Path, job: str, chunk: int, depth: int) -> dict:
    said = json.loads(text("fio", "--name=peer", f"--filename={data}", f"--rw={job}",
                           f"--bs={chunk}", f"--iodepth={depth}", "--ioengine=io_uring",
                           "--direct=1", "--output-format=json"))["jobs"][0]
    seconds = said["job_runtime"] / 1e3
    return {"mib_per_s": said[job]["bw_bytes"] / 2**20,
            "cpu_seconds": (said["usr_cpu"] + said["sys_cpu"]) / 100 * seconds}


def show(job: str, shape: tuple[int, int, int], rows: list[dict]) -> None:
    def ratio(key: str, side: str) -> float:
        return statistics.median(row[side][key] / max(row["fio"][key], 1e-9) for row in rows)

    chunk, depth, call = shape
    speed = statistics.median(row["fio"]["mib_per_s"] for row in rows)
    ours = " ".join(f"{ratio('mib_per_s', side):6.2f} {ratio('cpu_seconds', side):5.2f}"
                    for side in SIDES[job][1:])
    print(f"{job:6} {chunk // KIB:5}k {depth:5} {call // KIB:5}k {speed:10.0f} {ours}", flush=True)


if __name__ == "__main__":
    main()
