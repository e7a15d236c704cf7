#!/usr/bin/env python3
"""The figures of the documents, each with its command; repeats them one after the other.

    bench/retake.py                           lists them
    bench/retake.py FOLDER [PART …]           repeats them, or those with a PART in the name; FOLDER
                                              is on the storage to be measured
    bench/retake.py --quick FOLDER [PART …]   checks that the commands run, in small form

The output of each command goes to OUT/NAME.txt (`--out OUT`, default target/figures), with the
command, the machine, its load and the commit. Compare it with the document, and correct that. Many
scripts of bench/ also write their raw rows to bench/results. `--json` prints the list for programs.
"""

import argparse
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
READPATH = "cargo run --release --quiet -- "
BENCH = "cargo bench --quiet -p "
EXAMPLE = "cargo run --release --quiet -p readpath-models --example "
SMALL = " --small --runs 1"
README, MEASUREMENTS = "README.md", "bench/README.md"


class Figure(NamedTuple):
    """One or several figures of one command."""

    name: str
    document: str
    words: str
    """Text of the document: a table row (it starts with a bar), a heading (with #), or words."""
    command: str
    quick: str | None = None
    """The command in small form, which writes nothing into the repository; none if impossible."""
    needs: str = ""
    """Requirements in addition to a folder."""


