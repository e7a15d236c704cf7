#!/usr/bin/env python3
"""Instructions of one read that misses the cache, in user space, with default options.

    bench/miss.py FOLDER [--program PROGRAM] [--json]

Counts with callgrind. The result is the difference of two runs of `miss_cost`
(crates/eval/benches/miss_cost.rs) with different numbers of reads, so the start is not counted.
Rows: 4 KiB at random by one thread, one after the other; the same with 32 in flight in a batch;
64 KiB in order; and 4 KiB at random by eight threads. The kernel is not counted. PROGRAM is
`miss_cost` of another build.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

import built

# A stream of many reads, since the readahead distance of a stream depends on time.
WAYS = {"one": (2000, 5000), "batch": (2000, 5000), "stream": (100, 4000), "threads": (2000, 5000)}
FILE_BYTES = 1 << 30


def counted(program, name, way, reads):
    with open(name, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program, name, way, str(reads)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}: {run.stderr}")
    return int(re.search(r"Collected : (\d+)", run.stderr)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where a file of 1 GiB is made, on the storage to be read")
    parser.add_argument("--program", help="`miss_cost` of another build")
    parser.add_argument("--json", action="store_true", help="print JSON")
    words = parser.parse_args()
    program = words.program
    if program is None:
        program = built.bench("miss_cost")
    result = {}
    with tempfile.NamedTemporaryFile(dir=words.folder) as file:
        for _ in range(FILE_BYTES >> 20):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        for way, (few, many) in WAYS.items():
            span = counted(program, file.name, way, many) - counted(program, file.name, way, few)
            result[way] = round(span / (many - few))
    if words.json:
        print(json.dumps(result))
    else:
        for way, instructions in result.items():
            print(f"{way:8}{instructions:8} instructions a read")


if __name__ == "__main__":
    main()
