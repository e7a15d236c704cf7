#!/usr/bin/env python3
"""The figures of the README, each with the command that gives it; takes them again.

    bench/retake.py                      lists them
    bench/retake.py FOLDER [PART …]      takes them again, or those whose names contain a PART, one after the other;
                                         FOLDER is on the storage to be measured

What each command prints goes to OUT/NAME.txt (`--out OUT`, default target/figures), below the command, the machine, its load and the
commit. Nothing is judged: hold it against the README, and correct that. `--list --json` prints the list for programs.
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

ROOT = pathlib.Path(__file__).resolve().parent.parent
READPATH = "cargo run --release --quiet -- "

# Name, the README's words for it, the command. Where the README's words are a row of its table they begin with a bar.
FIGURES = [
    ("streams", "| streams of 256 MiB by 64 KiB, 1 MiB |",
     READPATH + "everyday FOLDER --rows stream/256MiB --states cold --runs 5"),
    ("strides", "| every sixteenth page; 64 KiB of every 256 |",
     READPATH + "everyday FOLDER --rows stride --states cold --runs 5"),
    ("random", "| random 4 KiB and 64 KiB, 1 to 32 threads |",
     READPATH + "everyday FOLDER --rows random/4KiB,random/64KiB --states cold --runs 5"),
    ("many-at-once", "| random 64 KiB, 32 in a batch; by 32 tasks |",
     READPATH + "everyday FOLDER --rows batch/64KiB,futures/64KiB --states cold --runs 5"),
    ("direct", "| random 64 KiB, direct, 32 in flight (`RawFile`) |", "python3 bench/cold.py FOLDER 5"),
    ("cached", "| random 4 KiB of a file that the kernel's cache holds; the same with 64 KiB |",
     READPATH + "everyday FOLDER --rows random/4KiB,random/64KiB --states cached --runs 5"),
    ("everyday", "45 things that programs do", READPATH + "everyday FOLDER --runs 3"),
    ("python", "(`python bench/python_peers.py`)", "python3 bench/python_peers.py"),
    ("world", "requests a second on one core on `ssd`",
     "cargo run --release --quiet -p readpath-sim --example world_speed"),
    ("regret", "one cell of six to the law that is best there", READPATH + "regret"),
    ("conform", "every one of 2,000 generated reads", READPATH + "conform --generate 2000 --seed 7"),
    ("sources", "Published beside modelled", READPATH + "reproduce"),
]

# Figures of the README that need what the repository doesn't have: the words, and what is missing.
NEED_MORE = [
    ("over eleven published", "the traces of the LIRS authors and others: `readpath cache TRACE…`"),
    ("on three of the five", "DiskSim's validation traces: `readpath validate TRACE --on hdd,disksim=FILE`"),
]


def head(command: str) -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    return (f"$ {command}\n# {time.strftime('%Y-%m-%d %H:%M')}, {platform.machine()}, {os.cpu_count()} processors, "
            f"Linux {platform.release()}, load {load}, commit {commit.stdout.strip()}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target/figures")
    parser.add_argument("--list", action="store_true", help="list them, and take none")
    parser.add_argument("--json", action="store_true", help="list them as JSON")
    words = parser.parse_args()
    if words.json:
        print(json.dumps({"figures": FIGURES, "need_more": NEED_MORE}))
        return
    if words.folder is None or words.list:
        for name, what, command in FIGURES:
            print(f"{name:13} {what.strip('| ')}\n{'':13} {command}")
        for what, missing in NEED_MORE:
            print(f"{'-':13} {what}\n{'':13} needs {missing}")
        return
    if not words.folder.is_dir():
        sys.exit(f"{words.folder} is no folder; name one on the storage to be measured")
    chosen = [one for one in FIGURES if not words.parts or any(part in one[0] for part in words.parts)]
    if not chosen:
        sys.exit(f"no figure's name has that; there are: {', '.join(one[0] for one in FIGURES)}")
    words.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name, what, command in chosen:
        command = command.replace("FOLDER", shlex.quote(str(words.folder.resolve())))
        print(f"{name}: {command}", flush=True)
        with open(words.out / f"{name}.txt", "w") as out:
            out.write(head(command))
            out.flush()
            run = subprocess.run(shlex.split(command), cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        if run.returncode != 0:
            failed.append(f"{name}: exit code {run.returncode}, see {words.out / name}.txt")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
