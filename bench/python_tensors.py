#!/usr/bin/env python3
"""Tensors of one file in random order: ours, mmap, read, and the loader of safetensors.

usage: bench/python_tensors.py [--mib N] [--times N] [--on FOLDER] [--smoke] [--out FILE]
       (default 256, 5; some minutes)

Without `--on` the file lies on the device of `bench/one_head.py constant`, which takes a
millisecond a request. A loop device with the kernel's default readahead of 128 KiB and an ext4 file
system lie above it; this needs root. With `--on` it lies in a folder of this machine. It is a
safetensors file. Every byte of each tensor is touched, in a new random order for each pass. Passes
alternate, `cold` (no page cached) and `resident` (all cached). One more pass in a process of its
own gives the peak of own memory (`RssAnon` of proc(5), without shared page cache) and the bytes
that the kernel reads for it, cold:

- `numpy.memmap`; one `readinto` of all; four threads of `preadv`, 8 MiB at a time; and, where they
  are installed, `load_file` and `safe_open` of the package safetensors, and the loaders of
  fastsafetensors and of runai-model-streamer (these two need torch, and so does
  `readpath.load_file, torch`, which is then measured too);
- `readpath.load_file`, and `readpath.safe_open` with all tensors requested together and one by one;
- `readpath.map`, touched only, each tensor loaded first, and in order by `pieces`, which reads the
  next tensors while one is touched;
- the floor, cold: the file read in order by direct I/O, 8 MiB at a time.
"""

import argparse
import contextlib
import importlib.util
import json
import mmap
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy
import one_head

import readpath

try:
    import safetensors
    import safetensors.numpy
except ImportError:
    safetensors = None

HAS_TORCH = importlib.util.find_spec("torch") is not None
STREAMERS = [
    name for name in ("fastsafetensors", "runai_model_streamer") if HAS_TORCH and importlib.util.find_spec(name)
]
for name in STREAMERS and ["torch", *STREAMERS]:
    importlib.import_module(name)


def lay_out(path, mib):
    """Writes a file of tensors; returns the offset and length of each."""
    draw = random.Random(7)
    sizes = []
    while sum(sizes) < mib << 20:
        sizes.append(draw.choice([64, 512, 1024, 4096, 6144]) << 10)
    header, at = {}, 0
    for nth, size in enumerate(sizes):
        offsets = [at, at + size]
        header[f"layer.{nth}"] = {"dtype": "U8", "shape": [size], "data_offsets": offsets}
        at += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for size in sizes:
            file.write(os.urandom(size))
        os.fsync(file.fileno())
    return places_of(path)


def places_of(path):
    """Offset and length of each tensor of a file."""
    with open(path, "rb") as file:
        count = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(count))
    offsets = [tensor["data_offsets"] for tensor in header.values()]
    return [(8 + count + begin, end - begin) for begin, end in offsets]


def cold(path):
    """Drops the file from the kernel's page cache."""
    handle = os.open(path, os.O_RDONLY)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def touch(data, tensors):
    return sum(int(numpy.frombuffer(data, "u1", size, at).max()) for at, size in tensors)


def by_memmap(path, tensors):
    return touch(numpy.memmap(path, "u1", "r"), tensors)


def by_safe_open(path, tensors):
    starts = sorted(at for at, _ in tensors)
    with safetensors.safe_open(path, "numpy") as file:
        names = [f"layer.{starts.index(at)}" for at, _ in tensors]
        return sum(int(file.get_tensor(name).max()) for name in names)


def by_their_load_file(path, tensors):
    return of_all(safetensors.numpy.load_file(path), tensors)


def of_all(loaded, tensors):
    """Touches the loaded tensors in the order of the pass."""
    starts = sorted(at for at, _ in tensors)
    return sum(int(loaded[f"layer.{starts.index(at)}"].max()) for at, _ in tensors)


def by_readinto(path, tensors):
    data = numpy.empty(os.path.getsize(path), "u1")
    with open(path, "rb", buffering=0) as file:
        filled = 0
        while filled < len(data):
            filled += file.readinto(memoryview(data)[filled:])
    return touch(data, tensors)


