"""Local files: Python's conventions, compared with the file's bytes and io.FileIO."""

import array
import asyncio
import contextlib
import ctypes
import errno
import io
import mmap
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

import readpath
from samples import in_child

SIZE = 3_000_001


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "data.bin"
    path.write_bytes(random.Random(1).randbytes(SIZE))
    return path


@pytest.fixture(scope="module")
def data(path):
    return path.read_bytes()


@pytest.fixture(params=["aio", "io_uring", "threads"])
def file(request, path):
    with readpath.open(
        path, memory="1MiB", backend=request.param, kernel_cache=False
    ) as file:
        yield file


def ranges(count, size_max=100_000):
    draw = random.Random(count)
    return [(draw.randrange(SIZE + 1000), draw.randrange(size_max)) for _ in range(count)]


def test_readat_returns_the_files_bytes_at_any_offset(file, data):
    for offset, size in [*ranges(200), (0, SIZE + 1), (SIZE, 1), (5, 0)]:
        assert file.readat(offset, size) == data[offset : offset + size]
    assert file.tell() == 0


def test_readat_many_returns_the_files_bytes(file, data):
    asked = [*ranges(300), (0, SIZE), (1, 2)]  # more than the memory, and one larger than it
    assert file.readat_many(asked) == [data[offset : offset + size] for offset, size in asked]
    assert file.readat_many([]) == []


def test_file_reads_and_seeks_like_fileio(file, path):
    steps = [("read", 10), ("seek", -4, 1), ("read", 5), ("seek", -70_000, 2), ("read", 60_000)]
    steps += [("read", 20_000), ("read", 1), ("tell",), ("seek", 17), ("readinto", 4096), ("tell",)]
    steps += [("seek", SIZE + 9), ("tell",), ("read", 1), ("seek", 2_900_000), ("readall",), ("read",)]
    steps += [("seek", 0), ("readline",), ("read", -1), ("read", 0), ("readable",), ("seekable",)]
    steps += [("writable",), ("isatty",), ("flush",), ("readlines",), ("writelines", [])]
    steps += [("seek", -9000, 2), ("__next__",), ("readlines", 1000), ("tell",), ("readlines", None)]

    def do(target, name, *arguments):
        if name != "readinto":
            return getattr(target, name)(*arguments)
        buffer = bytearray(*arguments)
        return target.readinto(buffer), bytes(buffer)

    with io.FileIO(path) as expected:
        for step in steps:
            assert do(file, *step) == do(expected, *step), step


def test_file_is_a_read_only_raw_stream(file, data):
    assert isinstance(file, io.RawIOBase) and isinstance(file, io.IOBase)
    assert list(file) == io.BytesIO(data).readlines()
    uses = [file.fileno, file.truncate, lambda: file.write(b"1"), lambda: file.writelines([b"1"])]
    for use in uses:
        with pytest.raises(io.UnsupportedOperation):
            use()
    file.name = "another"
    assert file.name == "another" and "'another'" in repr(file)
    file.close()
    for use in (file.flush, file.isatty, file.__enter__, file.__iter__, lambda: file.writelines([])):
        with pytest.raises(ValueError, match="closed file"):
            use()


def test_subclass_overrides_of_close_and_readline_are_used(path, data):
    class Told(readpath.File):
        closes = 0

        def close(self):
            self.closes += 1
            super().close()

        def readline(self, size=-1, /):
            return super().readline(size).upper()

    with Told(path, readpath.ReadPath()) as told:
        assert next(told) == data[: data.index(b"\n") + 1].upper()
    assert told.closes == 1 and told.closed


def test_file_works_under_a_buffered_reader(file, data):
    with io.BufferedReader(file, 8192) as buffered:
        assert buffered.read(3) == data[:3]
        assert buffered.peek(1)[:1] == data[3:4]
        buffered.seek(1_000_000)
        assert buffered.readline() == data[1_000_000 : data.index(b"\n", 1_000_000) + 1]
    assert file.closed


@pytest.mark.parametrize("make", [bytearray, memoryview, array.array])
def test_readinto_at_fills_every_writable_buffer_kind(file, data, make):
    buffer = {
        bytearray: lambda: bytearray(8000),
        memoryview: lambda: memoryview(bytearray(9000))[500:8500],
        array.array: lambda: array.array("d", bytes(8000)),
    }[make]()
    assert file.readinto_at(777, buffer) == 8000
    assert bytes(memoryview(buffer).cast("B")) == data[777:8777]
    numpy = pytest.importorskip("numpy")
    numbers = numpy.zeros((10, 100), dtype="<u8")
    assert file.readinto_at(0, numbers) == 8000
    assert numbers.tobytes() == data[:8000]


