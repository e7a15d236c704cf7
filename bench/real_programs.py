#!/usr/bin/env python3
"""Programs of the field on storage with latency, with and without `readpath advise`.

usage: bench/real_programs.py [--device NAME] [--times N] [--only NAME]… [--command PATH] [--small]
       [--save]   (default network, 5 runs, all programs that this machine has)

Needs root. The device is that which `bench/latency.py` emulates, with 128 KiB of kernel readahead
and an ext4 file system. Each program runs cold, three ways in turn: `alone`; `advised`, under
`readpath advise`; and `recorded`, under `advise --from` with the recording of one earlier run.
Seconds are of the whole command, the start of `advise` with it. The outputs must be equal. `--save`
adds the rows of this device to bench/results/real-programs.json.

- `bbolt walk`, `bbolt compact`: a database of bbolt (Go), which advises random access for its
  mapping, in order of its keys; needs `go`;
- `rocksdb scan`, `rocksdb scan, random advice`: `readseq` of db_bench (rocksdb-tools);
- `sqlite scan`, `sqlite lookups`: a table of 200,000 rows whole; 300 rows by their numbers
  (sqlite3);
- `duckdb columns`, `duckdb filter`: two of ten columns of a Parquet file; the rows behind a filter
  (the Python packages duckdb and pyarrow);
- `shards`: samples of 110 KB out of eight tar files by four processes;
- `grep`: `grep -r` in 2,000 files of 1 to 64 KiB;
- `tar`: `tar` of the same files.
"""

import importlib.util
import io
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import advise
import latency
import one_head

WAYS = ["alone", "advised", "recorded"]
PYTHON = [sys.executable, "-c"]
SHARDS = """
import multiprocessing, sys, tarfile, zlib
def read(path):
    with tarfile.open(path) as shard:
        return sum(zlib.crc32(shard.extractfile(member).read()) for member in shard)
if __name__ == "__main__":
    with multiprocessing.Pool(4) as pool:
        print(sum(pool.map(read, sys.argv[1:], chunksize=1)))
"""
DUCKDB = """
import duckdb, sys
connection = duckdb.connect()
connection.execute("set threads to 4")
print(connection.execute(sys.argv[2].format(sys.argv[1])).fetchall())
"""
COLUMNS = "select round(sum(c2), 3), round(avg(c7), 6) from '{}'"
FILTER = "select count(*), round(sum(c3), 3) from '{}' where c0 between 1000000 and 1200000"


