#!/usr/bin/env python3
"""A trace of random 4 KiB requests, three reads to a write, one a microsecond, in MQSim's format.

bench/traces.py COUNT FILE
"""

import random
import sys


def main():
    count, path = int(sys.argv[1]), sys.argv[2]
    draw = random.Random(5)
    with open(path, "w", encoding="ascii") as trace:
        for nth in range(count):
            sector = draw.randrange(1 << 25) * 8
            trace.write(f"{nth * 1000} 0 {sector} 8 {int(draw.random() < 0.75)}\n")


if __name__ == "__main__":
    main()
