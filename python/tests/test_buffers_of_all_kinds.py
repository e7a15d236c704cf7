"""Memory and numbers as programs have them: of ctypes, of multiprocessing, without dimensions, of the other byte order."""

import ctypes
import multiprocessing

import pytest

import readpath

numpy = pytest.importorskip("numpy")
fsspec = pytest.importorskip("fsspec")
DATA = bytes(range(256)) * 16


@pytest.fixture(params=["local", "remote"])
def file(request, tmp_path):
    if request.param == "local":
        (tmp_path / "data").write_bytes(DATA)
        with readpath.open(tmp_path / "data") as file:
            yield file
    else:
        fsspec.filesystem("memory").pipe("/kinds", DATA)
        with readpath.open("memory://kinds") as file:
            yield file


class Pair(ctypes.Structure):
    _fields_ = [("first", ctypes.c_uint32), ("second", ctypes.c_uint64)]  # noqa: RUF012


KINDS = {
    "array of characters": lambda: (ctypes.c_char * 16)(),
    "a number": ctypes.c_uint64,
    "array of arrays": lambda: ((ctypes.c_int * 2) * 3)(),
    "structure": Pair,
    "shared array": lambda: multiprocessing.RawArray("i", 5),
    "shared value": lambda: multiprocessing.RawValue("d"),
    "array without dimensions": lambda: numpy.zeros((), "i8"),
    "array of the other byte order": lambda: numpy.zeros(4, ">i4"),
    "array of records": lambda: numpy.zeros(3, [("a", "i4"), ("b", "f8")]),
    "bytes": lambda: bytearray(16),
    "view": lambda: memoryview(bytearray(16))[3:11],
    "empty": lambda: numpy.zeros((0, 4)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_contiguous_buffer_kind_is_filled(file, kind):
    for read in (
        lambda memory: file.readinto_at(5, memory),
        lambda memory: (file.seek(5), file.readinto(memory))[1],
        lambda memory: file.readinto_many([5], memory if memoryview(memory).nbytes else [memory])[0],
        lambda memory: file.readinto_many([5], [memory])[0],
    ):
        memory = KINDS[kind]()
        size = memoryview(memory).nbytes
        assert read(memory) == size
        assert memoryview(memory).tobytes() == DATA[5 : 5 + size]


def test_readinto_many_splits_one_buffer_into_equal_parts(file):
    for memory in ((ctypes.c_char * 12)(), multiprocessing.RawArray("i", 3), numpy.zeros(3, ">u4")):
        assert file.readinto_many([0, 100, 7], memory) == [4, 4, 4]
        assert memoryview(memory).tobytes() == DATA[:4] + DATA[100:104] + DATA[7:11]


@pytest.mark.parametrize("offsets", [[], (), numpy.zeros(0, "i8"), iter([])])
def test_no_reads_fill_an_empty_buffer(file, offsets):
    # As `readat_many([])` and `readinto_many([], [])`: the last batch of a loader may be empty.
    assert file.readinto_many(offsets, numpy.zeros((0, 4), "f4")) == []
    assert file.readinto_many([], bytearray()) == []
    with pytest.raises(ValueError, match="0 parts"):
        file.readinto_many([], bytearray(5))


def test_read_only_and_non_contiguous_buffers_are_refused(file):
    for memory, words in (
        (b"1234", "read-only"),
        (numpy.zeros((3, 4), order="F"), "not in one piece"),
        (memoryview(bytearray(16))[::2], "not in one piece"),
    ):
        for read in (file.readinto, lambda memory: file.readinto_at(0, memory)):
            with pytest.raises(BufferError, match=words):
                read(memory)
        with pytest.raises(BufferError, match=words):
            file.readinto_many([0], [memory])
    with pytest.raises(TypeError):
        file.readinto("text")


ORDERS = [">i8", "<i8", "=i8", ">u8", "<u8"]


@pytest.mark.parametrize("order", ORDERS)
def test_ranges_of_both_byte_orders_are_equal(file, order):
    ranges = numpy.array([(4, 4), (300, 5), (0, 1)], order)
    expected = [DATA[4:8], DATA[300:305], DATA[:1]]
    assert file.readat_many(ranges) == expected
    # Every second row of a longer one, and columns of which the memory lies the other way round.
    assert file.readat_many(numpy.repeat(ranges, 2, axis=0)[::2]) == expected
    assert file.readat_many(numpy.asfortranarray(ranges)) == expected
    file.prefetch_many(ranges)
    room = numpy.zeros((3, 4), "u1")
    assert file.readinto_many(ranges[:, 0].copy(), room) == [4, 4, 4]
    assert room.tobytes() == DATA[4:8] + DATA[300:304] + DATA[:4]
    if "i" in order:
        with pytest.raises(ValueError, match="0 on"):
            file.readat_many(numpy.array([(-4, 4)], order))


def test_seek_before_the_start_raises_the_error_of_built_in_files(file, tmp_path):
    (tmp_path / "raw").write_bytes(DATA)
    with open(tmp_path / "raw", "rb", buffering=0) as raw:
        for offset, whence in ((-1, 0), (-len(DATA) - 1, 2), (-1, 1)):
            with pytest.raises(OSError) as expected:
                raw.seek(offset, whence)
            with pytest.raises(OSError) as raised:
                file.seek(offset, whence)
            assert raised.value.errno == expected.value.errno
            assert file.tell() == 0