FIGURES = [
    Figure("readme-patterns", README, "| local disk: 45 access patterns / `pread` |",
           READPATH + "bench FOLDER --runs 3", READPATH + "bench FOLDER --rows stream/1MiB" + SMALL),
    Figure("readme-latency", README, "| network volume, 1 ms a request,",
           "python3 bench/latency.py", "python3 bench/latency.py --rows stride --small --runs 1",
           needs="root"),
    Figure("readme-cold", README, "| random 64 KiB, cold, 32 in flight / kernel |",
           "python3 bench/cold.py FOLDER 3"),
    Figure("readme-cold-stream", README, "| sequential 1 MiB, cold / kernel |",
           "python3 bench/cold.py FOLDER 3"),
    Figure("readme-programs", README, "| programs of the field on that volume",
           "python3 bench/real_programs.py",
           "python3 bench/real_programs.py --small --only grep", needs="root"),
    Figure("readme-advice", README, "| tensors in random order, 1 ms a request,",
           "python3 bench/advise.py --times 3; python3 bench/advise.py --user --times 3",
           "python3 bench/advise.py --times 3 --only pieces", needs="root"),
    Figure("readme-matrix", README, "| default policies / best classic policy of each of",
           READPATH + "eval policies", READPATH + "eval policies --cells /ssd/,rand-4k/ --smoke"),
    Figure("readme-python", README, "| fsspec over a store with 20 ms delay |",
           "python3 bench/python_peers.py", needs="the Python package, `pip install ./python`"),
    Figure("readme-open", README, "| open and close / the kernel's, time",
           BENCH + "readpath-eval --bench held_reads",
           BENCH + "readpath-eval --bench held_reads -- --sample-count 1"),

    Figure("cold", MEASUREMENTS, "## Cold reads", "python3 bench/cold.py FOLDER 3"),
    Figure("bench-states", MEASUREMENTS, "## Access patterns of programs",
           READPATH + "bench FOLDER --runs 3",
           READPATH + "bench FOLDER --rows stream/1MiB" + SMALL),
    Figure("latency", MEASUREMENTS, "## Further results",
           "python3 bench/latency.py --save", "python3 bench/latency.py --rows stride --small --runs 1",
           needs="root"),
    Figure("one-handle", MEASUREMENTS, "## Further results",
           "python3 bench/interleaved.py --save", "python3 bench/interleaved.py --small",
           needs="root, and the Python package"),
    Figure("depth", MEASUREMENTS, "## Further results",
           "python3 bench/depth.py --save", "python3 bench/depth.py --small",
           needs="root, fio, and the Python package"),
    Figure("advised-programs", MEASUREMENTS, "## Further results",
           "python3 bench/real_programs.py --save",
           "python3 bench/real_programs.py --small --only grep", needs="root"),
    Figure("contained", MEASUREMENTS, "## Access patterns of programs",
           "python3 bench/contained.py FOLDER", "python3 bench/contained.py FOLDER --quick",
           needs="root"),
    Figure("reads", MEASUREMENTS, "## Single reads",
           "python3 bench/file.py FOLDER/readpath-retake.data",
           needs="fio, and a file of 1 GiB of that name"),
    Figure("small-calls", MEASUREMENTS, "## Single reads",
           BENCH + "readpath-eval --bench held_reads",
           BENCH + "readpath-eval --bench held_reads -- --sample-count 1"),
    Figure("miss", MEASUREMENTS, "## Single reads", "python3 bench/miss.py FOLDER",
           needs="valgrind"),
    Figure("record-overhead", MEASUREMENTS, "## Recording, advice and prediction",
           "python3 bench/watch_overhead.py", needs="root"),
    Figure("real-programs", MEASUREMENTS, "## Recording, advice and prediction",
           "python3 bench/watched.py --on FOLDER", needs="root"),
    Figure("advise", MEASUREMENTS, "## Recording, advice and prediction",
           "python3 bench/advise.py --times 3", needs="root"),
    Figure("gains", MEASUREMENTS, "## Recording, advice and prediction",
           "python3 bench/gains.py --save",
           "python3 bench/gains.py --device nvme --only slices --times 1", needs="root"),
    Figure("scripted-programs", MEASUREMENTS, "## Recording, advice and prediction",
           "python3 bench/explained.py --save; python3 bench/explained.py --user --save",
           "python3 bench/explained.py --only direct_4k", needs="root"),
    Figure("large-recording", MEASUREMENTS, "## Recording, advice and prediction",
           "python3 bench/streaming.py --on FOLDER"),
    Figure("predicted", MEASUREMENTS, "## Recording, advice and prediction",
           "python3 bench/predicted.py --times 1", needs="root"),
    Figure("one-head", MEASUREMENTS, "## Schedulers in real time",
           "python3 bench/one_head.py one-head", needs="root"),
    Figure("mixed", MEASUREMENTS, "## Schedulers in real time",
           "python3 bench/one_head.py mixed", needs="root"),
    Figure("constant", MEASUREMENTS, "## Schedulers in real time",
           "python3 bench/one_head.py constant", needs="root"),
    Figure("loop-schedulers", MEASUREMENTS, "## Schedulers in real time",
           "python3 bench/loop_schedulers.py --save", "python3 bench/loop_schedulers.py --small",
           needs="root"),
    Figure("scheduler", MEASUREMENTS, "## Schedulers in real time", READPATH + "reproduce D"),
    Figure("policy-cells", MEASUREMENTS, "## Policies compared with the best of each cell",
           READPATH + "eval policies --json",
           READPATH + "eval policies --cells /ssd/,rand-4k/ --smoke --json"),
    Figure("policies-real", MEASUREMENTS, "## Policies compared with the best of each cell",
           READPATH + "eval policies --on FOLDER"),
    Figure("policies-swap", MEASUREMENTS, "## Policies compared with the best of each cell",
           READPATH + "eval policies --cells swap-",
           READPATH + "eval policies --cells /ssd/,swap- --smoke"),
    Figure("eviction-cells", MEASUREMENTS, "## Policies compared with the best of each cell",
           READPATH + "eval eviction --seed 101 --json",
           READPATH + "eval eviction --cells /phases/ --smoke --json"),
    Figure("python-peers", MEASUREMENTS, "## Python", "python3 bench/python_peers.py",
           needs="the Python package, `pip install ./python`"),
    Figure("python-remote", MEASUREMENTS, "## Python",
           "python3 bench/python_remote.py --out bench/results/python-remote.json",
           "python3 bench/python_remote.py --small --runs 1 --only objects",
           needs="the Python package, obstore, polars, pyarrow, h5py, zarr, aiohttp and safetensors"),
    Figure("python-libraries", MEASUREMENTS, "## Python", "python3 bench/python_libraries.py",
           "python3 bench/python_libraries.py --passes 1 --delay 1 --only pandas",
           needs="the Python package, `pip install ./python`, and the libraries"),
    Figure("threads", MEASUREMENTS, "## Further results", "python3 bench/threads.py FOLDER"),
    Figure("kept", MEASUREMENTS, "## Further results", "python3 bench/kept.py FOLDER",
           "python3 bench/kept.py FOLDER --reads 2000 --policies adaptive", needs="root"),
    Figure("python-tensors", MEASUREMENTS, "## Further results",
           "python3 bench/python_tensors.py --times 3", needs="root, and the Python package"),
    Figure("raw", MEASUREMENTS, "## Further results", "python3 bench/raw.py FOLDER 3",
           "python3 bench/raw.py FOLDER 1 8", needs="fio"),
    Figure("swap", MEASUREMENTS, "## Further results", "python3 bench/swap.py kernel:FOLDER",
           needs="root"),
    Figure("slices", MEASUREMENTS, "## Further results", "python3 bench/slices.py",
           "python3 bench/slices.py --quick"),
    Figure("swap-modelled", MEASUREMENTS, "## Further results", READPATH + "reproduce B --json"),
    Figure("published", MEASUREMENTS, "## Further results", READPATH + "reproduce",
           READPATH + "reproduce A"),
    Figure("policy-cost", MEASUREMENTS, "## Further results",
           BENCH + "readpath-core --bench policies",
           BENCH + "readpath-core --bench policies -- --sample-count 1"),
    Figure("modelled", MEASUREMENTS, "## Further results",
           BENCH + "readpath-sim --bench modelled",
           BENCH + "readpath-sim --bench modelled -- --sample-count 1 devices"),
    Figure("traces", MEASUREMENTS, "## Further results",
           "bash -c 'python3 bench/traces.py 10000000 FOLDER/t.txt && " + READPATH
           + "run FOLDER/t.txt --on ssd && rm FOLDER/t.txt'",
           "bash -c 'python3 bench/traces.py 1000 FOLDER/t.txt && " + READPATH
           + "run FOLDER/t.txt --on ssd && rm FOLDER/t.txt'"),
    Figure("full-flash", MEASUREMENTS, "## Further results", EXAMPLE + "flash_writes",
           EXAMPLE + "flash_writes 20000 ssd"),
    Figure("profile", MEASUREMENTS, "## Further results",
           "cargo test -p readpath-sim --test all profile:: -- --nocapture",
           "cargo test -p readpath-sim --test all profile:: -- --list"),
    Figure("mutants", MEASUREMENTS, "## Further results", ".ci/mutants --count 200",
           needs="cargo-mutants, git and some hours"),
]

