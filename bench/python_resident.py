#!/usr/bin/env python3
"""Tensors of a file in the kernel's page cache, read into place: ours and `os.preadv`.

usage: bench/python_resident.py [--mib N] [--times N]     (default 128, 5; about half a minute)

The file is written and read once, so that the kernel caches all of it. Tensors of one size are read
in random order into the same array, by both, in the same pass. Each pass has a new read path. The
row of a size has the microseconds of a read in the best pass of each, their ratio, the ratio of
processor time (which other load disturbs less), and the bytes that ours read from the device.
"""

import argparse
import json
import os
import platform
import random
import tempfile
import time

import numpy

import readpath

SIZES = [64 << 10, 256 << 10, 1 << 20, 6 << 20, 32 << 20]


def seconds(read, offsets):
    """Elapsed seconds, and processor time."""
    began = time.perf_counter(), time.process_time()
    for offset in offsets:
        read(offset)
    return time.perf_counter() - began[0], time.process_time() - began[1]


def row(name, file_bytes, size, times):
    offsets = random.Random(1).sample(range(0, file_bytes, size), min(64, file_bytes // size))
    tensor = numpy.ones(size, "u1")
    passes = []
    handle = os.open(name, os.O_RDONLY)
    for _ in range(times):
        within = readpath.ReadPath(memory="256MiB")
        with within.open(name) as file:
            kernel = seconds(lambda at: os.preadv(handle, [tensor], at), offsets)
            passes.append((*kernel, *seconds(lambda at: file.readinto_at(at, tensor), offsets)))
            assert tensor.tobytes() == os.pread(handle, size, offsets[-1])
            device_bytes = within.stats()["device_bytes"]
    os.close(handle)
    best = [min(column) / len(offsets) * 1e6 for column in zip(*passes, strict=True)]
    (kernel, kernel_cpu, path, path_cpu) = best
    return {
        "kib": size >> 10,
        "preadv_us": round(kernel, 1),
        "ours_us": round(path, 1),
        "ratio": round(path / kernel, 2),
        "ratio_of_processor_time": round(path_cpu / kernel_cpu, 2),
        "device_bytes": device_bytes,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    file_bytes = arguments.mib << 20
    print(f"{platform.machine()}, Linux {platform.release()}")
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:
        for _ in range(arguments.mib):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        for size in SIZES:
            if size <= file_bytes:
                print(json.dumps(row(file.name, file_bytes, size, arguments.times)), flush=True)


if __name__ == "__main__":
    main()