def test_read_only_or_non_contiguous_buffers_are_refused(file):
    with pytest.raises(BufferError, match="read-only"):
        file.readinto_at(0, b"1234")
    with pytest.raises(BufferError, match="one piece"):
        file.readinto_at(0, memoryview(bytearray(100))[::2])
    with pytest.raises(TypeError):
        file.readinto_at(0, "text")


def test_reads_can_be_awaited(file, data):
    asked = ranges(100, 5000)

    async def read():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(tick())
        got = await file.areadat_many(asked)
        beside.cancel()
        return got, await file.areadat(SIZE - 5, 100), ticks

    got, end, ticks = asyncio.run(read())
    assert got == [data[offset : offset + size] for offset, size in asked]
    assert end == data[-5:] and ticks > 0


def test_awaited_read_can_be_cancelled(file, data):
    async def give_up():
        task = asyncio.create_task(file.areadat(0, 500_000))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await file.areadat(0, 500_000)

    assert asyncio.run(give_up()) == data[:500_000]


@pytest.mark.parametrize("backend", ["aio", "io_uring", "threads"])
def test_awaited_reads_can_be_dropped_with_their_file(path, backend):
    """The drop waits for a thread that calls Python, so it must not hold Python's lock."""

    async def let_go():
        within = readpath.ReadPath(memory="1MiB", backend=backend, kernel_cache=False)
        file = within.open(path)
        tasks = [asyncio.create_task(file.areadat(at * 20_000, 5_000)) for at in range(20)]
        await tasks[0]
        file.close()
        del file, within
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    for _ in range(50):
        asyncio.run(let_go())


def test_concurrent_threads_read_one_file_correctly(file, data):
    wrong = []

    def read(seed):
        for offset, size in ranges(60 + seed, 30_000):
            if file.readat(offset, size) != data[offset : offset + size]:
                wrong.append(offset)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert wrong == []


