"""Files and regions as memory: arrays over them hold the file's bytes, and what was written."""

import gc
import pickle
import random

import pytest

import readpath
from samples import in_child

numpy = pytest.importorskip("numpy")
SIZE = 8_000_000


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


def test_an_array_over_a_file_has_its_bytes_whatever_the_memory(path):
    expected = numpy.fromfile(path, dtype="<i8", count=SIZE // 8)
    with readpath.map(path, memory="512KiB") as mapping:
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


def test_a_range_can_be_loaded_in_large_requests(path):
    with readpath.map(path, readahead="none") as mapping:
        mapping.load(0, 4 << 20)
        reads = mapping.stats()["device_reads"]
        assert bytes(mapping.data[: 4 << 20]) == path.read_bytes()[: 4 << 20]
        assert mapping.stats()["device_reads"] == reads <= 16
        with pytest.raises(IndexError, match="past the end"):
            mapping.load(SIZE, 100)
        mapping.advise("dontneed")


def test_errors_are_the_built_in_ones(path, tmp_path):
    with pytest.raises(FileNotFoundError):
        readpath.map(tmp_path / "none")
    with pytest.raises(ValueError, match="there is no readahead law"):
        readpath.map(path, readahead="psychic")
    mapping = readpath.map(path)
    mapping.close()
    mapping.close()
    with pytest.raises(ValueError, match="closed"):
        len(mapping)


def test_a_region_larger_than_its_memory_keeps_what_was_written(path, tmp_path):
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


def test_pieces_come_in_the_order_given_and_each_is_read_once(path):
    expected = path.read_bytes()
    draw = random.Random(4)
    starts = draw.sample(range(0, SIZE, 65_536), 80)
    ranges = [(start, min(draw.randrange(65_537), SIZE - start)) for start in starts]
    for ahead in (None, "64KiB", 1 << 20):
        with readpath.map(path, memory="16MiB", readahead="none") as mapping:
            pieces = mapping.pieces(ranges, ahead)
            assert all(
                bytes(piece) == expected[start : start + size]
                for piece, (start, size) in zip(pieces, ranges, strict=True)
            )
            # What touches the same page twice, or the page behind, costs no further read.
            assert mapping.stats()["device_read_bytes"] <= sum(size + 8192 for _, size in ranges)
            del pieces
    with readpath.map(path) as mapping:
        assert bytes(mapping[5:9]) == expected[5:9]
        for wrong in ((SIZE, 6), (-1, 2), (0, -1)):
            with pytest.raises(IndexError, match="of a file of"):
                list(mapping.pieces([(0, 1), wrong]))
        with pytest.raises(ValueError, match="give a number from 0 on"):
            mapping.load(-1, 4)


def test_a_mapping_is_sent_as_its_name(path):
    with readpath.map(path, memory="1MiB") as mapping:
        with pickle.loads(pickle.dumps(mapping)) as again:
            assert bytes(again[:9]) == bytes(mapping[:9]) and repr(again) == repr(mapping)
    with pytest.raises(ValueError, match="only files of this machine"):
        readpath.map("nfs://host/file")


def test_arrays_over_a_mapping_go_on_in_a_child_made_by_fork(path):
    expected = path.read_bytes()
    with readpath.map(path, memory="1MiB") as mapping:
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
    # What was closed before has no place in a child.
    assert in_child(lambda: True)


def test_a_region_is_refused_in_a_child_made_by_fork(tmp_path):
    with readpath.Region("1MiB", memory="64KiB", swap=tmp_path) as region:

        def child():
            with pytest.raises(ValueError, match="before a fork"):
                region.data  # noqa: B018
            region.close()
            return True

        assert in_child(child)
