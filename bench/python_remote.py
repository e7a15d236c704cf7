#!/usr/bin/env python3
"""Objects by URL from Python: the package's own clients next to obstore, polars and fsspec.

    python bench/python_remote.py [--runs N] [--delay MS] [--small] [--only CELL,…] [--out FILE]

A local HTTP store waits 20 ms before each answer (`bench/delayed_store.py`). Cells:

- `whole`: an object of 256 MiB in one read.
- `weights`: 32 tensors of 8 MiB in a file of safetensors, all of them.
- `stream`: the object by reads of 64 KiB. `ranges`: 190 ranges of 4 KiB, in one call.
- `columns`: 3 of 24 columns of a Parquet file. `announced`: the same, after `prefetch_columns`.
- `hdf5`: 3 of 24 contiguous datasets.
- `chunks`: a Zarr array of 64 chunks of 128 KiB.
- `objects`: 64 objects of 64 KiB on 16 threads.

Each run is a fresh process; the time begins after the imports. The ways of a cell alternate, in
rotated order. Prints one JSON document: for each cell and way the median of the seconds with the
least and the greatest, and the ratio `best other / ours`. It is `level` if the ranges of the two
overlap.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import delayed_store

MIB = 1 << 20
COLUMNS = [f"column{nth}" for nth in range(24)]
READ_COLUMNS = ["column3", "column11", "column20"]
RANGES = [(nth * 7919 % 190 * MIB, 4096) for nth in range(190)]


def make(folder, is_small):
    """Writes the objects of all cells."""
    import h5py
    import numpy
    import pyarrow
    import pyarrow.parquet
    import zarr
    from safetensors.numpy import save_file

    draw = numpy.random.default_rng(1)
    size = (32 if is_small else 256) * MIB
    (folder / "whole").write_bytes(draw.bytes(size))
    tensor_bytes = size // 32
    save_file({f"t{nth}": draw.integers(0, 255, tensor_bytes, "u1") for nth in range(32)}, folder / "weights")
    rows = size // 24 // 8
    values = {name: draw.random(rows) for name in COLUMNS}
    pyarrow.parquet.write_table(pyarrow.table(values), folder / "table.parquet", row_group_size=rows // 8, compression="none")
    with h5py.File(folder / "datasets", "w") as file:
        for name, column in values.items():
            file[name] = column
    zarr.create_array(
        folder / "array", shape=(8, MIB // 8), chunks=(1, MIB // 64), dtype="u8", compressors=None
    )[:] = draw.integers(0, 1 << 60, (8, MIB // 8))
    for nth in range(64):
        (folder / f"object{nth}").write_bytes(draw.bytes(65_536))


def obstore_of(url):
    """obstore's store over the server."""
    import obstore.store

    return obstore.store.HTTPStore.from_url(url, client_options={"allow_http": True})


def file_of_obstore(url):
    """A file of obstore's file system for fsspec: pyarrow and h5py refuse obstore's own file object."""
    import obstore.fsspec

    return obstore.fsspec.FsspecStore("http", client_options={"allow_http": True}).open(url)


def file_of(url, name, way):
    """An object as a file: by a client of readpath, or by obstore's file system."""
    if way == "obstore":
        return file_of_obstore(f"{url}{name}")
    import readpath

    return readpath.open(f"{url}{name}", client=way)


def whole(url, way):
    if way == "obstore":
        import obstore

        return len(obstore.get(obstore_of(url), "whole").bytes())
    import readpath

    with readpath.open(f"{url}whole", client=way) as file:
        return len(file.read())


def weights(url, way):
    if way == "obstore":
        import obstore
        import safetensors.numpy

        tensors = safetensors.numpy.load(bytes(obstore.get(obstore_of(url), "weights").bytes()))
    else:
        import readpath

        tensors = readpath.load_file(f"{url}weights")
    return sum(tensor.nbytes for tensor in tensors.values())


def stream(url, way):
    if way == "obstore":
        import obstore

        file = obstore.open_reader(obstore_of(url), "whole")
    else:
        import readpath

        file = readpath.open(f"{url}whole", client=way)
    count = 0
    while piece := file.read(65_536):
        count += len(piece)
    return count


def ranges(url, way):
    size = int(os.environ["WHOLE_BYTES"])
    within = [(offset % (size - 4096), length) for offset, length in RANGES]
    if way == "obstore":
        import obstore

        starts, lengths = zip(*within, strict=True)
        pieces = obstore.get_ranges(obstore_of(url), "whole", starts=starts, lengths=lengths)
    else:
        import readpath

        pieces = readpath.open(f"{url}whole", client=way).readat_many(within)
    return sum(len(piece) for piece in pieces)


def columns(url, way):
    if way == "polars":
        import polars

        return polars.scan_parquet(f"{url}table.parquet").select(READ_COLUMNS).collect().height
    import pyarrow.parquet

    file = file_of(url, "table.parquet", way)
    return pyarrow.parquet.read_table(file, columns=READ_COLUMNS).num_rows


def announced(url, way):
    if way == "polars":
        return columns(url, way)
    import pyarrow.parquet

    file = file_of(url, "table.parquet", way)
    file.prefetch_columns(READ_COLUMNS)
    return pyarrow.parquet.read_table(file, columns=READ_COLUMNS).num_rows


