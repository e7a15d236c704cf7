#!/usr/bin/env python3
"""Libraries over a file of readpath, next to the same library without it, on a server with latency.

    python bench/python_libraries.py [--delay MS] [--passes N] [--only NAME] [--save]

Each pass opens the file again. The order of both alternates. Prints medians, least and greatest, in
seconds. `--save` writes `results/python-libraries.json` and the table of `python/docs/libraries.md`.
A library that is not installed is named, and left out.
"""

import argparse
import contextlib
import io
import json
import platform
import re
import statistics
import sys
import tarfile
import tempfile
import time
from importlib import metadata
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
import delayed_store

SHAPE = (512, 512, 16)
ROWS, COLUMNS, GROUP_ROWS = 500_000, 20, 50_000
SAMPLES, SAMPLE_BYTES = 400, 50_000
DOCS = Path(__file__).parents[1] / "python" / "docs" / "libraries.md"


def write_parquet(path, rows=ROWS, group_rows=GROUP_ROWS):
    import numpy
    import pandas

    draw = numpy.random.default_rng(1)
    columns = {f"c{nth}": draw.random(rows) for nth in range(COLUMNS)}
    pandas.DataFrame(columns).to_parquet(path, row_group_size=group_rows)


def write_h5(path, shape=SHAPE):
    import h5py
    import numpy

    with h5py.File(path, "w") as file:
        data = numpy.random.default_rng(2).random(shape).astype("f4")
        file.create_dataset("x", data=data, chunks=(shape[0] // 8, shape[1] // 8, shape[2]))


def write_zip(path, shape=SHAPE):
    import numpy
    import zarr

    store = zarr.storage.ZipStore(path, mode="w")
    data = numpy.random.default_rng(3).random(shape).astype("f4")
    chunks = (shape[0] // 8, shape[1] // 8, shape[2])
    zarr.create_array(store, name="x", data=data, chunks=chunks, compressors=None)
    store.close()


def write_tar(path, samples=SAMPLES, sample_bytes=SAMPLE_BYTES):
    import random

    draw = random.Random(4)
    with tarfile.open(path, "w") as archive:
        for nth in range(samples):
            for suffix, data in (("bin", draw.randbytes(sample_bytes)), ("cls", b"%d" % nth)):
                member = tarfile.TarInfo(f"{nth:05}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


@contextlib.contextmanager
def opened(url, is_ours):
    """A file of readpath, or of fsspec with its defaults."""
    import fsspec
    import readpath

    with readpath.open(url) if is_ours else fsspec.open(url) as file:
        yield file


def pandas_columns(url, is_ours):
    import pandas

    if not is_ours:
        return pandas.read_parquet(url, columns=["c3", "c7"])["c3"].sum()
    with opened(url, is_ours) as file:
        return pandas.read_parquet(file, columns=["c3", "c7"])["c3"].sum()


def polars_scan(url, is_ours):
    import polars

    with opened(url, is_ours) as file:
        return polars.scan_parquet(file).select("c3", "c7").collect()["c3"].sum()


def polars_whole(url, is_ours):
    import polars

    with opened(url, is_ours) as file:
        return polars.read_parquet(file)["c3"].sum()


def pyarrow_columns(url, is_ours):
    import pyarrow.compute
    import pyarrow.parquet

    with opened(url, is_ours) as file:
        table = pyarrow.parquet.read_table(file, columns=["c3", "c7"])
        return pyarrow.compute.sum(table["c3"]).as_py()


def duckdb_columns(url, is_ours):
    import duckdb
    import fsspec
    import pyarrow.dataset

    storage, path = fsspec.url_to_fs(f"readpath::{url}" if is_ours else url)
    dataset = pyarrow.dataset.dataset(path, filesystem=storage, format="parquet")
    assert dataset.count_rows()
    return duckdb.sql("SELECT min(c3), max(c7) FROM dataset").fetchall()


def h5py_part(url, is_ours):
    import h5py

    with opened(url, is_ours) as file, h5py.File(file) as data:
        return data["x"][::2, :, 0].sum()


def xarray_plane(url, is_ours):
    import xarray

    with opened(url, is_ours) as file:
        with xarray.open_dataset(file, engine="h5netcdf", phony_dims="sort") as data:
            return data["x"][:, :, 0].values.sum()


def zarr_quarter(url, is_ours):
    import zarr

    name = f"zip://::readpath::{url}" if is_ours else f"zip://::{url}"
    store = zarr.storage.FsspecStore.from_url(name, read_only=True)
    array = zarr.open_array(store, path="x", mode="r")
    return array[: array.shape[0] // 2, : array.shape[1] // 2].sum()


def webdataset_stream(url, is_ours):
    import readpath
    import webdataset

    def open_shard(name, mode="rb", bufsize=8192, **options):
        return readpath.open(name.removeprefix("readpath:"))

    webdataset.gopen_schemes["readpath"] = open_shard
    shards = f"readpath:{url}" if is_ours else url
    samples = webdataset.WebDataset(shards, shardshuffle=False)
    return sum(len(sample["bin"]) for sample in samples)


CASES = {
    "pandas, two columns": ("pandas", write_parquet, pandas_columns),
    "polars, two columns": ("polars", write_parquet, polars_scan),
    "polars, whole file": ("polars", write_parquet, polars_whole),
    "pyarrow, two columns": ("pyarrow", write_parquet, pyarrow_columns),
    "DuckDB, two columns": ("duckdb", write_parquet, duckdb_columns),
    "h5py, every second row of a plane": ("h5py", write_h5, h5py_part),
    "xarray, a plane": ("xarray", write_h5, xarray_plane),
    "zarr, a quarter of a zip": ("zarr", write_zip, zarr_quarter),
    "webdataset, a shard": ("webdataset", write_tar, webdataset_stream),
}


def measure(case, url, passes):
    """Returns the seconds of both, as lists. Results must be equal."""
    seconds, results = {True: [], False: []}, set()
    for nth in range(passes + 1):
        for is_ours in (True, False) if nth % 2 else (False, True):
            begin = time.monotonic()
            results.add(str(case(url, is_ours)))
            if nth:  # the first pass imports
                seconds[is_ours].append(time.monotonic() - begin)
    assert len(results) == 1, results
    return seconds[True], seconds[False]


def verdict(ours, usual):
    """The ratio of the medians, or "level" if the spreads overlap."""
    if max(min(ours), min(usual)) <= min(max(ours), max(usual)):
        return "level"
    return f"{statistics.median(ours) / statistics.median(usual):.2f}"


def table(rows):
    lines = ["| library | usual | readpath | readpath ÷ usual |", "|---|---|---|---|"]
    for row in rows:
        ours, usual = row["ours"], row["usual"]
        cells = [f"{statistics.median(taken):.2f}" for taken in (usual, ours)]
        lines.append(f"| {row['name']} | {cells[0]} | {cells[1]} | {verdict(ours, usual)} |")
    return "\n".join(lines)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--delay", type=float, default=20, help="of each answer, in ms")
    options.add_argument("--passes", type=int, default=7)
    options.add_argument("--only", default="", help="part of a name")
    options.add_argument("--save", action="store_true")
    asked = options.parse_args()
    rows, versions = [], {}
    with tempfile.TemporaryDirectory(prefix="readpath-") as folder:
        for name, (package, write, case) in CASES.items():
            if asked.only not in name:
                continue
            try:
                versions[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                print(f"not installed: {package}", file=sys.stderr)
                continue
            path = Path(folder) / write.__name__
            if not path.exists():
                write(path)
            with delayed_store.running(path, asked.delay) as url:
                ours, usual = measure(case, url, asked.passes)
            rows.append({"name": name, "ours": ours, "usual": usual})
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    if asked.save:
        versions |= {"readpath": metadata.version("readpath"), "python": platform.python_version()}
        machine = f"{platform.machine()}, {platform.system()} {platform.release()}"
        document = {"machine": machine, "delay_ms": asked.delay, "versions": versions, "rows": rows}
        results = Path(__file__).parent / "results" / "python-libraries.json"
        results.write_text(json.dumps(document, indent=1) + "\n")
        text = re.sub(
            r"(?s)(<!-- table -->\n).*?(?=\nIn the recipes)",
            lambda found: f"{found[1]}\n{table(rows)}\n",
            DOCS.read_text(),
        )
        DOCS.write_text(text)


if __name__ == "__main__":
    main()