def by_preads(path, tensors, threads=4, piece=8 << 20):
    data = numpy.empty(os.path.getsize(path), "u1")
    handle = os.open(path, os.O_RDONLY)

    def fill(nth):
        for at in range(nth * piece, len(data), threads * piece):
            os.preadv(handle, [memoryview(data)[at : at + piece]], at)

    workers = [threading.Thread(target=fill, args=(nth,)) for nth in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    os.close(handle)
    return touch(data, tensors)


def by_fastsafetensors(path, tensors):
    import fastsafetensors
    import torch

    loader = fastsafetensors.SafeTensorsFileLoader(
        fastsafetensors.SingleGroup(), torch.device("cpu"), nogds=True
    )
    loader.add_filenames({0: [str(path)]})
    files = loader.copy_files_to_device()
    names = list(files.key_to_rank_lidx)
    found = of_all({name: files.get_tensor(name).numpy() for name in names}, tensors)
    files.close()
    loader.close()
    return found


def by_runai(path, tensors):
    """Touches each tensor when it arrives: the next one replaces it."""
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_file(str(path))
        return sum(int(tensor.numpy().max()) for _, tensor in streamer.get_tensors())


def by_load_file_for_torch(path, tensors):
    loaded = readpath.load_file(path, "pt")
    return of_all({name: tensor.numpy() for name, tensor in loaded.items()}, tensors)


def by_load_file(path, tensors):
    return of_all(readpath.load_file(path), tensors)


def by_get_tensors(path, tensors):
    with readpath.safe_open(path) as file:
        names = file.offset_keys()
        starts = sorted(at for at, _ in tensors)
        return of_all(file.get_tensors([names[starts.index(at)] for at, _ in tensors]), tensors)


def by_get_tensor(path, tensors):
    with readpath.safe_open(path) as file:
        starts = sorted(at for at, _ in tensors)
        names = [f"layer.{starts.index(at)}" for at, _ in tensors]
        return sum(int(file.get_tensor(name).max()) for name in names)


def by_map(path, tensors):
    with readpath.map(path, memory="512MiB") as mapping:
        return touch(mapping.data, tensors)


def by_load(path, tensors):
    with readpath.map(path, memory="512MiB") as mapping:
        found = 0
        for at, size in tensors:
            mapping.load(at, size)
            found += touch(mapping.data, [(at, size)])
        return found


def by_pieces(path, tensors):
    """A loader with a known order: the next pieces are read meanwhile."""
    with readpath.map(path, memory="512MiB") as mapping:
        return sum(int(numpy.frombuffer(piece, "u1").max()) for piece in mapping.pieces(tensors))


def by_direct(path, tensors):
    """In order, every byte once: the rate of the device."""
    end = max(at + size for at, size in tensors)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 8 << 20)
    for at in range(0, end, 8 << 20):
        os.preadv(handle, [buffer], at)
    os.close(handle)


WAYS = {
    "numpy.memmap": by_memmap,
    "readinto": by_readinto,
    "4 threads of preadv": by_preads,
    **({"safetensors.load_file": by_their_load_file} if safetensors else {}),
    **({"safetensors.safe_open": by_safe_open} if safetensors else {}),
    **({"fastsafetensors": by_fastsafetensors} if "fastsafetensors" in STREAMERS else {}),
    **({"runai-model-streamer": by_runai} if "runai_model_streamer" in STREAMERS else {}),
    **({"load_file, torch": by_load_file_for_torch} if STREAMERS else {}),
    "load_file": by_load_file,
    "safe_open, get_tensors": by_get_tensors,
    "safe_open, get_tensor": by_get_tensor,
    "map": by_map,
    "map, load": by_load,
    "map, pieces": by_pieces,
    "direct": by_direct,
}