class Programs:
    """Lays out the data of each program when it is first asked for; `small` by a tenth."""

    def __init__(self, folder, small):
        self.folder, self.small = folder, small
        self.scratch = tempfile.TemporaryDirectory()
        self.names = {
            "bbolt walk": ("bbolt", self.bbolt_walk),
            "bbolt compact": ("bbolt", self.bbolt_compact),
            "rocksdb scan": ("rocksdb", lambda: self.rocksdb_scan("false")),
            "rocksdb scan, random advice": ("rocksdb", lambda: self.rocksdb_scan("true")),
            "sqlite scan": ("sqlite", lambda: self.sqlite(
                "select count(*), sum(length(text)) from rows")),
            "sqlite lookups": ("sqlite", self.sqlite_lookups),
            "duckdb columns": ("duckdb", lambda: self.duckdb(COLUMNS)),
            "duckdb filter": ("duckdb", lambda: self.duckdb(FILTER)),
            "shards": ("shards", self.shards),
            "grep": ("tree", lambda: ["grep", "-r", "-c", "no such words", self.folder / "tree"]),
            "tar": ("tree", lambda: ["sh", "-c", 'tar -c -C "$1" . | cksum', "sh",
                                     self.folder / "tree"]),
        }

    def missing(self, name):
        """The first thing of this machine that a program lacks, or None."""
        data = self.names[name][0]
        tools = {"bbolt": ["go"], "rocksdb": ["db_bench"], "sqlite": ["sqlite3"]}.get(data, [])
        packages = ["duckdb", "pyarrow"] if data == "duckdb" else []
        lacked = [tool for tool in tools if not shutil.which(tool)]
        lacked += [package for package in packages if not importlib.util.find_spec(package)]
        return lacked[0] if lacked else None

    def command(self, name):
        data, command = self.names[name]
        if not (self.folder / data).exists():
            (self.folder / data).mkdir()
            getattr(self, f"write_{data}")(self.folder / data)
        return command()

    def write_bbolt(self, folder):
        self.bbolt = Path(self.scratch.name) / "bbolt"
        subprocess.run(["go", "build", "-o", self.bbolt, "."], check=True,
                       cwd=one_head.ROOT / "bench/loads/bbolt")
        keys = "10000" if self.small else "100000"
        subprocess.run([self.bbolt, "fill", folder / "db", keys], check=True)

    def bbolt_walk(self):
        return [self.bbolt, "walk", self.folder / "bbolt/db"]

    def bbolt_compact(self):
        # The copy goes to other storage, as the program's own writes are not in question here.
        copy = Path(self.scratch.name) / "copy"
        return ["sh", "-c", 'rm -f "$3"; "$1" compact "$2" "$3"', "sh", self.bbolt,
                self.folder / "bbolt/db", copy]

    def write_rocksdb(self, folder):
        count = 25_000 if self.small else 250_000
        subprocess.run(["db_bench", f"--db={folder}", "--benchmarks=fillseq", f"--num={count}",
                        "--value_size=1000", "--compression_type=none"], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def rocksdb_scan(self, random_advice):
        count = 25_000 if self.small else 250_000
        command = ["db_bench", f"--db={self.folder / 'rocksdb'}", "--benchmarks=readseq",
                   "--use_existing_db", f"--num={count}", "--compression_type=none",
                   f"--advise_random_on_open={random_advice}"]
        quoted = " ".join(f"'{part}'" for part in command)
        return ["sh", "-c", f"{quoted} 2>&1 | grep -c micros/op"]

    def write_sqlite(self, folder):
        draw = random.Random(3)
        connection = sqlite3.connect(folder / "db")
        connection.execute("create table rows (id integer primary key, text blob)")
        rows = ((number, draw.randbytes(1_000)) for number in range(self.rows()))
        connection.executemany("insert into rows values (?, ?)", rows)
        connection.commit()
        connection.close()

    def rows(self):
        return 20_000 if self.small else 200_000

    def sqlite(self, query):
        return ["sqlite3", "-readonly", self.folder / "sqlite/db", query]

    def sqlite_lookups(self):
        chosen = random.Random(4).sample(range(self.rows()), 300)
        query = "".join(f"select length(text) from rows where id = {row};" for row in chosen)
        return self.sqlite(query)

    def write_duckdb(self, folder):
        import numpy
        import pyarrow
        import pyarrow.parquet

        count, draw = (300_000 if self.small else 3_000_000), numpy.random.default_rng(5)
        columns = {f"c{number}": draw.random(count) for number in range(1, 10)}
        table = pyarrow.table({"c0": numpy.arange(count), **columns})
        pyarrow.parquet.write_table(table, folder / "rows.parquet", row_group_size=count // 16)

    def duckdb(self, query):
        return [*PYTHON, DUCKDB, self.folder / "duckdb/rows.parquet", query]

    def write_shards(self, folder):
        draw = random.Random(6)
        for shard in range(8):
            with tarfile.open(folder / f"{shard}.tar", "w") as archive:
                for sample in range(30 if self.small else 300):
                    data = draw.randbytes(110_000)
                    member = tarfile.TarInfo(f"{sample}.jpg")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))

    def shards(self):
        return [*PYTHON, SHARDS, *sorted((self.folder / "shards").iterdir())]

    def write_tree(self, folder):
        draw = random.Random(8)
        for number in range(200 if self.small else 2_000):
            inner = folder / str(number // 50)
            inner.mkdir(exist_ok=True)
            (inner / str(number)).write_bytes(draw.randbytes(draw.randrange(1 << 10, 64 << 10)))

    def drop(self):
        """Removes the pages of all files, and names and inodes of the mount, from the kernel."""
        subprocess.run(["sync"], check=True)
        for path in self.folder.rglob("*"):
            advise.cold(path)
        Path("/proc/sys/vm/drop_caches").write_text("2")


def run(programs, command, before):
    """Seconds and output of a cold run, and the lines of `advise`."""
    programs.drop()
    begun = time.monotonic()
    ran = subprocess.run([*before, *command], capture_output=True, text=True)
    seconds = time.monotonic() - begun
    if ran.returncode not in (0, 1):
        sys.exit(f"{command}: {ran.stderr}")
    return seconds, ran.stdout, [line for line in ran.stderr.splitlines() if "readpath:" in line]


def measure(programs, name, times):
    command = programs.command(name)
    recording = Path(programs.scratch.name) / "recording"
    recording.unlink(missing_ok=True)
    _, expected, _ = run(programs, command, [one_head.COMMAND, "record", "-o", recording, "--"])
    advised = [one_head.COMMAND, "advise"]
    before = {"alone": [], "advised": [*advised, "--"],
              "recorded": [*advised, "--from", recording, "--"]}
    seconds, reports = {way: [] for way in WAYS}, []
    for nth in range(times):
        for way in WAYS[nth % 3:] + WAYS[:nth % 3]:
            took, output, lines = run(programs, command, before[way])
            if output != expected:
                sys.exit(f"{name}, {way}: the output differs from that of the first run")
            seconds[way].append(took)
            reports += lines if way == "advised" else []
    return {"program": name, "seconds": seconds, "reports": reports}


def print_row(row):
    median = {way: statistics.median(row["seconds"][way]) for way in WAYS}
    parts = [f"{row['program']:28} alone {median['alone']:7.3f} s"]
    for way in WAYS[1:]:
        own = row["seconds"][way]
        parts.append(f"{way} {median[way]:7.3f} ({min(own):.3f} to {max(own):.3f}), "
                     f"{median['alone'] / median[way]:5.2f} times as fast")
    print("; ".join(parts), flush=True)


def main():
    parser = latency.device_parser(__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--small", action="store_true", help="a tenth of the data, one run: a check")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit(__doc__)
    latency.use_command(arguments)
    with latency.mounted(arguments.device, 128) as folder:
        programs = Programs(folder, arguments.small)
        unknown = set(arguments.only or []) - set(programs.names)
        if unknown:
            sys.exit(f"no program {sorted(unknown)}; there are {', '.join(programs.names)}")
        rows = []
        for name in arguments.only or programs.names:
            if lacked := programs.missing(name):
                print(f"{name:28} skipped: this machine lacks {lacked}")
                continue
            rows.append(measure(programs, name, 1 if arguments.small else arguments.times))
            print_row(rows[-1])
    if arguments.save:
        latency.save_rows("real-programs", arguments.device, {"rows": rows})


if __name__ == "__main__":
    main()
