#!/usr/bin/env python3
"""Access patterns with the limits of a container of Docker's default profile.

usage: bench/contained.py FOLDER [--states cold,cached] [--runs N] [--quick]

Runs `readpath bench` with io_uring and userfaultfd denied (seccomp), 64 KiB of lockable memory and
1,024 open files, one state at a time. Needs root; runs as root and as `nobody`. `nobody` can have
no control group, so the state `short` is omitted there. A cell is the time of `pread` / ours.
Prints the number of cells that run, the cells below 0.9, and the geometric mean of each state.
Writes all cells to bench/results/contained.json; new cells replace older ones. About three minutes
a state. `--quick` reads files of 4 MiB once and writes no results.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

import built

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results/contained.json"
STATES = ["cold", "cached", "second", "short"]
NOBODY = 65534
BAR = 0.9


def contained(user: int) -> None:
    """Applies the limits of a container to the process that is about to run."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    if user != os.getuid():
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)


def measured(command: pathlib.Path, folder: str, user: int, state: str, more: list[str]) -> tuple[dict, list[dict]]:
    words = [command, "bench", folder, "--refuse", "io_uring,userfaultfd", "--states", state, "--json", *more]
    told = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: contained(user))
    document = json.loads(told.stdout)
    cells = []
    for result in document["results"]:
        ours, pread = result["ours"], result["pread"]
        cells.append({
            "user": "root" if user == 0 else "nobody",
            "state": state,
            "row": result["row"],
            "runs": ours["broken_off"] is None,
            # The kernel's AIO for many requests of one thread is denied too.
            "of_pread": pread["seconds"] / ours["seconds"] if ours["seconds"] and pread["seconds"] else None,
            "ours_seconds": ours["seconds_by_run"],
            "pread_seconds": pread["seconds_by_run"],
        })
    return {key: document[key] for key in ("readpath", "kernel", "processors", "memory_bytes", "runs")}, cells


def tell(cells: list[dict]) -> None:
    for user in ("root", "nobody"):
        for state in STATES:
            group = [cell for cell in cells if (cell["user"], cell["state"]) == (user, state)]
            ratios = [cell["of_pread"] for cell in group if cell["of_pread"]]
            if not ratios:
                continue
            below = sorted((cell["of_pread"], cell["row"]) for cell in group if cell["of_pread"] and cell["of_pread"] < BAR)
            running = sum(cell["runs"] for cell in group)
            print(f"{user:6} {state:6} {running} of {len(group)} cells run, {len(ratios)} have a `pread` to compare: "
                  f"geometric mean {statistics.geometric_mean(ratios):.2f} of it, {len(below)} below {BAR}")
            for ratio, row in below:
                print(f"         {ratio:.2f} {row}")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("folder")
    asked.add_argument("--states", default=",".join(STATES))
    asked.add_argument("--users", default="root,nobody" if os.getuid() == 0 else "nobody")
    asked.add_argument("--runs", default="3")
    asked.add_argument("--command", type=pathlib.Path, help="the command, where it is built already")
    asked.add_argument("--quick", action="store_true")
    arguments = asked.parse_args()
    command = arguments.command or built.command()
    more = ["--small"] if arguments.quick else ["--runs", arguments.runs]
    was = json.loads(RESULTS.read_text()) if RESULTS.exists() and not arguments.quick else {"cells": []}
    about, cells = {}, was["cells"]
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        os.chmod(folder, 0o755)
        # Another user may lack access to the folder of the command.
        copied = pathlib.Path(shutil.copy(command, folder))
        for name in arguments.users.split(","):
            user = 0 if name == "root" else NOBODY if os.getuid() == 0 else os.getuid()
            place = pathlib.Path(folder) / name
            place.mkdir()
            os.chown(place, user, -1)
            for state in arguments.states.split(","):
                if state == "short" and user != 0:
                    continue
                about, anew = measured(copied, str(place), user, state, more)
                cells = [cell for cell in cells if (cell["user"], cell["state"]) != (name, state)] + anew
    tell(cells)
    if not arguments.quick:
        RESULTS.write_text(json.dumps({**about, "cells": cells}, indent=1) + "\n")
    sys.exit(not all(cell["runs"] and (cell["of_pread"] or BAR) >= BAR for cell in cells) and not arguments.quick)


if __name__ == "__main__":
    main()