# Figures with requirements outside of the repository: document, text, and requirement.
NEED_MORE = [
    (README, "over eleven published", "the traces of the LIRS authors and others: `readpath eval eviction TRACE…`"),
    (README, "on three of the five", "DiskSim's validation traces: `readpath devices validate TRACE --on hdd,disksim=FILE`"),
    (MEASUREMENTS, "## Single reads",
     "an NFS server, libnfs: `cargo bench -p readpath-eval --bench nfs_stream -- URL`"),
    (MEASUREMENTS, "## Further results",
     "`bench/sensitivity.py all.json`, of the document of `readpath eval policies --json`"),
]


def head(command: str) -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    return (f"$ {command}\n# {time.strftime('%Y-%m-%d %H:%M')}, {platform.machine()}, {os.cpu_count()} processors, "
            f"Linux {platform.release()}, load {load}, commit {commit.stdout.strip()}\n")


def show() -> None:
    for one in FIGURES:
        needs = f"\n{'':16} needs {one.needs}" if one.needs else ""
        print(f"{one.name:16} {one.document}: {one.words.strip('| #')}\n{'':16} {one.command}{needs}")
    for document, text, missing in NEED_MORE:
        print(f"{'-':16} {document}: {text.strip('# ')}\n{'':16} needs {missing}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target/figures")
    parser.add_argument("--quick", action="store_true", help="run the small forms")
    parser.add_argument("--list", action="store_true", help="list them, and run none")
    parser.add_argument("--json", action="store_true", help="list them as JSON")
    words = parser.parse_args()
    if words.json:
        print(json.dumps({"figures": [one._asdict() for one in FIGURES], "need_more": NEED_MORE}))
        return
    if words.folder is None or words.list:
        show()
        return
    if not words.folder.is_dir():
        sys.exit(f"{words.folder} is not a folder; name one on the storage to be measured")
    chosen = [one for one in FIGURES if not words.parts or any(part in one.name for part in words.parts)]
    chosen = [one for one in chosen if not words.quick or one.quick]
    if not chosen:
        sys.exit(f"no figure has such a name; the names are: {', '.join(one.name for one in FIGURES)}")
    words.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for one in chosen:
        command = one.quick if words.quick else one.command
        command = command.replace("FOLDER", shlex.quote(str(words.folder.resolve())))
        print(f"{one.name}: {command}", flush=True)
        with open(words.out / f"{one.name}.txt", "w") as out:
            out.write(head(command))
            out.flush()
            run = subprocess.run(shlex.split(command), cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        if run.returncode != 0:
            failed.append(f"{one.name}: exit code {run.returncode}, see {words.out / one.name}.txt")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
