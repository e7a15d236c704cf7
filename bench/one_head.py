#!/usr/bin/env python3
"""Our schedulers and the kernel's over an emulated device, in real time. Needs root.

usage: bench/one_head.py [one-head|mixed|constant]   (default one-head; about three minutes)

`readpath emulate` serves a modelled device as a file: a disk with one head (7,200 rpm, 2010), or a
device of about a millisecond a request, eight at once. A loop device makes it a block device.
Eight sequential readers start a second apart (mixed: four of them, and four random ones). They
read through our path under each of our schedulers, and through the kernel's under each of its own.
Prints MiB/s, the slowest reader of the first kind, and Jain's index over the rates of the readers.
Writes the raw rows to bench/results/.
"""

import contextlib
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import built

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMAND = built.COMMAND
EIGHT = ROOT / "bench/one-head/eight-readers.fio"
MIXED = ROOT / "bench/one-head/mixed-readers.fio"
OURS = ["noop", "adaptive", "deadline", "cfq", "cfq,low_latency=0"]


def constant(microseconds: int, at_once: int) -> str:
    """A device that answers each request after a fixed time."""
    names = ("first_byte_min", "first_byte_p50", "first_byte_p90", "first_byte_p99",
             "first_byte_max", "connection")
    times = ",".join(f"{name}={microseconds}" for name in names)
    return f"object,{times},connections={at_once},get_rate=1000000"


DEVICES = {
    "one-head": ("hdd,drive=sata2010", "1", EIGHT),
    "mixed": ("hdd,drive=sata2010", "1", MIXED),
    "constant": (constant(1_000, 8), "0", EIGHT),
}
KERNELS = [("none", {}), ("mq-deadline", {}), ("bfq", {}), ("bfq", {"low_latency": "0"})]


def main() -> None:
    name = sys.argv[1] if len(sys.argv) == 2 else "one-head"
    if len(sys.argv) > 2 or name not in DEVICES or os.geteuid() != 0:
        sys.exit(__doc__)
    device, is_rotational, job = DEVICES[name]
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as mount, Disk(device, is_rotational, mount) as disk:
        rows = measure(disk, job)
    print(f"{'path':8} {'scheduler':20} {'MiB/s':>7} {'slowest':>8} {'Jain':>6}")
    for row in rows:
        slowest = min(row["readers_mib_per_s"][:4])
        print(f"{row['path']:8} {row['scheduler']:20} {row['mib_per_s']:7.1f} {slowest:8.1f} "
              f"{row['jain']:6.2f}")
    machine = f"{platform.machine()}, Linux {platform.release()}"
    results = {"machine": machine, "device": device, "rows": rows}
    (ROOT / f"bench/results/{name}.json").write_text(json.dumps(results, indent=1) + "\n")


class Disk:
    """An emulated device with a loop device on top; both are removed at the end."""

    def __init__(self, device: str, is_rotational: str, mount: str, size: str = "4GiB",
                 data: str | None = None) -> None:
        """`data` is the folder of the file that holds the data; default: the temporary folder."""
        self.device, self.is_rotational, self.mount = device, is_rotational, mount
        self.size, self.data = size, data
        self.opened: int | None = None
        self.rotational: pathlib.Path | None = None

    def __enter__(self) -> pathlib.Path:
        command = [COMMAND, "emulate", self.device, "--at", self.mount, "--size", self.size]
        environment = {**os.environ, "TMPDIR": self.data} if self.data else None
        self.server = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment,
                                       preexec_fn=first_in_line)
        try:
            self.attach(pathlib.Path(self.mount) / "device")
        except BaseException:
            self.__exit__()
            raise
        return self.loop

    def attach(self, file: pathlib.Path) -> None:
        while not file.exists():
            if self.server.poll() is not None:
                sys.exit(f"`readpath emulate` ended with status {self.server.returncode}")
            time.sleep(0.1)
        output = subprocess.run(["losetup", "--direct-io=on", "--find", "--show", file],
                                check=True, capture_output=True, text=True).stdout
        self.loop = pathlib.Path(output.strip())
        # Detached while open, the kernel removes the loop device when its last user has closed it,
        # also if this program is killed.
        self.opened = os.open(self.loop, os.O_RDONLY)
        subprocess.run(["losetup", "--detach", self.loop], check=True)
        self.rotational = pathlib.Path(f"/sys/block/{self.loop.name}/queue/rotational")
        self.rotational_before = self.rotational.read_text()
        self.rotational.write_text(self.is_rotational)

    def __exit__(self, *_: object) -> None:
        if self.rotational is not None:
            self.rotational.write_text(self.rotational_before)
        if self.opened is not None:
            os.close(self.opened)
        self.server.send_signal(signal.SIGTERM)
        self.server.wait()


def first_in_line() -> None:
    """Runs the emulated device before other programs, so that its answers are in time."""
    # Without the right to it the answers are late under load.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))


@contextlib.contextmanager
def mounted(disk: pathlib.Path, options: str = "defaults") -> Iterator[pathlib.Path]:
    """A new ext4 file system on the disk, in a temporary folder. `options` of `mount`."""
    subprocess.run(["mkfs.ext4", "-q", "-E", "nodiscard", disk], check=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-o", options, disk, folder], check=True)
        try:
            yield pathlib.Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def measure(disk: pathlib.Path, job: pathlib.Path) -> list[dict]:
    # Direct reads bypass our schedulers. A cache of its own without readahead is as direct.
    options = ["--page-cache", "own", "--memory", "64MiB", "--readahead", "none", "--scheduler"]
    rows = []
    with tempfile.NamedTemporaryFile("w", suffix=".fio") as cached:
        cached.write(job.read_text().replace("direct=1", "direct=0"))
        cached.flush()
        cached_job = pathlib.Path(cached.name)
        # Not counted: this run fills the backing file of the emulated device.
        once(cached_job, f"file:{disk}", [*options, "noop"])
        for scheduler in OURS:
            rows.append({"path": "ours", "scheduler": scheduler,
                         **once(cached_job, f"file:{disk}", [*options, scheduler])})
    queue = pathlib.Path(f"/sys/block/{disk.name}/queue")
    for scheduler, tunables in KERNELS:
        # Select none first: a scheduler that is selected again has its defaults.
        for name in ("none", scheduler):
            (queue / "scheduler").write_text(name)
        for name, value in tunables.items():
            (queue / "iosched" / name).write_text(value)
        label = ",".join([scheduler, *(f"{name}={value}" for name, value in tunables.items())])
        rows.append({"path": "kernel", "scheduler": label, **once(job, f"kernel:{disk}", [])})
    return rows


def once(job: pathlib.Path, storage: str, options: list[str]) -> dict:
    command = [COMMAND, "run", job, "--on", storage, "--json", *options]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    row = json.loads(output)["results"][0]
    rates = [section["mib_per_s"] for section in row["sections"]]
    jain = sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates))
    return {"mib_per_s": row["mib_per_s"], "jain": jain, "readers_mib_per_s": rates}


if __name__ == "__main__":
    main()