def test_open_errors_are_built_in_exceptions(path, tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        readpath.open(tmp_path / "none")
    assert raised.value.errno == 2 and raised.value.filename == str(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        readpath.open(tmp_path)
    with pytest.raises(OSError, match="neither a regular file nor a block device"):
        readpath.open("/dev/null")
    with pytest.raises(ValueError, match="there is no readahead policy `psychic`"):
        readpath.open(path, page_cache="own", readahead="psychic")
    with pytest.raises(ValueError, match="there are: auto, aio, io_uring, threads"):
        readpath.open(path, page_cache="own", backend="magic")
    with pytest.raises(TypeError, match="`memry`; did you mean `memory`. There are: backend, depth"):
        readpath.open(path, memry="1MiB")
    if os.getuid() == 0:
        print("skipped: root may open everything: PermissionError is not tried")
        return
    path.chmod(0)
    with pytest.raises(PermissionError):
        readpath.open(path)


def test_shrunk_file_raises_an_error_and_returns_no_wrong_bytes(tmp_path):
    path = tmp_path / "shrinks"
    path.write_bytes(bytes(1_000_000))
    with readpath.open(path, page_cache="own", readahead="none") as file:
        os.truncate(path, 500_000)
        for read in (
            lambda: file.readat(600_000, 10),
            lambda: file.readat_many([(600_000, 10)]),
            lambda: asyncio.run(file.areadat(600_000, 10)),
        ):
            with pytest.raises(OSError, match="has become shorter") as raised:
                read()
            assert raised.value.errno == errno.ESTALE and raised.value.filename == str(path)


def test_closed_file_raises_value_error_and_empty_file_has_no_bytes(path, tmp_path):
    file = readpath.open(path)
    file.close()
    file.close()
    assert file.closed
    for use in (lambda: file.read(1), lambda: file.readat(0, 1), file.tell, file.readable):
        with pytest.raises(ValueError, match="closed file"):
            use()
    (tmp_path / "empty").touch()
    with readpath.open(tmp_path / "empty") as empty:
        assert (empty.size, empty.read(), empty.readat_many([(0, 9)])) == (0, b"", [b""])
        assert asyncio.run(empty.areadat(0, 9)) == b""


def test_file_and_its_path_can_be_pickled(path, data):
    with readpath.open(path, memory="1MiB") as file:
        with pickle.loads(pickle.dumps(file)) as again:
            assert again.readat(7, 100) == data[7:107]


def test_pickled_file_keeps_its_position(file):
    file.seek(100)
    with pickle.loads(pickle.dumps(file)) as again:
        assert (again.tell(), again.name) == (100, file.name)


def test_pickled_file_keeps_its_hint(path):
    with readpath.ReadPath(memory="8MiB", readahead="ondemand").open(path) as file:
        file.advise("random")
        with pickle.loads(pickle.dumps(file)) as again:
            for offset in range(0, 1 << 20, 4096):
                again.readat(offset, 4096)
            assert again.path_stats()["readahead_bytes"] == 0


def test_pickled_file_is_the_same_in_another_working_directory(path, data, monkeypatch):
    monkeypatch.chdir(path.parent)
    with readpath.open(path.name) as file:
        monkeypatch.chdir("/")
        with pickle.loads(pickle.dumps(file)) as again:
            assert again.readat(7, 100) == data[7:107] and again.name == path.name
        assert in_child(lambda: file.readat(7, 100) == data[7:107])


def test_readahead_state_is_described_in_one_line(path):
    # Pages in the kernel page cache need no readahead window.
    with readpath.ReadPath(memory="4MiB", kernel_cache=False).open(path) as file:
        begun = file.readahead_state()
        assert begun.startswith("a request costs 1ms or ") and "window" not in begun
        for at in reversed(range(16)):
            file.readat(at * 65_536, 65_536)
        assert "the newest window" in file.readahead_state()


def test_unpickled_files_share_one_path(path):
    with readpath.open(path) as one, readpath.open(path) as two:
        again = [pickle.loads(pickle.dumps(file)) for file in (one, two)]
        begun = one.path_stats()["device_bytes"]
        for file in again:
            file.readat(1_500_000, 10)
            assert file.path_stats() == one.path_stats()
            file.close()
        assert one.path_stats()["device_bytes"] >= begun


@pytest.mark.parametrize("backend", ["aio", "io_uring", "threads"])
def test_file_opened_before_a_fork_is_readable_in_the_child(path, data, backend):
    within = readpath.ReadPath(memory="4MiB", backend=backend, kernel_cache=False)
    with within.open(path) as file, within.open(path) as other:
        assert file.read(10) == data[:10]
        # A driver thread runs, which the child won't have.
        assert asyncio.run(file.areadat(0, 5)) == data[:5]

        def work():
            whole = file.readat(0, SIZE) == data and file.tell() == 10
            many = other.readat_many([(1, 2), (900_000, 9)]) == [data[1:3], data[900_000:900_009]]
            awaited = asyncio.run(other.areadat(5, 5)) == data[5:10]
            other.close()
            # Both share a path again, which has read for them.
            return whole and many and awaited and within.stats()["device_bytes"] > 0

        assert in_child(work) and in_child(lambda: in_child(work))
        assert in_child(lambda: file.close() is None and file.closed)
        assert other.readat(2_000_000, 70_000) == data[2_000_000:2_070_000]


def test_pool_workers_can_read_an_open_file_of_the_parent(path, data):
    with readpath.open(path) as file:
        with multiprocessing.get_context("fork").Pool(2, _hold, (file,)) as pool:
            asked = ranges(40, 5000)
            got = pool.starmap(_read_held, asked)
    assert got == [data[offset : offset + size] for offset, size in asked]


def _hold(file):
    global _held
    _held = file


def _read_held(offset, size):
    return _held.readat(offset, size)


def test_long_read_is_interrupted_by_ctrl_c(tmp_path):
    path = tmp_path / "long"
    with open(path, "wb") as file:
        os.truncate(path, 4 << 30)  # a hole: nothing is stored
    code = (
        "import readpath, sys\n"
        f"file = readpath.open({str(path)!r}, memory='32MiB')\n"
        "buffer = bytearray(64 << 20)\n"
        "print('reads', flush=True)\n"
        "try:\n"
        "    while True:\n"
        "        file.readinto_at(0, memoryview(buffer))\n"
        "        file.readat(0, 1 << 30)\n"
        "        file.readat_many([(at, 1 << 20) for at in range(0, 1 << 30, 1 << 20)])\n"
        "        file.readat_many([(0, 1 << 30)])\n"
        "except KeyboardInterrupt:\n"
        "    print(file.readat(5, 3), flush=True)\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "reads\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "b'\\x00\\x00\\x00'\n"
    assert process.returncode == 0


def test_invalid_arguments_are_refused_with_a_message(file, path):
    refused = [
        lambda: file.readat(-1, 1),
        lambda: file.readat(1, -1),
        lambda: file.readat_many([(0, 1), (-1, 1)]),
        lambda: file.readinto_at(-1, bytearray(1)),
        lambda: file.prefetch(-1, 1),
    ]
    for use in refused:
        with pytest.raises(ValueError, match="give a number from 0 on"):
            use()
    for use in (lambda: file.readat(1 << 64, 1), lambda: file.read(1 << 70)):
        with pytest.raises(OverflowError):
            use()
    for use in (lambda: file.readat(0.5, 1), lambda: file.read("a"), lambda: readpath.open(None)):
        with pytest.raises(TypeError):
            use()
    with pytest.raises(ValueError, match="null byte"):
        readpath.open("a\0b")
    with pytest.raises(ValueError, match="give 'rb'"):
        readpath.open(path, "w")
    for use in (lambda: file.write(b"1"), lambda: file.truncate(1), file.fileno):
        with pytest.raises(io.UnsupportedOperation):
            use()
    # Like the built-in file: a size beyond the end returns the remaining bytes.
    assert len(file.readat(0, 1 << 62)) == SIZE and file.readat(1 << 62, 9) == b""


def test_resident_file_is_read_from_the_kernel_page_cache():
    """As a program finds them that loads tensors of a file that was just written or downloaded."""
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as written:
        data = random.Random(6).randbytes(24 << 20)
        written.write(data)
        written.flush()
        os.fsync(written.fileno())
        if not kernel_says_what_it_holds(written.fileno()):
            pytest.skip("the kernel doesn't say what it holds (cachestat, Linux 6.5)")
        within = readpath.ReadPath(memory="64MiB")
        with locked_in_memory(written.fileno()), within.open(written.name) as file:
            buffer = bytearray(20 << 20)  # several pieces
            assert file.readinto_at(12_345, buffer) == len(buffer)
            assert buffer == data[12_345 : 12_345 + len(buffer)]
            for offset in range(0, 24 << 20, 1 << 20):
                assert file.readat(offset, 1 << 20) == data[offset : offset + (1 << 20)]
            assert file.read() == data
            assert within.stats()["device_bytes"] == 0
            assert file.stats()["cached_bytes"] == file.stats()["bytes"]


@contextlib.contextmanager
def locked_in_memory(descriptor):
    """Lock the file's pages in memory: proactive reclaim evicts other pages within seconds."""
    with mmap.mmap(descriptor, 0) as mapping:
        first = ctypes.c_char.from_buffer(mapping)
        address = ctypes.c_void_p(ctypes.addressof(first))
        library = ctypes.CDLL(None, use_errno=True)
        try:
            if library.mlock(address, ctypes.c_size_t(len(mapping))) != 0:
                pytest.skip(f"pages can't be locked: {os.strerror(ctypes.get_errno())}")
            yield
        finally:
            del first


def kernel_says_what_it_holds(descriptor):
    cachestat, range_of_all, counted = 451, (ctypes.c_uint64 * 2)(), (ctypes.c_uint64 * 5)()
    return ctypes.CDLL(None).syscall(cachestat, descriptor, range_of_all, counted, 0) == 0


def test_repr_describes_file_and_path_options(path):
    with readpath.open(os.fsencode(path), "rb") as file:
        assert repr(file) == f"<readpath.File {os.fsencode(path)!r} of {SIZE} bytes>"
        file.read()
        assert file.path_stats()["device_bytes"] >= 0 and file.stats()["bytes"] == SIZE
    assert repr(file).endswith("closed>")
    assert repr(readpath.ReadPath(memory="1MiB")).startswith("ReadPath(memory='1MiB', readahead=")
    assert "eviction='lirs'" in repr(readpath.ReadPath(memory="1MiB", eviction="lirs"))
    with pytest.raises(ValueError, match="there is no eviction policy `psychic`"):
        readpath.ReadPath(page_cache="own", eviction="psychic")


def test_child_process_can_open_its_own_path(path, data):
    with readpath.open(path) as file:
        assert file.readat(0, 10) == data[:10]
    child = os.fork()
    if child == 0:
        with readpath.open(path) as file:
            os._exit(0 if file.readat(100, 10) == data[100:110] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_bound_method_keeps_its_file_alive(path, data):
    assert readpath.open(path).read(4) == data[:4]
    read = readpath.open(path).readat
    assert read(7, 9) == data[7:16]


def test_prefetch_and_advice_change_the_readahead_bytes(path):
    within = readpath.ReadPath(memory="8MiB")
    with within.open(path) as file:
        file.prefetch(0, 1 << 20)
        file.readat(0, 1 << 20)
        assert within.stats()["readahead_bytes"] >= 1 << 20
        assert file.stats()["bytes"] == 1 << 20
        with pytest.raises(ValueError, match="no advice `hurry`"):
            file.advise("hurry")
    within = readpath.ReadPath(memory="8MiB", readahead="ondemand")
    with within.open(path) as file:
        file.advise("random")
        for offset in range(0, 1 << 20, 4096):
            file.readat(offset, 4096)
        assert within.stats()["readahead_bytes"] == 0


def test_counters_are_valid_prometheus_text(tmp_path):
    """By the parser of Prometheus' own client."""
    parser = pytest.importorskip("prometheus_client.parser")
    (tmp_path / "data").write_bytes(bytes(100_000))
    path = readpath.ReadPath(memory=16 << 20)
    with path.open(tmp_path / "data") as file:
        file.readat(0, 100_000)
    text = path.prometheus(path='a "b"\n\\c')
    families = {one.name: one for one in parser.text_string_to_metric_families(text)}
    evicted = families["readpath_evicted_bytes"]
    assert evicted.type == "counter" and evicted.samples[0].labels == {"path": 'a "b"\n\\c'}
    assert families["readpath_memory_bytes"].samples[0].value == path.stats()["memory_bytes"]
    (backend,) = families["readpath_backend_info"].samples
    assert path.stats()["backend"].startswith(backend.labels["backend"])
    with pytest.raises(ValueError, match="`9`"):
        path.prometheus(**{"9": "x"})


def test_page_cache_modes_and_options_without_effect(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(range(256)) * 1024)
    assert readpath.ReadPath().page_cache == "kernel"
    assert readpath.ReadPath(memory="1MiB").page_cache == "own"
    for mode in ("kernel", "own", "none"):
        within = readpath.ReadPath(page_cache=mode)
        assert within.page_cache == mode == pickle.loads(pickle.dumps(within)).page_cache
        with within.open(path) as file:
            assert file.readat(1000, 10) == bytes(range(232, 242))
    # The second read is a request without a cache, and a copy with one.
    for mode, requests in (("none", 2), ("own", 1)):
        options = {} if mode == "none" else {"readahead": "none", "kernel_cache": False}
        within = readpath.ReadPath(page_cache=mode, **options)
        with within.open(path) as file:
            assert file.readat(8192, 4096) == file.readat(8192, 4096)
        assert within.stats()["device_reads"] == requests
    for option in ({"depth": 128}, {"backend": "auto"}, {"readahead": "adaptive"}, {"kernel_cache": True}):
        with pytest.raises(ValueError, match=f"option `{next(iter(option))}` has no effect.*`own`"):
            readpath.ReadPath(**option)
    with pytest.raises(ValueError, match="option `eviction` has no effect"):
        readpath.ReadPath(page_cache="none", eviction="lru")
    with pytest.raises(ValueError, match="kernel, own or none"):
        readpath.ReadPath(page_cache="mine")


def test_whole_file_memory_is_an_option_of_the_kernel_page_cache(path):
    for size in (0, "64MiB", None):
        within = readpath.ReadPath(whole_file_memory=size)
        with within.open(path) as file:
            assert file.read(4) == path.read_bytes()[:4]
            assert within.stats()["kernel_whole_file_bytes"] == 0
    with pytest.raises(ValueError, match="choose the page cache `kernel`"):
        readpath.ReadPath(whole_file_memory="64MiB", page_cache="own")
    with pytest.raises(ValueError, match="memory soon: expected"):
        readpath.ReadPath(whole_file_memory="soon")
