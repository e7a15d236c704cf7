"""Many ranges in one call: of any number, as arrays, into place; and none of it keeps others from reading."""

import asyncio
import os
import random
import signal
import subprocess
import threading
import time

import pytest

import readpath

SIZE = 3_000_001


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("many") / "data.bin"
    path.write_bytes(random.Random(8).randbytes(SIZE))
    return path


@pytest.fixture(scope="module")
def data(path):
    return path.read_bytes()


@pytest.fixture(params=["aio", "io_uring", "threads"])
def within(request):
    return readpath.ReadPath(
        memory="1MiB", readahead="none", backend=request.param, kernel_cache=False
    )


def test_readat_many_accepts_any_number_of_ranges(within, path, data):
    draw = random.Random(1)
    asked = [(draw.randrange(SIZE), draw.randrange(40)) for _ in range(70_000)]
    with within.open(path) as file, within.open(path) as other:
        got = file.readat_many(asked)
        assert got == [data[offset : offset + size] for offset, size in asked]
        # Others read as before, and so does who comes later.
        assert other.readat(1_000_000, 99) == data[1_000_000:1_000_099]
        assert asyncio.run(file.areadat_many(asked)) == got
    with within.open(path) as again:
        assert again.readat(2_000_000, 99) == data[2_000_000:2_000_099]


def test_readat_many_accepts_ranges_as_lists(within, path, data):
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe("/many.bin", data)
    expected = [data[:10], data[70_000:70_005]]
    with within.open(path) as file, readpath.open("memory://many.bin") as other:
        for one in (file, other):
            for ranges in ([[0, 10], [70_000, 5]], ([0, 10], (70_000, 5)), iter([range(0, 11, 10), [70_000, 5]])):
                assert one.readat_many(ranges) == expected
            one.prefetch_many([[0, 10]])
            assert asyncio.run(one.areadat_many([[0, 10], [70_000, 5]])) == expected
            for wrong in ([[0]], [[0, 1, 2]], [[0, -1]]):
                with pytest.raises(ValueError):
                    one.readat_many(wrong)
            for wrong in ([5], [[0, "1"]], [[0, 1.5]], ["ab"]):
                with pytest.raises(TypeError):
                    one.readat_many(wrong)
            # Items that are numbers, and no offset and size.
            for item in (b"ab", bytearray(b"ab"), memoryview(b"ab"), {10, 0}, frozenset([10, 0]), {0: 1, 10: 2}):
                for read in (one.readat_many, one.prefetch_many, lambda ranges: asyncio.run(one.areadat_many(ranges))):
                    with pytest.raises(TypeError, match=f"pair of offset and size, not {type(item).__name__}"):
                        read([item])
    fsspec.filesystem("memory").rm("/many.bin")


def test_readat_many_accepts_ranges_as_an_array(within, path, data):
    numpy = pytest.importorskip("numpy")
    pairs = [(0, 10), (SIZE - 3, 10), (70_000, 0), (5_000, 9_000)]
    expected = [data[offset : offset + size] for offset, size in pairs]
    with within.open(path) as file:
        for kind in ("i8", "u8", ">i8", "<u8", "i4", ">u4"):
            asked = numpy.array(pairs, dtype=kind)
            assert file.readat_many(asked) == expected
            assert file.readat_many(asked[::-1]) == expected[::-1]
        assert file.readat_many(pair for pair in pairs) == expected
        assert asyncio.run(file.areadat_many(asked)) == expected
        file.prefetch_many(asked)
        with pytest.raises(ValueError, match="two columns"):
            file.readat_many(numpy.arange(9))
        with pytest.raises(TypeError, match="give integers"):
            file.readat_many(numpy.ones((2, 2)))
        with pytest.raises(ValueError, match="-5: give a number from 0 on"):
            file.readat_many(numpy.array([(1, 2), (-5, 1)]))


@pytest.mark.parametrize("memory", ["8KiB", "12KiB", "64KiB"])
def test_ranges_across_pages_are_read_with_the_least_memory(path, data, memory):
    asked = [(4_095, 2), (5, 4_096), (5, 4_097), (5, 2_048), (0, 40_000), (SIZE - 9_000, 9_000)] * 3
    with readpath.open(path, memory=memory, kernel_cache=False) as file:
        assert file.readat_many(asked) == [data[offset : offset + size] for offset, size in asked]


