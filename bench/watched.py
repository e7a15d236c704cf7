#!/usr/bin/env python3
"""Real programs, recorded: the first cause of `readpath explain`, compared with the expected one.

usage: bench/watched.py [--command PATH] [--on FOLDER] [--only NAME] [--save]

Needs root. Each program runs three times over files in FOLDER (default: a temporary one next to the
build), cold at first. Missing programs are skipped and named: db_bench (Debian's rocksdb-tools),
fio, git, and for Python duckdb, numpy and safetensors (of the interpreter that runs this script).
`nothing` is expected where kernel readahead already serves the program best. `--save` writes the
rows to bench/results/watched.json.
"""

import argparse
import collections
import importlib.util
import json
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import built

ROOT = Path(__file__).resolve().parent.parent

SQLITE_SCAN = "import sqlite3; print(sqlite3.connect('base.db').execute('select sum(length(text)) from t').fetchone())"
SQLITE_POINTS = """
import random, sqlite3
base, draw = sqlite3.connect('base.db'), random.Random(3)
for _ in range(3000):
    base.execute('select text from t where id = ?', (draw.randrange(200_000),)).fetchone()
"""
DUCKDB = "import duckdb; print(duckdb.sql(\"select sum(a), max(b) from 'columns.parquet'\").fetchall())"
SAFETENSORS = """
import random
from safetensors import safe_open
with safe_open('tensors.safetensors', 'numpy') as file:
    names = list(file.keys())
    random.Random(5).shuffle(names)
    print(sum(float(file.get_tensor(name).sum()) for name in names))
"""


def sqlite(folder):
    base = sqlite3.connect(folder / "base.db")
    base.execute("create table t (id integer primary key, text text)")
    base.executemany("insert into t values (?, ?)", ((n, f"{n:08}" * 50) for n in range(200_000)))
    base.commit()


def tree(folder):
    for number in range(4000):
        path = folder / "tree" / str(number % 50) / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"line {number}\n" * 700)
    subprocess.run(["git", "init", "-q"], cwd=folder / "tree", check=True)
    subprocess.run(["git", "add", "."], cwd=folder / "tree", check=True)


def data(folder):
    (folder / "data").write_bytes(os.urandom(256 << 20))


def parquet(folder):
    import duckdb
    duckdb.sql("copy (select random() a, random() b, random() c, random() d from range(6_000_000)) "
               f"to '{folder}/columns.parquet'")


def tensors(folder):
    import numpy
    import safetensors.numpy
    each = {f"layer.{n}": numpy.random.default_rng(n).random(1 << 18) for n in range(100)}
    safetensors.numpy.save_file(each, folder / "tensors.safetensors")


def database(folder):
    subprocess.run(["db_bench", f"--db={folder}/db", "--benchmarks=fillseq", "--num=300000", "--value_size=1000",
                    "--compression_type=none"], check=True, capture_output=True)


PYTHON = sys.executable
FIO = ["fio", "--name=j", "--filename=data", "--size=256m", "--io_size=8m"]
# Name, maker of its files, requirements, the command, the expected causes.
PROGRAMS = [
    ("sqlite scan", sqlite, [], [PYTHON, "-c", SQLITE_SCAN], ["nothing"]),
    ("sqlite points", sqlite, [], [PYTHON, "-c", SQLITE_POINTS], ["depth", "over_read"]),
    ("git grep", tree, ["git"], ["git", "-C", "tree", "grep", "--threads=1", "-c", "line 39"], ["depth"]),
    ("tar", tree, ["git"], ["tar", "cf", "all.tar", "tree"], ["depth"]),
    ("fio randread", data, ["fio"], [*FIO, "--rw=randread", "--direct=1", "--bs=4k"], ["depth"]),
    ("fio read, 4 KiB", data, ["fio"], [*FIO, "--rw=read", "--direct=1", "--bs=4k"], ["small"]),
    ("fio randread, 32 deep", data, ["fio"],
     [*FIO, "--rw=randread", "--direct=1", "--bs=4k", "--ioengine=libaio", "--iodepth=32"], ["nothing"]),
    ("db_bench readrandom", database, ["db_bench"],
     ["db_bench", "--db=db", "--use_existing_db", "--num=300000", "--value_size=1000", "--benchmarks=readrandom",
      "--reads=3000"], ["depth"]),
    ("duckdb, parquet", parquet, [":duckdb"], [PYTHON, "-c", DUCKDB], ["nothing", "depth"]),
    ("safetensors, shuffled", tensors, [":safetensors", ":numpy"], [PYTHON, "-c", SAFETENSORS], ["nothing"]),
]


def lacks(need):
    if need.startswith(":"):
        return importlib.util.find_spec(need[1:]) is None
    return shutil.which(need) is None


def cold(folder):
    subprocess.run(["sync"], check=True)
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def explained(command, folder, words):
    """First cause and its share of the time, and the waiting time of the program."""
    recording = folder / "reads.rec"
    cold(folder)
    watched = [command, "record", "-o", recording, "--", *words]
    ran = subprocess.run(watched, cwd=folder, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{' '.join(map(str, watched))}: {ran.stderr}")
    told = subprocess.run([command, "explain", recording, "--json"], check=True, capture_output=True, text=True)
    told = json.loads(told.stdout)
    first = (told["findings"] or [{"cause": "nothing", "share": 0.0}])[0]
    return {"cause": first["cause"], "share": first["share"], "limit": told["limit"], "lost": told["lost"],
            "seconds": told["seconds"], "waited_seconds": told["waited_seconds"]}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--command", type=Path, default=built.COMMAND)
    parser.add_argument("--on", type=Path, default=built.TARGET)
    parser.add_argument("--only", action="append")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit(__doc__)
    rows = []
    print(f"{'program':24} {'expected':18} {'found':12} {'share':>6} {'time s':>7} {'waited s':>9}")
    with tempfile.TemporaryDirectory(dir=arguments.on) as folder:
        folder = Path(folder)
        made = set()
        for name, make, needs, words, expected in PROGRAMS:
            if arguments.only and name not in arguments.only:
                continue
            missing = [need for need in needs if lacks(need)]
            if missing:
                print(f"{name:24} left out: {', '.join(missing)} is not installed")
                continue
            if make not in made:
                make(folder)
                made.add(make)
            runs = [explained(arguments.command.resolve(), folder, words) for _ in range(3)]
            found = collections.Counter(run["cause"] for run in runs).most_common(1)[0][0]
            run = next(run for run in runs if run["cause"] == found)
            rows.append({"name": name, "expected": expected, "found": found, "runs": runs})
            mark = "" if found in expected else "  *"
            print(f"{name:24} {' or '.join(expected):18} {found:12} {run['share']:6.0%} {run['seconds']:7.2f} "
                  f"{run['waited_seconds']:9.2f}{mark}", flush=True)
    if arguments.save:
        machine = f"{platform.machine()}, Linux {platform.release()}"
        result = {"machine": machine, "rows": rows}
        (ROOT / "bench/results/watched.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
