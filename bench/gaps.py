#!/usr/bin/env python3
"""Readers that move up through a file and skip parts of it, on modelled devices.

    bench/gaps.py [--held-out] [--program READPATH] [--json FILE]

Families: blocks of 4, 8 or 16 KiB, each read with a probability of 1 to 90 %; blocks at lognormal
and at Pareto distances; row groups of which some are skipped. Each cell is one reader on one device
of `readpath devices`, in virtual time. The figure is the throughput of the readahead policy
`adaptive`, divided by the better of `none` and `ondemand`. Cells of `--held-out` have other
parameters, seeds and devices; no policy is developed on them.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import built

KIB = 1024
FILE_BYTES = 256 << 20
READS_MAX = 1500

TUNED = {
    "seeds": (1, 2),
    "devices": ("hdd", "hdd,drive=sata2010", "ssd", "nfs", "object"),
    "blocks": (8,),
    "shares": (2, 5, 10, 20, 30, 40, 50, 70, 90),
    "gaps": (8, 40, 200),
    "groups": ((64, 8), (256, 2)),
}
HELD_OUT = {
    "seeds": (101, 102, 103),
    "devices": ("hdd", "hdd,drive=sata2010", "nvme", "nfs", "object", "array"),
    "blocks": (4, 16),
    "shares": (1, 3, 8, 15, 25, 35, 45, 60, 80),
    "gaps": (5, 25, 120, 600),
    "groups": ((128, 4), (512, 3)),
}


def bernoulli(draw, block_kib, percent):
    """Blocks in order, each read with this probability."""
    block = block_kib * KIB
    return [(at, block) for at in range(0, FILE_BYTES, block) if draw.random() < percent / 100]


def distances(draw, block_kib, next_gap):
    """Blocks behind gaps of a random number of KiB."""
    at, found = 0, []
    while at + block_kib * KIB <= FILE_BYTES:
        found.append((at, block_kib * KIB))
        at += block_kib * KIB + int(next_gap()) * 4 * KIB
    return found


def row_groups(draw, group_kib, one_in):
    """Groups of pieces of 16 KiB; one group of `one_in` is read, in order."""
    found = []
    for at in range(0, FILE_BYTES, group_kib * KIB):
        if draw.random() < 1 / one_in:
            found += [(at + piece * KIB, 16 * KIB) for piece in range(0, group_kib, 16)]
    return found


def workloads(cells):
    """Name and reads of each workload."""
    for seed in cells["seeds"]:
        for block in cells["blocks"]:
            for share in cells["shares"]:
                draw = random.Random(f"{seed} {block} {share}")
                yield f"{block} KiB, {share} %, seed {seed}", bernoulli(draw, block, share)
            for pages in cells["gaps"]:
                draw = random.Random(f"{seed} {block} {pages} gaps")
                mean = pages / 1.65
                yield (f"{block} KiB, lognormal {pages}, seed {seed}",
                       distances(draw, block, lambda: draw.lognormvariate(0, 1) * mean))
                yield (f"{block} KiB, pareto {pages}, seed {seed}",
                       distances(draw, block, lambda: (draw.paretovariate(1.5) - 1) * pages / 2))
        for group, one_in in cells["groups"]:
            draw = random.Random(f"{seed} {group} {one_in}")
            yield f"groups of {group} KiB, 1 in {one_in}, seed {seed}", row_groups(draw, group, one_in)


def measured(program, folder, reads, devices):
    """Throughput of each policy on each device."""
    job, log = Path(folder) / "gaps.fio", Path(folder) / "reads.iolog"
    job.write_text(f"[gaps]\nread_iolog={log}\nioengine=psync\n")
    lines = ["fio version 2 iolog", "data add", "data open"]
    lines += [f"data read {offset} {count}" for offset, count in reads[:READS_MAX]]
    log.write_text("\n".join([*lines, "data close", ""]))
    command = [program, "run", job, "--on", ",".join(devices), "--readahead", "none,ondemand,adaptive",
               "--memory", "64MiB", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr}")
    rows = json.loads(done.stdout)["results"]
    return {(row["storage"], row["readahead"]): row["mib_per_s"] for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", action="store_true", help="other seeds, parameters and devices")
    parser.add_argument("--program", help="readpath of another build")
    parser.add_argument("--json", metavar="FILE", help="write the cells")
    arguments = parser.parse_args()
    program = arguments.program or built.command()
    cells = HELD_OUT if arguments.held_out else TUNED
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, reads in workloads(cells):
            rates = measured(program, folder, reads, cells["devices"])
            for device in cells["devices"]:
                best = max(rates[device, "none"], rates[device, "ondemand"])
                found.append({"device": device, "workload": name, "ratio": rates[device, "adaptive"] / best})
    found.sort(key=lambda cell: cell["ratio"])
    for cell in found[:12]:
        print(f"{cell['ratio']:.3f}  {cell['device']:8} {cell['workload']}")
    ratios = [cell["ratio"] for cell in found]
    below = sum(ratio < 0.95 for ratio in ratios)
    print(f"{len(ratios)} cells: geometric mean {statistics.geometric_mean(ratios):.3f}, "
          f"{below} below 0.95, least {ratios[0]:.3f}")
    for device in cells["devices"]:
        here = [cell["ratio"] for cell in found if cell["device"] == device]
        print(f"  {device}: {statistics.geometric_mean(here):.3f}, least {min(here):.3f}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
