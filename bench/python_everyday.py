#!/usr/bin/env python3
"""Access patterns of Python programs: ours and its baselines in one run.

usage: bench/python_everyday.py [--on FOLDER] [--mib N] [--times N] [--cell NAME]… [--smoke]
       [--out FILE]

Each cell is one piece of work that ours and its baselines do alternately, `--times` times (default
5), on a file of `--mib` MiB (default 256) in a folder of this machine: `cold`, with no page in the
kernel's page cache, and `resident`, with all pages. A row has the median seconds of each, the
median ratio of ours to the best baseline of the same pass, its limit (1.05, and 1.1 if cached), and
the ratio of the first pass, in which ours runs first and pays for first touches. All must find the
same bytes. Cells over HTTP use a local store that waits 20 ms before each answer, and have no
state. Tensors on a device of a millisecond are in `bench/python_tensors.py`.

- `stream`: all of the file, 64 KiB at a time. Baselines: the unbuffered built-in file, fsspec's
  local one.
- `random`: 4 KiB at random. Baselines: `os.pread`, `numpy.memmap`.
- `rows`: 20,000 embedding rows of 512 B by `readinto_many`. Baselines: `numpy.memmap` with random
  advice, `pread`.
- `rows, readat_many`: the same as separate objects.
- `copied`: a mapping copied whole. Baseline: `numpy.memmap`.
- `mapped`: a mapping touched from end to end. Baseline: `numpy.memmap`.
- `copies`: random slices of 1 MiB copied out of a mapping by `bytes`. Baseline: the same of a
  `numpy.memmap`.
- `pieces`: the same slices, touched; by `pieces` with the order known. Baseline: `numpy.memmap`.
- `loader`: four processes that read random samples of 100 KB. Baseline: the same by `os.pread`.
- `open`: open, 100 B, close, over many files. Baselines: the built-in file, `os.open` and
  `os.pread`.
- `columns`: two of ten columns of a Parquet file into pandas. Baselines: fsspec's local file,
  pyarrow's own.
- `weights`: all tensors of a safetensors file, each byte touched. Baselines: the package
  safetensors, one `readinto`.
- `http stream`, `http columns`, `http row group`: over the store. Baseline: fsspec's file. `http
  filter`: two columns of the rows behind a filter, which lie in one row group. `http
  open_parquet_file`: by both. `http filter, by name`: pandas gets the name. It opens our file
  twice; without us it fetches the whole file.
"""

import argparse
import functools
import json
import multiprocessing
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import delayed_store
import fsspec
import fsspec.parquet
import numpy
import pandas
import pyarrow
import pyarrow.parquet

import readpath

try:
    import safetensors.numpy
except ImportError:
    safetensors = None

BLOCK, ROW, SLICE, SAMPLE = 64 << 10, 512, 1 << 20, 100_000
DELAY_MS = 20
NAMES = ["c2", "c7"]
LIMITS = {"cold": 1.05, "resident": 1.1, None: 1.05}


