"""Awaited reads of any size do not block the event loop."""

import asyncio
import os
import random
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import readpath
from readpath.reader import Options, Reader, on_threads

MIB = 1 << 20


@pytest.fixture(scope="module")
def large():
    """A file of 32 MiB and one, of which the kernel holds what was just written."""
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:
        part = random.Random(5).randbytes(MIB)
        for _ in range(32):
            file.write(part)
        file.write(b"1")
        file.flush()
        os.fsync(file.fileno())
        yield file.name, part


TRIES = 4
"""The share is judged by the best of so many: others may need the processor, too."""


async def longest_gap(reading):
    """What a read gives, and the longest time for which nothing else could run, as a share of all of it."""
    gap, last, began = 0.0, time.perf_counter(), time.perf_counter()
    task = asyncio.ensure_future(reading)
    while not task.done():
        await asyncio.sleep(0.0005)
        now = time.perf_counter()
        gap, last = max(gap, now - last), now
    return await task, gap / (time.perf_counter() - began)


def test_a_large_local_read_does_not_hold_the_event_loop(large):
    name, part = large
    with readpath.open(name, memory="32MiB") as file:
        tried = [asyncio.run(longest_gap(file.areadat(0, 32 * MIB))) for _ in range(TRIES)]
        assert all(data == part * 32 for data, _ in tried)
        assert min(share for _, share in tried) < 0.2
        small = asyncio.run(file.areadat(32 * MIB - 5, 100))
        assert small == part[-5:] + b"1"


def test_a_large_remote_read_does_not_hold_the_event_loop(large):
    name, part = large
    with ThreadPoolExecutor(4) as threads, open(name, "rb") as below:
        options = Options("1MiB", request="1MiB")
        fetch = on_threads(lambda start, end: os.pread(below.fileno(), end - start, start), threads)
        reader = Reader(fetch, 32 * MIB + 1, options)
        tried = [asyncio.run(longest_gap(reader.aread(0, 32 * MIB))) for _ in range(TRIES)]
    assert all(data == part * 32 for data, _ in tried)
    assert min(share for _, share in tried) < 0.2


def test_threads_end_with_the_loop(large):
    name, _ = large
    before = threading.active_count()
    with readpath.open(name) as file:
        asyncio.run(file.areadat(0, 16 * MIB))
    assert threading.active_count() == before
