"""Files and regions as memory: arrays over them hold the file's bytes, and what was written."""

import errno
import faulthandler
import functools
import gc
import io
import multiprocessing
import os
import pickle
import random
import socket
import tempfile
from pathlib import Path

import pytest

import readpath
import readpath.memory
from samples import in_child

numpy = pytest.importorskip("numpy")
SIZE = 8_000_000

served = functools.partial(readpath.map, kernel_cache=False)
"""By us, also where the kernel holds what a test has just written."""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("memory") / "data.bin"
    path.write_bytes(random.Random(2).randbytes(SIZE + 5))
    try:
        readpath.map(path).close()
    except OSError as error:
        if error.errno in (1, 38):
            pytest.skip(f"no userfaultfd here: {error}")
        raise
    return path


def test_array_over_a_mapping_has_the_files_bytes_with_little_memory(path):
    expected = numpy.fromfile(path, dtype="<i8", count=SIZE // 8)
    with served(path, memory="512KiB") as mapping:
        assert len(mapping) == SIZE + 5
        array = numpy.frombuffer(mapping.data, dtype="<i8", count=SIZE // 8)
        assert not array.flags.writeable
        places = numpy.random.default_rng(1).permutation(SIZE // 8)[:2000]
        assert (array[places] == expected[places]).all()
        assert (array == expected).all()
        assert mapping.stats()["evicted_bytes"] > SIZE // 2
        assert mapping.stats()["resident_bytes"] <= 512 << 10
        with pytest.raises(BufferError, match="let go of the arrays"):
            mapping.close()
        del array
        gc.collect()


def test_load_brings_a_range_in_large_requests(path):
    with served(path, readahead="none") as mapping:
        mapping.load(0, 4 << 20)
        reads = mapping.stats()["device_reads"]
        assert bytes(mapping.data[: 4 << 20]) == path.read_bytes()[: 4 << 20]
        assert mapping.stats()["device_reads"] == reads <= 16
        with pytest.raises(IndexError, match="past the end"):
            mapping.load(SIZE, 100)
        mapping.advise("dontneed")


def test_map_errors_are_built_in_exceptions(path, tmp_path):
    with pytest.raises(FileNotFoundError):
        readpath.map(tmp_path / "none")
    with pytest.raises(ValueError, match="there is no readahead policy"):
        readpath.map(path, readahead="psychic")
    mapping = readpath.map(path)
    mapping.close()
    mapping.close()
    with pytest.raises(ValueError, match="closed"):
        len(mapping)
    with pytest.raises(ValueError, match="closed"), mapping:
        pass
    assert "closed" in repr(mapping)


def test_region_larger_than_its_memory_keeps_written_bytes(path, tmp_path):
    del path  # which has asked for userfaultfd
    with readpath.Region("16MiB", memory="1MiB", swap=tmp_path) as region:
        array = numpy.frombuffer(region.data, dtype="<u4")
        assert (array[::4096] == 0).all()
        array[:] = numpy.arange(len(array), dtype="<u4")
        assert (array == numpy.arange(len(array), dtype="<u4")).all()
        assert region.stats()["memory_bytes_max"] < 2 << 20
        assert region.stats()["swap_in_bytes"] > 0
        region.check()
        del array
        gc.collect()
    with pytest.raises(OSError):
        readpath.Region("16MiB", swap=tmp_path / "none")


def test_pieces_arrive_in_the_given_order_and_are_read_once(path):
    expected = path.read_bytes()
    draw = random.Random(4)
    starts = draw.sample(range(0, SIZE, 65_536), 80)
    ranges = [(start, min(draw.randrange(65_537), SIZE - start)) for start in starts]
    for ahead in (None, "64KiB", 1 << 20):
        with served(path, memory="16MiB", readahead="none") as mapping:
            pieces = mapping.pieces(ranges, ahead)
            assert all(
                bytes(piece) == expected[start : start + size]
                for piece, (start, size) in zip(pieces, ranges, strict=True)
            )
            # A second touch of the page, or of the next one, costs no further read.
            assert mapping.stats()["device_read_bytes"] <= sum(size + 8192 for _, size in ranges)
            del pieces
    with served(path) as mapping:
        # The sum of an offset and a size exceeds the type of the array, which has one byte.
        small = numpy.array([(100, 120), (120, 127)], "i1")
        assert [bytes(piece) for piece in mapping.pieces(small)] == [
            expected[100:220],
            expected[120:247],
        ]
        assert bytes(mapping[5:9]) == expected[5:9]
        for wrong in ((SIZE, 6), (-1, 2), (0, -1)):
            with pytest.raises(IndexError, match="of a file of"):
                list(mapping.pieces([(0, 1), wrong]))
        with pytest.raises(ValueError, match="give a number from 0 on"):
            mapping.load(-1, 4)


def test_pickled_mapping_reopens_its_file(path):
    with served(path, memory="1MiB") as mapping:
        with pickle.loads(pickle.dumps(mapping)) as again:
            assert bytes(again[:9]) == bytes(mapping[:9]) and repr(again) == repr(mapping)
    for name in ("nfs://host/file", "https://host/file", "zip://part::file"):
        with pytest.raises(ValueError, match="only files of this machine"):
            readpath.map(name)


def test_path_with_colon_and_slashes_is_mapped_as_it_is_opened(tmp_path):
    """`/folder/x://file` is the file `file` in the folder `x:`, and no URL."""
    (tmp_path / "x:").mkdir()
    (tmp_path / "x:" / "file").write_bytes(b"abc")
    name = f"{tmp_path}/x://file"
    with readpath.open(name) as file, readpath.map(name) as mapping:
        assert (file.read(), bytes(mapping)) == (b"abc", b"abc")


def test_arrays_over_a_mapping_are_readable_in_a_forked_child(path):
    expected = path.read_bytes()
    with served(path, memory="1MiB") as mapping:
        array = numpy.frombuffer(mapping.data, "u1")
        assert array[0] == expected[0]

        def child():
            mapping.load(8192, 100_000)
            mapping.advise("random")
            parts = mapping.pieces([(5, 10), (70_000, 9)])
            with pytest.raises(ValueError, match="before a fork"):
                mapping.stats()
            with pytest.raises(IndexError, match="past the end"):
                mapping.load(len(expected), 1)
            whole = array.tobytes() == expected and bytes(mapping[70_000:]) == expected[70_000:]
            pieces = [bytes(part) for part in parts] == [expected[5:15], expected[70_000:70_009]]
            mapping.close()
            return whole and pieces and in_child(lambda: array.tobytes() == expected)

        assert in_child(child)
        assert array.tobytes() == expected and mapping.stats()["faults"] > 0
        del array
    # A mapping closed before the fork is absent in the child.
    assert in_child(lambda: True)


def test_a_region_is_refused_in_a_child_made_by_fork(path, tmp_path):
    del path  # which has asked for userfaultfd
    with readpath.Region("1MiB", memory="64KiB", swap=tmp_path) as region:
        uses = [
            lambda: region.data,
            lambda: len(region),
            lambda: region.copy(0, 10),
            lambda: region.write_to(1, 0, 10),
            lambda: region.stats(),
            lambda: region.check(),
        ]

        def child():
            for use in uses:
                with pytest.raises(ValueError, match="before a fork"):
                    use()
            region.close()
            return True

        assert in_child(child)
        with multiprocessing.get_context("fork").Pool(2, _hold, (region,)) as pool:
            assert all(pool.map(_is_refused, range(20)))
        assert region.copy(0, 10) == bytes(10)


def _hold(region):
    global _held
    _held = region


def _is_refused(at):
    try:
        _held.copy(at, at + 10)
    except ValueError as error:
        return "before a fork" in str(error)
    return False


def test_array_over_a_region_never_has_wrong_bytes_in_a_forked_child(path, tmp_path):
    """It may end there, by a signal or by name; and the parent goes on."""
    del path  # which has asked for userfaultfd
    with readpath.Region("1MiB", memory="64KiB", swap=tmp_path) as region:
        array = numpy.frombuffer(region.data, "<u4")
        array[:] = numpy.arange(len(array))
        wrong = 7
        for place in (0, len(array) // 2, len(array) - 1):
            child = os.fork()
            if child == 0:
                faulthandler.disable()
                os._exit(0 if int(array[place]) == place else wrong)
            status = os.waitpid(child, 0)[1]
            assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) != wrong
        assert (array == numpy.arange(len(array))).all()
        del array
        gc.collect()


def as_an_ordinary_user(work):
    """Whether `work()` is true in a child of an ordinary user."""

    def child():
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        return work()

    return in_child(child)


@pytest.fixture
def open_folder():
    """A folder where everybody may write."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


def test_write_to_and_copy_work_where_the_kernel_cannot_read_pages(path, open_folder):
    expected = path.read_bytes()
    (open_folder / "data").write_bytes(expected)
    if not as_an_ordinary_user(lambda: readpath.map(open_folder / "data").close() is None):
        pytest.skip("an ordinary user has no userfaultfd here")

    def mapping_is_copied():
        with served(open_folder / "data", memory="512KiB", readahead="none") as mapping:
            with open(open_folder / "out", "wb", buffering=0) as file:
                try:
                    written = os.write(file.fileno(), mapping.data)
                    assert written < len(mapping) or unprivileged_may_serve_the_kernel()
                except OSError as error:
                    assert error.errno == errno.EFAULT
                file.seek(0)
                file.truncate()
                assert mapping.write_to(file) == len(expected)
            is_whole = (open_folder / "out").read_bytes() == expected
            ours, theirs = socket.socketpair()
            with ours, theirs:
                assert mapping.write_to(ours, 70_000, 170_000) == 100_000
                got = theirs.recv(100_000, socket.MSG_WAITALL)
            return (
                is_whole
                and got == expected[70_000:170_000]
                and mapping.copy() == expected
                and mapping.copy(-9) == expected[-9:]
                and mapping.copy(9, 5) == b""
            )

    def region_is_copied():
        with readpath.Region("4MiB", memory="256KiB", swap=open_folder) as region:
            array = numpy.frombuffer(region.data, "<u4")
            array[:] = numpy.arange(len(array))
            whole = array.tobytes()
            with open(open_folder / "region", "wb") as file:
                region.write_to(file)
            del array
            gc.collect()
            is_written = (open_folder / "region").read_bytes() == whole == region.copy()
            return is_written and region_is_filled(region, expected[:4_000_000])

    def region_is_filled(region, expected):
        with open(open_folder / "data", "rb", buffering=0) as file:
            assert region.read_from(file, 0, len(expected)) == len(expected)
        is_filled = region.copy(0, len(expected)) == expected
        # Our own file brings the bytes in, and the program copies them.
        with readpath.open(open_folder / "data", memory="8MiB") as file:
            with region.data as data, data[: len(expected)] as part:
                assert file.readinto_at(0, part) == len(expected)
        return is_filled and region.copy(0, len(expected)) == expected

    assert as_an_ordinary_user(mapping_is_copied)
    assert as_an_ordinary_user(region_is_copied)


def unprivileged_may_serve_the_kernel():
    return Path("/proc/sys/vm/unprivileged_userfaultfd").read_text().strip() == "1"


def test_mapping_of_a_file_that_has_become_shorter_has_the_error_of_a_file(tmp_path):
    (tmp_path / "shrinks").write_bytes(bytes(1_000_000))
    with served(tmp_path / "shrinks") as mapping:
        os.truncate(tmp_path / "shrinks", 500_000)
        with pytest.raises(OSError, match="shorter") as caught:
            mapping.load(600_000, 10)
        assert caught.value.errno == errno.ESTALE


def test_errors_of_sizes_name_the_option(path, tmp_path):
    for make, words in [
        (lambda: readpath.Region(0, swap=tmp_path), "size 0: holds no page"),
        (lambda: readpath.Region("x", swap=tmp_path), "size x: expected a size"),
        (lambda: readpath.Region("1MiB", "x", swap=tmp_path), "memory x: expected a size"),
        (lambda: readpath.Region(2**63, swap=tmp_path), f"size {2**63}: no file is so large"),
        (lambda: next(readpath.map(path).pieces([(0, 1)], ahead=0)), "ahead 0: holds no page"),
        (lambda: readpath.ReadPath(whole_file_memory="x"), "whole_file_memory x: expected"),
        (lambda: readpath.ReadPath(request="x"), "request x: expected"),
        (lambda: readpath.ReadPath(disk=tmp_path, disk_size="x"), "disk_size x: expected"),
        (lambda: readpath.ReadPath(memory="x"), "memory x: expected"),
    ]:
        with pytest.raises(ValueError, match=f"^{words}"):
            make()


def test_sizes_on_disk_have_no_limit_of_a_cache(tmp_path):
    """The tables of a cache of 4,000 TiB need 62 TiB of memory."""
    with pytest.raises(ValueError, match="memory 4000TiB: the books"):
        readpath.ReadPath(memory="4000TiB")
    readpath.ReadPath(whole_file_memory="4000TiB")
    folder = tmp_path / "tier"
    folder.mkdir(mode=0o700)
    readpath.ReadPath(disk=folder, disk_size="4000TiB")
    with pytest.raises(OSError):
        readpath.Region("4000TiB", memory="16MiB", swap=tmp_path)


def test_docstrings_explain_efault_and_the_alternatives():
    for what in (readpath.map, readpath.Region):
        assert "EFAULT" in what.__doc__ and "copy" in what.__doc__ and "write_to" in what.__doc__
    assert "read_from" in readpath.Region.__doc__ and "numpy.save" in readpath.memory.__doc__


def test_a_full_pipe_is_an_error_and_loses_no_bytes(path, tmp_path):
    """A raw file that would block returns None and takes or gives no byte (`io.RawIOBase`)."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    os.set_blocking(read_end, False)
    with served(path) as mapping, io.FileIO(write_end, "w") as target:
        with pytest.raises(BlockingIOError):
            mapping.write_to(target, 0, 1 << 20)
    with io.FileIO(read_end) as source:
        # The pipe has the first bytes of the file, in order.
        piped = source.readall()
        assert 0 < len(piped) < 1 << 20 and piped == path.read_bytes()[: len(piped)]
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    with readpath.Region("1MiB", memory="64KiB", swap=tmp_path) as region, io.FileIO(read_end) as source:
        with pytest.raises(BlockingIOError):
            region.read_from(source, 0, 100)
    os.close(write_end)
