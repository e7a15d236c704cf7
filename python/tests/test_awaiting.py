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


TRIES = 50
"""Maximum number of reads until one leaves the event loop free. Other programs need the processor, too:
on a busy machine of two processors the best of four had a share of 0.22."""

HELD_MAX = 0.2
"""Maximum share of a read for which the event loop may be held. A read that blocks holds it for all of it."""


async def longest_gap(reading):
    """Return the data of a read, and the longest time without another task, as a share of the read's time."""
    gap, last, began = 0.0, time.perf_counter(), time.perf_counter()
    task = asyncio.ensure_future(reading)
    while not task.done():
        await asyncio.sleep(0.0005)
        now = time.perf_counter()
        gap, last = max(gap, now - last), now
    return await task, gap / (time.perf_counter() - began)


def leaves_the_loop_free(read, expected):
    """Read until the event loop is free during a read; check each read's data."""
    for _ in range(TRIES):
        data, share = asyncio.run(longest_gap(read()))
        assert data == expected
        if share < HELD_MAX:
            return True
    return False


def test_a_large_local_read_does_not_hold_the_event_loop(large):
    name, part = large
    with readpath.open(name, memory="32MiB") as file:
        assert leaves_the_loop_free(lambda: file.areadat(0, 32 * MIB), part * 32)
        small = asyncio.run(file.areadat(32 * MIB - 5, 100))
        assert small == part[-5:] + b"1"


def test_a_large_remote_read_does_not_hold_the_event_loop(large):
    name, part = large
    with ThreadPoolExecutor(4) as threads, open(name, "rb") as below:
        options = Options("1MiB", request="1MiB")
        fetch = on_threads(lambda start, end: os.pread(below.fileno(), end - start, start), threads)
        reader = Reader(fetch, 32 * MIB + 1, options)
        assert leaves_the_loop_free(lambda: reader.aread(0, 32 * MIB), part * 32)


def test_threads_end_with_the_loop(large):
    name, _ = large
    before = set(threading.enumerate())
    with readpath.open(name) as file:
        asyncio.run(file.areadat(0, 16 * MIB))
    assert set(threading.enumerate()) <= before


CANCELLING_SECONDS = 3
"""Time of reads that are cancelled at random moments: some thousand cancels, of which one hung within a second."""


def test_cancelled_reads_do_not_hang_other_reads():
    data = random.Random(7).randbytes(4 * MIB)
    chance = random.Random(8)

    def fetch(start, end):
        time.sleep(chance.random() * 0.002)
        return data[start:end]

    async def rounds(reader):
        ends_at = time.monotonic() + CANCELLING_SECONDS
        while time.monotonic() < ends_at:
            offsets = [chance.randrange(4 * MIB - 100) for _ in range(24)]
            plain = [reader.aread(offset, 100) for offset in offsets[:8]]
            limited = [asyncio.wait_for(reader.aread(offset, 100), chance.random() * 0.002) for offset in offsets[8:]]
            found = await asyncio.wait_for(asyncio.gather(*plain, *limited, return_exceptions=True), 30)
            expected = [data[offset : offset + 100] for offset in offsets]
            assert found[:8] == expected[:8]
            for one, bytes_there in zip(found[8:], expected[8:], strict=True):
                assert one == bytes_there or isinstance(one, TimeoutError)

    with ThreadPoolExecutor(8) as threads:
        reader = Reader(on_threads(fetch, threads), 4 * MIB, Options("1MiB", request="64KiB", depth=8))
        asyncio.run(rounds(reader))


def test_close_fails_the_waiting_reads_next_to_a_cancelled_one(monkeypatch):
    """A cancel reaches the future that the fetch threads share, before the task of the read runs again."""
    proceed, shared = threading.Event(), []
    wrap = asyncio.wrap_future
    monkeypatch.setattr(asyncio, "wrap_future", lambda future: (shared.append(future), wrap(future))[1])

    def fetch(start, end):
        assert proceed.wait(30)
        return bytes(end - start)

    async def closed_while_reading(reader):
        reads = [asyncio.ensure_future(reader.aread(offset * MIB, 10)) for offset in range(3)]
        await asyncio.sleep(0)
        shared[0].cancel()
        reader.close()
        proceed.set()
        return await asyncio.wait_for(asyncio.gather(*reads, return_exceptions=True), 30)

    with ThreadPoolExecutor(8) as threads:
        reader = Reader(on_threads(fetch, threads), 4 * MIB, Options("1MiB", request="64KiB"))
        found = asyncio.run(closed_while_reading(reader))
    assert [type(one) for one in found] == [ValueError] * 3
