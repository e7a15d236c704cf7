#!/usr/bin/env python3
"""Random slices of a mapped file on a slow device: our mapping and the kernel's. Needs root.

usage: bench/mapping.py [SLICES [ROUNDS]]   (default 300 and 5; about four minutes)

`readpath emulate` serves a device of about a millisecond a request, eight at once, as a file. A
loop device makes it a block device. `crates/eval/benches/mapping_speed.rs` touches random slices
of 64 KiB page by page. It runs with the kernel's default readahead (128 KiB), and with 8 MiB, as
some virtual disks have. Writes the rows to bench/results/mapping.json.
"""

import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import time

import built

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEVICE = ("object,first_byte_min=1000,first_byte_p50=1000,first_byte_p90=1000,first_byte_p99=1000,"
          "first_byte_max=1000,connection=1000,connections=8,get_rate=1000000")
READ_AHEAD_KIB = [128, 8192]


def main() -> None:
    if len(sys.argv) > 3 or os.geteuid() != 0:
        sys.exit(__doc__)
    numbers = (sys.argv[1:] + ["300", "5"][len(sys.argv) - 1:])[:2]
    command, mapping_speed = built.command(), built.bench("mapping_speed")
    with tempfile.TemporaryDirectory() as mount:
        server = subprocess.Popen([command, "emulate", DEVICE, "--at", mount, "--size", "1GiB"],
                                  stdout=subprocess.DEVNULL)
        try:
            rows = measure(mapping_speed, pathlib.Path(mount) / "device", numbers)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
    print(f"{'read_ahead_kb':>13} {'way':16} {'us/slice':>9} {'MiB read':>9} {'requests':>9}")
    for row in rows:
        print(f"{row['read_ahead_kb']:13} {row['way']:16} {row['us_per_slice']:9.1f} "
              f"{row['read_bytes'] / 2**20:9.1f} {row['requests']:9}")
    machine = f"{platform.machine()}, Linux {platform.release()}"
    results = {"machine": machine, "device": DEVICE, "rows": rows}
    (ROOT / "bench/results/mapping.json").write_text(json.dumps(results, indent=1) + "\n")


def measure(program: str, file: pathlib.Path, numbers: list[str]) -> list[dict]:
    while not file.exists():
        time.sleep(0.1)
    output = subprocess.run(["losetup", "--direct-io=on", "--find", "--show", file], check=True,
                            capture_output=True, text=True).stdout
    loop = pathlib.Path(output.strip())
    try:
        # The first write leaves no holes in its backing file.
        with open(loop, "r+b", buffering=0) as device:
            block = bytes(1 << 20)
            while device.write(block):
                if device.tell() >= 1 << 30:
                    break
            os.fsync(device)
        rows = []
        for kib in READ_AHEAD_KIB:
            pathlib.Path(f"/sys/block/{loop.name}/queue/read_ahead_kb").write_text(str(kib))
            output = subprocess.run([program, loop, *numbers], check=True, capture_output=True,
                                    text=True).stdout
            rows += [{"read_ahead_kb": kib, **json.loads(line)} for line in output.splitlines()]
        return rows
    finally:
        subprocess.run(["losetup", "--detach", loop], check=False)


if __name__ == "__main__":
    main()
