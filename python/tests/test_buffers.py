"""Mappings and regions are buffers for any consumer, and may be closed while buffers exist."""

import asyncio
import gc
import io
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

import readpath

numpy = pytest.importorskip("numpy")
SIZE = 3_000_003


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("buffers") / "data.bin"
    path.write_bytes(random.Random(11).randbytes(SIZE))
    return path


@pytest.fixture(scope="module")
def data(path):
    return path.read_bytes()


def test_mapping_buffer_has_the_files_bytes_for_every_consumer(path, data):
    with readpath.map(path, memory="1MiB", kernel_cache=False) as mapping:
        assert bytes(mapping) == data and bytearray(mapping) == data
        assert memoryview(mapping) == data and memoryview(mapping).readonly
        array = numpy.asarray(mapping)
        assert (array.dtype, array.shape) == (numpy.uint8, (SIZE,))
        assert (array == numpy.frombuffer(data, "u1")).all()
        assert (numpy.frombuffer(mapping, "<u4", 100, 8) == numpy.frombuffer(data, "<u4", 100, 8)).all()
        assert mapping[7] == data[7] and bytes(mapping[-5:]) == data[-5:]
        assert not mapping.closed and mapping.mode == "served" and mapping.fallback is None
        with pytest.raises(BufferError, match="let go of the arrays"):
            mapping.close()
        assert not mapping.closed
        del array
        gc.collect()
    assert mapping.closed
    for use in (lambda: bytes(mapping), lambda: memoryview(mapping), lambda: len(mapping)):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_resident_file_is_mapped_by_the_kernel(data):
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        with readpath.map(file.name) as mapping:
            assert bytes(mapping) == data and mapping.copy(5, 9) == data[5:9]
            if mapping.mode == "served":
                pytest.skip("the kernel doesn't say what it holds (cachestat, Linux 6.5)")
            assert "holds the whole file" in mapping.fallback
            assert mapping.stats()["device_reads"] == 0


def test_region_is_a_writable_buffer(path, data, tmp_path):
    del path
    with readpath.Region("1MiB", memory="256KiB", swap=tmp_path) as region:
        numpy.asarray(region)[:100] = 7
        memoryview(region)[200:300] = data[:100]
        assert bytes(region)[:300] == bytes([7]) * 100 + bytes(100) + data[:100]
        gc.collect()
    assert region.closed and repr(region) == "<readpath.Region closed>"


def test_files_mappings_and_regions_close_in_async_with(path, tmp_path):
    async def use():
        async with readpath.map(path) as mapping, readpath.open(path) as file:
            assert await file.areadat(5, 5) == bytes(mapping[5:10])
        async with readpath.Region("1MiB", swap=tmp_path) as region:
            pass
        return mapping.closed and file.closed and region.closed

    assert asyncio.run(use())


def test_object_may_be_closed_during_concurrent_access(path, tmp_path):
    """In a process of its own: what waits for what is in its way waits for ever."""
    code = f"""
import readpath, threading

def look(memory):
    try:
        while True:
            memory.data
            len(memory)
            memory.stats()
    except (ValueError, BufferError):
        pass

for make in (lambda: readpath.map({str(path)!r}, kernel_cache=False), lambda: readpath.Region("1MiB", swap={str(tmp_path)!r})):
    for _ in range(150):
        memory = make()
        threads = [threading.Thread(target=look, args=(memory,)) for _ in range(2)]
        [thread.start() for thread in threads]
        while True:
            try:
                memory.close()
                break
            except BufferError:
                pass
        [thread.join() for thread in threads]
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "ended\n", done.stderr


def test_minimum_memory_serves_accesses_that_touch_two_pages(path, data):
    """In a process of its own, as above."""
    code = f"""
import numpy, random, readpath
data = open({str(path)!r}, "rb").read()
for memory in (4096, "8KiB", "64KiB"):
    with readpath.map({str(path)!r}, memory=memory, kernel_cache=False) as mapping:
        for page in random.Random(1).sample(range(1, len(data) // 4096), 100):
            at = page * 4096 - 4
            assert bytes(mapping[at : at + 9]) == data[at : at + 9]
            assert int(numpy.frombuffer(mapping, "<u8", 1, at)[0]) == int.from_bytes(data[at : at + 8], "little")
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "ended\n", done.stderr


def test_too_little_memory_is_refused_with_the_minimum(path, data):
    for memory in (4096, "5KB"):
        with pytest.raises(ValueError, match="give at least 8192 bytes"):
            readpath.open(path, memory=memory)
    with readpath.open(path, memory=8192) as file:
        assert file.read() == data


def test_advise_many_accepts_lists_and_arrays_of_ranges(path, data):
    ranges = [(0, 10_000), (1_000_000, 5_000)]
    with readpath.map(path, readahead="none", kernel_cache=False) as mapping:
        mapping.advise_many("willneed", numpy.array(ranges))
        mapping.advise_many("random", ranges)
        for offset, size in ranges:
            mapping.load(offset, size)
        reads = mapping.stats()["device_reads"]
        assert bytes(mapping[1_000_000:1_005_000]) == data[1_000_000:1_005_000]
        assert mapping.stats()["device_reads"] == reads
        with pytest.raises(ValueError, match="no advice `hurry`"):
            mapping.advise_many("hurry", ranges)


def test_region_is_filled_from_files_descriptors_and_sockets(path, data, tmp_path):
    with readpath.Region("4MiB", memory="256KiB", swap=tmp_path) as region:
        with open(path, "rb") as file:
            assert region.read_from(file, 5) == SIZE
            assert region.copy(5, 5 + SIZE) == data
            file.seek(0)
            assert region.read_from(file.fileno(), 0, 100_000) == 100_000
        assert region.copy(0, 100_000) == data[:100_000]
        assert region.read_from(io.BytesIO(data), -10) == 10 and region.copy(-10) == data[:10]
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(data[:5_000])
            ours.shutdown(socket.SHUT_WR)
            assert region.read_from(theirs) == 5_000
        assert region.copy(0, 5_000) == data[:5_000]


def test_long_load_is_interrupted_by_ctrl_c():
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:
        os.truncate(file.name, 4 << 30)  # a hole: nothing is stored
        code = (
            "import readpath\n"
            f"mapping = readpath.map({file.name!r}, memory='8MiB')\n"
            "print('loads', flush=True)\n"
            "try:\n"
            "    while True:\n"
            "        mapping.load(0, 4 << 30)\n"
            "except KeyboardInterrupt:\n"
            "    print(mapping[5], flush=True)\n"
        )
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "loads\n"
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "0\n"
        assert process.returncode == 0