def test_readinto_many_reads_rows_into_their_places(within, path, data):
    numpy = pytest.importorskip("numpy")
    rows = numpy.random.default_rng(1).integers(0, SIZE // 256, 5_000)
    table = numpy.frombuffer(data[: SIZE // 256 * 256], "u1").reshape(-1, 256)
    into = numpy.zeros((len(rows), 256), "u1")
    with within.open(path) as file:
        assert file.readinto_many(rows * 256, into) == [256] * len(rows)
        assert (into == table[rows]).all()
        several = [bytearray(5), numpy.zeros(3, "<u4"), memoryview(bytearray(90))[10:20]]
        assert file.readinto_many([7, 100, SIZE - 4], several) == [5, 12, 4]
        assert several[0] == data[7:12] and several[1].tobytes() == data[100:112]
        assert bytes(several[2]) == data[-4:] + bytes(6)
        for offsets, buffers in (([1, 2], several), ([1, 2, 3], bytearray(10)), ([], bytearray(1))):
            with pytest.raises(ValueError):
                file.readinto_many(offsets, buffers)
        with pytest.raises(BufferError, match="read-only"):
            file.readinto_many([1], [b"123"])


def test_readinto_at_fills_a_region_without_kernel_faults(path, data, tmp_path):
    try:
        region = readpath.Region("4MiB", memory="256KiB", swap=tmp_path)
    except OSError as error:
        pytest.skip(f"no userfaultfd here: {error}")
    with region, readpath.open(path, memory="1MiB") as file:
        with region.data as view, view[:SIZE] as part:
            assert file.readinto_at(0, part) == SIZE
            assert part == data


@pytest.mark.parametrize("kind", ["i1", "u1", ">i2", "<i2", ">u2", "<u2"])
def test_small_integers_of_any_byte_order_are_ranges(within, path, data, kind):
    numpy = pytest.importorskip("numpy")
    with within.open(path) as file:
        assert file.readat_many(numpy.array([(3, 100), (7, 0)], kind)) == [data[3:103], b""]
        rows = bytearray(10)
        assert file.readinto_many(numpy.array([1, 100], kind), rows) == [5, 5]
        assert rows == data[1:6] + data[100:105]
        if "i" in kind:
            with pytest.raises(ValueError, match="-5: give a number from 0 on"):
                file.readat_many(numpy.array([(-5, 1)], kind))


@pytest.fixture(scope="module")
def slow_device(command, tmp_path_factory):
    """A modelled hard disk as a file of 64 MiB: about 5 ms per request. Skipped without FUSE."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "backing").write_bytes(random.Random(4).randbytes(64 << 20))
    (folder / "at").mkdir()
    with subprocess.Popen(
        [command.path, "emulate", "hdd", "--at", folder / "at", "--backing", folder / "backing"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as emulator:  # fmt: skip
        device, give_up = folder / "at" / "device", time.monotonic() + 10
        while not device.exists():
            if emulator.poll() is not None or time.monotonic() > give_up:
                emulator.kill()
                pytest.skip(f"no file system in user space here: {emulator.stderr.read()}")
            time.sleep(0.02)
        yield device
        emulator.send_signal(signal.SIGINT)


@pytest.mark.parametrize(
    "options",
    [{"kernel_cache": False, "memory": "16MiB"}, {"page_cache": "none"}, {}],
)
def test_many_small_ranges_of_slow_storage_are_interrupted(slow_device, options):
    """8,000 ranges of 100 bytes take seconds there, and have too few bytes for a check by bytes."""
    draw = random.Random(5)
    ranges = [(draw.randrange(60_000_000), 100) for _ in range(8_000)]
    with readpath.open(slow_device, **options) as file:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            file.readat_many(ranges)
        timer.join()
        # All ranges took 1.3 to 3.6 s here, with many requests in the disk at a time.
        assert time.monotonic() - begin < 0.7
        assert len(file.readat(0, 100)) == 100