class Files:
    """Files that the cells read."""

    def __init__(self, folder, mib):
        self.folder = Path(folder)
        self.bytes = mib << 20
        self.data = self.folder / "data.bin"
        with open(self.data, "wb") as file:
            for _ in range(mib):
                file.write(os.urandom(1 << 20))
        self.small = [self.folder / f"small{nth}" for nth in range(200)]
        for path in self.small:
            path.write_bytes(os.urandom(1000))
        draw = numpy.random.default_rng(1)
        count = self.bytes // 80
        table = pyarrow.table({"c0": numpy.arange(count)} | {f"c{nth}": draw.random(count) for nth in range(1, 10)})
        self.rows = count
        self.table = self.folder / "table.parquet"
        pyarrow.parquet.write_table(table, self.table, row_group_size=max(1, count // 20))
        self.weights = self.folder / "weights.safetensors"
        if safetensors:
            tensors = {f"t{nth:03}": draw.random(self.bytes // 64, "f4") for nth in range(16)}
            safetensors.numpy.save_file(tensors, self.weights)
        os.sync()

    def set(self, state):
        """Drops the files from the page cache, or reads them all into it."""
        for path in (self.data, self.table, self.weights, *self.small):
            if not path.exists():
                continue
            handle = os.open(path, os.O_RDONLY)
            if state == "cold":
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while os.read(handle, 8 << 20):
                    pass
            os.close(handle)

    def places(self, seed, count, size):
        draw = random.Random(seed)
        return [draw.randrange(self.bytes // size) * size for _ in range(count)]


def total(pieces):
    return sum(len(piece) for piece in pieces)


def blocks(file):
    count = 0
    while piece := file.read(BLOCK):
        count += len(piece)
    return count


def stream(files, seed):
    def with_(open_):
        with open_() as file:
            return blocks(file)

    return {
        "readpath": lambda: with_(lambda: readpath.open(files.data)),
        "open": lambda: with_(lambda: open(files.data, "rb", buffering=0)),
        "fsspec": lambda: with_(lambda: fsspec.open(f"file://{files.data}").open()),
    }


def random_reads(files, seed):
    places = files.places(seed, min(4_000, files.bytes >> 14), 4096)

    def ours():
        with readpath.open(files.data) as file:
            return sum(file.readat(at, 4096)[0] for at in places)

    def pread():
        handle = os.open(files.data, os.O_RDONLY)
        found = sum(os.pread(handle, 4096, at)[0] for at in places)
        os.close(handle)
        return found

    def memmap():
        data = numpy.memmap(files.data, "u1", "r")
        return sum(bytes(data[at : at + 4096])[0] for at in places)

    return {"readpath": ours, "pread": pread, "memmap": memmap}


def rows(files, seed):
    at = numpy.random.default_rng(seed).integers(0, files.bytes // ROW, 20_000)
    into = numpy.empty((len(at), ROW), "u1")

    def ours():
        with readpath.open(files.data) as file:
            file.readinto_many(at * ROW, into)
        return int(into[:, 0].sum())

    def memmap():
        data = numpy.memmap(files.data, "u1", "r")
        data._mmap.madvise(1)  # MADV_RANDOM
        return int(data.reshape(-1, ROW)[at][:, 0].sum())

    def pread():
        handle = os.open(files.data, os.O_RDONLY)
        for nth, row in enumerate(at.tolist()):
            os.preadv(handle, [into[nth]], row * ROW)
        os.close(handle)
        return int(into[:, 0].sum())

    return {"readpath": ours, "memmap": memmap, "pread": pread}


def rows_of_their_own(files, seed):
    at = numpy.random.default_rng(seed).integers(0, files.bytes // ROW, 20_000)

    def ours():
        with readpath.open(files.data) as file:
            ranges = numpy.stack([at * ROW, numpy.full_like(at, ROW)], axis=1)
            return sum(row[0] for row in file.readat_many(ranges))

    def memmap():
        data = numpy.memmap(files.data, "u1", "r")
        data._mmap.madvise(1)  # MADV_RANDOM
        table = data.reshape(-1, ROW)
        return sum(table[row].tobytes()[0] for row in at.tolist())

    def pread():
        handle = os.open(files.data, os.O_RDONLY)
        found = sum(os.pread(handle, ROW, row * ROW)[0] for row in at.tolist())
        os.close(handle)
        return found

    return {"readpath": ours, "memmap": memmap, "pread": pread}


def copied(files, seed):
    def ours():
        with readpath.map(files.data, memory=files.bytes) as mapping:
            return int(numpy.array(mapping)[seed])

    return {"readpath": ours, "memmap": lambda: int(numpy.array(numpy.memmap(files.data, "u1", "r"))[seed])}


def mapped(files, seed):
    def ours():
        with readpath.map(files.data, memory=files.bytes) as mapping:
            return int(numpy.asarray(mapping).max())

    return {"readpath": ours, "memmap": lambda: int(numpy.memmap(files.data, "u1", "r").max())}


def copies(files, seed):
    places = files.places(seed, 64, SLICE)

    def ours():
        with readpath.map(files.data) as mapping:
            return total(bytes(mapping[at : at + SLICE]) for at in places)

    def memmap():
        data = numpy.memmap(files.data, "u1", "r")
        return total(bytes(data[at : at + SLICE]) for at in places)

    return {"readpath": ours, "memmap": memmap}


def pieces(files, seed):
    places = files.places(seed, 64, SLICE)

    def ours():
        with readpath.map(files.data) as mapping:
            ranges = [(at, SLICE) for at in places]
            return sum(int(numpy.frombuffer(piece, "u1").max()) for piece in mapping.pieces(ranges))

    def memmap():
        data = numpy.memmap(files.data, "u1", "r")
        return sum(int(data[at : at + SLICE].max()) for at in places)

    return {"readpath": ours, "memmap": memmap}


def sample(path, places, is_ours, queue):
    if is_ours:
        with readpath.open(path) as file:
            queue.put(sum(file.readat(at, SAMPLE)[0] for at in places))
        return
    handle = os.open(path, os.O_RDONLY)
    queue.put(sum(os.pread(handle, SAMPLE, at)[0] for at in places))


def loader(files, seed):
    def by(is_ours):
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        workers = [
            context.Process(
                target=sample,
                args=(files.data, files.places(seed * 4 + nth, 300, SAMPLE), is_ours, queue),
            )
            for nth in range(4)
        ]
        for worker in workers:
            worker.start()
        found = sum(queue.get() for _ in workers)
        for worker in workers:
            worker.join()
        return found

    return {"readpath": lambda: by(True), "pread": lambda: by(False)}


def opens(files, seed):
    def with_(open_):
        found = 0
        for path in files.small:
            with open_(path) as file:
                found += file.read(100)[0]
        return found

    def pread():
        found = 0
        for path in files.small:
            handle = os.open(path, os.O_RDONLY)
            found += os.pread(handle, 100, 0)[0]
            os.close(handle)
        return found

    return {
        "readpath": lambda: with_(readpath.open),
        "open": lambda: with_(lambda path: open(path, "rb")),
        "pread": pread,
    }


def summed(source, **options):
    return round(float(pandas.read_parquet(source, columns=NAMES, **options).sum().sum()), 3)


def columns(files, seed):
    def fsspecs():
        with fsspec.open(f"file://{files.table}") as file:
            return summed(file)

    return {
        "readpath": lambda: summed(f"readpath::file://{files.table}"),
        "fsspec": fsspecs,
        "pyarrow": lambda: summed(files.table),
    }


def weights(files, seed):
    def touched(tensors):
        return round(sum(float(tensor.max()) for tensor in tensors.values()), 3)

    def readinto():
        data = numpy.empty(files.weights.stat().st_size, "u1")
        with open(files.weights, "rb", buffering=0) as file:
            filled = 0
            while filled < len(data):
                filled += file.readinto(memoryview(data)[filled:])
        begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
        tensors = numpy.frombuffer(data, "f4", offset=begin).reshape(16, -1)
        return touched(dict(enumerate(tensors)))

    return {
        "readpath": lambda: touched(readpath.load_file(files.weights)),
        "safetensors": lambda: touched(safetensors.numpy.load_file(files.weights)),
        "readinto": readinto,
    }


def http_stream(url, seed):
    def with_(name):
        with fsspec.open(name) as file:
            return blocks(file)

    return {"readpath": lambda: with_(f"readpath::{url}"), "fsspec": lambda: with_(url)}


def in_three_ways(url, use, **options):
    """Our file, fsspec's file, and fsspec's file with its block cache."""

    def of(name, **options):
        with fsspec.open(name, **options) as file:
            return use(file)

    def of_cached():
        with fsspec.filesystem("http").open(url, cache_type="blockcache", block_size=1 << 20) as file:
            return use(file)

    return {
        "readpath": lambda: of(f"readpath::{url}", **options),
        "fsspec": lambda: of(url),
        "fsspec, block cache": of_cached,
    }


def http_columns(url, seed):
    return in_three_ways(url, summed)


def http_columns_in_memory(url, seed):
    return in_three_ways(url, summed, readpath={"memory": "64MiB"})


def http_row_group(url, seed):
    def of(name):
        with fsspec.open(name) as file:
            return pyarrow.parquet.ParquetFile(file).read_row_group(7, columns=NAMES).num_rows

    return {"readpath": lambda: of(f"readpath::{url}"), "fsspec": lambda: of(url)}


def filters(rows):
    begin = rows * 2 // 5
    return [("c0", ">=", begin), ("c0", "<", begin + 100)]


def http_filter(url, seed, rows):
    return in_three_ways(url, functools.partial(summed, filters=filters(rows)))


def http_filter_by_name(url, seed, rows):
    return {
        "readpath": lambda: summed(f"readpath::{url}", filters=filters(rows)),
        "pandas": lambda: summed(url, filters=filters(rows)),
    }


def http_open_parquet_file(url, seed):
    def of(name):
        with fsspec.parquet.open_parquet_file(name, columns=NAMES, engine="pyarrow") as file:
            return summed(file)

    return {"readpath": lambda: of(f"readpath::{url}"), "fsspec": lambda: of(url)}


LOCAL = {
    "stream": stream,
    "random": random_reads,
    "rows": rows,
    "rows, readat_many": rows_of_their_own,
    "mapped": mapped,
    "copied": copied,
    "copies": copies,
    "pieces": pieces,
    "loader": loader,
    "open": opens,
    "columns": columns,
    **({"weights": weights} if safetensors else {}),
}
HTTP = {
    "http stream": http_stream,
    "http columns": http_columns,
    "http columns, 64 MiB": http_columns_in_memory,
    "http row group": http_row_group,
    "http filter": http_filter,
    "http filter, by name": http_filter_by_name,
    "http open_parquet_file": http_open_parquet_file,
}


def passes(work, times, prepare):
    """Seconds of each way in each pass; the first way rotates."""
    seconds = []
    for seed in range(times):
        ways = work(seed)
        names = list(ways)[seed % len(ways) :] + list(ways)[: seed % len(ways)]
        took, found = {}, set()
        for name in names:
            prepare()
            began = time.perf_counter()
            found.add(ways[name]())
            took[name] = time.perf_counter() - began
        assert len(found) == 1, f"all ways find the same: {found}"
        seconds.append(took)
    return seconds


def row(cell, state, seconds):
    ratios = [took["readpath"] / min(t for name, t in took.items() if name != "readpath") for took in seconds]
    medians = {name: statistics.median(took[name] for took in seconds) for name in seconds[0]}
    made = {"cell": cell, "state": state, "ratio": round(statistics.median(ratios), 2)}
    made["limit"], made["first"] = LIMITS[state], round(ratios[0], 2)
    made["seconds"] = {name: round(median, 4) for name, median in medians.items()}
    print(json.dumps(made), file=sys.stderr, flush=True)
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--on", metavar="FOLDER", default="/var/tmp")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--cell", action="append", choices=[*LOCAL, *HTTP])
    parser.add_argument("--smoke", action="store_true", help="once, at a small size")
    parser.add_argument("--out", metavar="FILE")
    arguments = parser.parse_args()
    mib, times = (8, 1) if arguments.smoke else (arguments.mib, arguments.times)
    wanted = arguments.cell or [*LOCAL, *HTTP]
    made = []
    with tempfile.TemporaryDirectory(dir=arguments.on) as folder:
        files = Files(folder, mib)
        for cell in (cell for cell in LOCAL if cell in wanted):
            for state in ("cold", "resident"):
                seconds = passes(lambda seed: LOCAL[cell](files, seed), times, lambda: files.set(state))
                made.append(row(cell, state, seconds))
        for cell in (cell for cell in HTTP if cell in wanted):
            path = files.data if cell == "http stream" else files.table
            more = {"rows": files.rows} if cell.startswith("http filter") else {}
            with delayed_store.running(path, 1 if arguments.smoke else DELAY_MS) as url:
                work = functools.partial(HTTP[cell], url, **more)
                made.append(row(cell, None, passes(work, times, lambda: None)))
    machine = f"{platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}"
    above = [f"{one['cell']} {one['state'] or ''}".strip() for one in made if one["ratio"] > one["limit"]]
    document = {"machine": machine, "mib": mib, "times": times, "above": above, "rows": made}
    text = json.dumps(document, indent=1)
    if arguments.out:
        Path(arguments.out).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