def measured(path, mib, times):
    """A row for each way, pass and state of the kernel's page cache."""
    tensors = lay_out(path, mib)
    rows = []
    for nth in range(times):
        order = random.Random(nth).sample(tensors, len(tensors))
        for state in ("cold", "resident"):
            found = set()
            for way, read in WAYS.items():
                if (way, state) == ("direct", "resident"):
                    continue
                cold(path) if state == "cold" else Path(path).read_bytes()
                began = time.perf_counter()
                result = read(path, order)
                seconds = time.perf_counter() - began
                rows.append({"way": way, "state": state, "pass": nth, "seconds": seconds})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                found |= {result} - {None}
            assert len(found) == 1, "all ways see the same bytes"
    return rows, len(tensors)


def counted_of(name):
    """A number of this process from proc(5), in bytes, by its name."""
    for where, unit in (("status", 1024), ("io", 1)):
        for line in Path(f"/proc/self/{where}").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * unit
    raise KeyError(name)


def peak(way, path):
    """Peak of own memory of a way, and bytes read by the kernel, in MiB; in this process, cold."""
    tensors = places_of(path)
    cold(path)
    is_done = threading.Event()
    most = [before := counted_of("RssAnon")]

    def look():
        while not is_done.wait(0.002):
            most.append(counted_of("RssAnon"))

    looker = threading.Thread(target=look)
    looker.start()
    fetched = counted_of("read_bytes")
    WAYS[way](path, tensors)
    fetched = counted_of("read_bytes") - fetched
    is_done.set()
    looker.join()
    return {"own_mib": round((max(most) - before) / (1 << 20), 1), "fetched_mib": round(fetched / (1 << 20), 1)}


def peaks(path):
    """Memory of each way: the most of three runs, each in a process of its own.

    A thread samples the memory. It may miss a short peak when it gets no processor.
    """
    found = {}
    for way in WAYS:
        command = [sys.executable, __file__, "--peak", way, "--on", path]
        runs = []
        for _ in range(3):
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
        found[way] = max(runs, key=lambda run: run["own_mib"])
        print(json.dumps({"way": way} | found[way]), file=sys.stderr, flush=True)
    return found


@contextlib.contextmanager
def folder_of(arguments):
    """Folder of the file, and its device."""
    if arguments.on:
        with tempfile.TemporaryDirectory(dir=arguments.on) as folder:
            yield folder, arguments.on
        return
    if os.geteuid() != 0:
        sys.exit(__doc__)
    one_head.COMMAND = Path(os.environ.get("READPATH_COMMAND", one_head.COMMAND))
    device, is_rotational, _ = one_head.DEVICES["constant"]
    with tempfile.TemporaryDirectory() as mount, one_head.Disk(
        device, is_rotational, mount, f"{arguments.mib * 5 // 4 + 32}MiB"
    ) as disk, one_head.mounted(disk) as folder:
        # The kernel's default; an earlier run may have left another value on this loop device.
        Path(f"/sys/block/{disk.name}/queue/read_ahead_kb").write_text("128")
        yield folder, device


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--on", metavar="FOLDER")
    parser.add_argument("--smoke", action="store_true", help="once, at a small size")
    parser.add_argument("--out", metavar="FILE", help="in place of bench/results/python-tensors….json")
    parser.add_argument("--peak", metavar="WAY", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        print(json.dumps(peak(arguments.peak, arguments.on)))
        return
    if arguments.smoke:
        arguments.mib, arguments.times = 16, 1
    with folder_of(arguments) as (folder, device):
        path = str(Path(folder) / "model.safetensors")
        rows, count = measured(path, arguments.mib, arguments.times)
        memory = peaks(path)
    medians = {
        state: {
            way: statistics.median(times)
            for way in WAYS
            if (times := [row["seconds"] for row in rows if (row["way"], row["state"]) == (way, state)])
        }
        for state in ("cold", "resident")
    }
    machine = f"{platform.machine()}, Linux {platform.release()}"
    document = {"machine": machine, "device": device, "mib": arguments.mib}
    document |= {"tensors": count, "medians": medians, "memory": memory, "rows": rows}
    text = json.dumps(document, indent=1)
    name = "python-tensors-local.json" if arguments.on else "python-tensors.json"
    out = Path(arguments.out) if arguments.out else one_head.ROOT / "bench/results" / name
    out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