def hdf5(url, way):
    import h5py

    file = file_of(url, "datasets", way)
    with h5py.File(file) as datasets:
        return sum(datasets[name][:].nbytes for name in READ_COLUMNS)


def chunks(url, way):
    import zarr

    if way == "obstore":
        store = zarr.storage.ObjectStore(obstore_of(f"{url}array"), read_only=True)
    else:
        prefix = "readpath::" if way == "readpath::" else ""
        store = zarr.storage.FsspecStore.from_url(f"{prefix}{url}array", read_only=True)
    return zarr.open_array(store, mode="r", zarr_format=3)[:].nbytes


def objects(url, way):
    names = [f"object{nth}" for nth in range(64)]
    if way == "obstore":
        import obstore

        store = obstore_of(url)

        def read(name):
            return len(obstore.get(store, name).bytes())
    else:
        import readpath

        def read(name):
            with readpath.open(url + name, client=way) as file:
                return len(file.read())

    with ThreadPoolExecutor(16) as threads:
        return sum(threads.map(read, names))


CELLS = {
    "whole": (whole, ["readpath", "fsspec", "obstore"]),
    "weights": (weights, ["readpath", "obstore"]),
    "stream": (stream, ["readpath", "fsspec", "obstore"]),
    "ranges": (ranges, ["readpath", "fsspec", "obstore"]),
    "columns": (columns, ["readpath", "fsspec", "obstore", "polars"]),
    "announced": (announced, ["readpath", "fsspec", "polars"]),
    "hdf5": (hdf5, ["readpath", "fsspec", "obstore"]),
    "chunks": (chunks, ["readpath::", "fsspec", "obstore"]),
    "objects": (objects, ["readpath", "fsspec", "obstore"]),
}
IMPORTS = {
    "readpath": ["readpath"],
    "readpath::": ["readpath", "fsspec", "aiohttp"],
    "fsspec": ["readpath", "fsspec", "aiohttp", "readpath.filesystem"],
    "obstore": ["obstore", "obstore.store"],
    "polars": ["polars"],
}


def one(cell, way, url):
    """Runs a cell in this process, and prints its seconds and its result."""
    for name in [*IMPORTS[way], *{"columns": ["pyarrow.parquet", "pyarrow.dataset"], "announced": ["pyarrow.parquet", "pyarrow.dataset"], "hdf5": ["h5py"], "chunks": ["zarr"]}.get(cell, [])]:
        __import__(name)
    began = time.perf_counter()
    result = CELLS[cell][0](url, way)
    print(json.dumps([time.perf_counter() - began, result]), flush=True)
    # pyarrow's threads may free buffers during the exit of the interpreter, which then aborts.
    os._exit(0)


def measured(cell, runs, url, environment):
    """Seconds of each way of a cell."""
    ways = CELLS[cell][1]
    seconds, results = {way: [] for way in ways}, set()
    for nth in range(runs):
        for way in ways[nth % len(ways) :] + ways[: nth % len(ways)]:
            command = [sys.executable, __file__, "--one", cell, way, url]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            if done.returncode != 0:
                sys.exit(f"{cell} {way}: {done.stderr}")
            spent, result = json.loads(done.stdout)
            seconds[way].append(spent)
            results.add(result)
    if len(results) > 1:
        sys.exit(f"{cell}: the ways differ in their results: {results}")
    return seconds


def summary(cell, seconds):
    """Median and range of each way, and the ratio of the best other one to ours."""
    ours = CELLS[cell][1][0]
    rows = {
        way: {"median": round(statistics.median(each), 4), "least": round(min(each), 4), "greatest": round(max(each), 4)}
        for way, each in seconds.items()
    }
    best = min((way for way in rows if way not in (ours, "fsspec")), key=lambda way: rows[way]["median"])
    is_level = rows[best]["least"] <= rows[ours]["greatest"] and rows[ours]["least"] <= rows[best]["greatest"]
    ratio = round(rows[best]["median"] / rows[ours]["median"], 3)
    return {"cell": cell, "ours": ours, "best_other": best, "ratio": ratio, "is_level": is_level, "seconds": rows}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=7)
    options.add_argument("--delay", type=float, default=20, help="milliseconds before each answer")
    options.add_argument("--small", action="store_true", help="objects of an eighth of the size")
    options.add_argument("--only", help="names of cells, with commas")
    options.add_argument("--out", type=Path, help="file for the document")
    options.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = options.parse_args()
    if options.one:
        return one(*options.one)
    cells = options.only.split(",") if options.only else list(CELLS)
    if unknown := set(cells) - set(CELLS):
        sys.exit(f"--only: there is no cell {', '.join(sorted(unknown))}; there are {', '.join(CELLS)}")
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), options.small)
        environment = os.environ | {"WHOLE_BYTES": str((Path(folder) / "whole").stat().st_size)}
        with delayed_store.running(folder, options.delay) as url:
            rows = [summary(cell, measured(cell, options.runs, url, environment)) for cell in cells]
    names = ["readpath", "obstore", "polars", "pyarrow", "h5py", "zarr", "fsspec", "aiohttp", "safetensors"]
    document = {
        "benchmark": "python_remote",
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, Linux {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in names},
        "delay_ms": options.delay,
        "runs": options.runs,
        "is_small": options.small,
        "cells": rows,
    }
    text = json.dumps(document, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
