"""A file behind fsspec takes what a local one takes: arrays of ranges, rows into place, hints; and refuses alike."""

import asyncio
import random

import pytest

fsspec = pytest.importorskip("fsspec")
numpy = pytest.importorskip("numpy")
import readpath  # noqa: E402
from readpath.files import File  # noqa: E402
from readpath.filesystem import ReadpathFile  # noqa: E402

SIZE = 1_000_003
DATA = random.Random(21).randbytes(SIZE)


@pytest.fixture(params=["here", "far"])
def file(request, tmp_path):
    """The same bytes, by a file of this machine and by one that fsspec fetches."""
    if request.param == "here":
        (tmp_path / "data").write_bytes(DATA)
        with readpath.open(tmp_path / "data") as file:
            assert isinstance(file, File)
            yield file
        return
    fsspec.filesystem("memory").pipe("/far", DATA)
    with readpath.open("memory://far", readpath={"memory": "128KiB"}) as file:
        assert isinstance(file, ReadpathFile)
        yield file
    fsspec.filesystem("memory").rm("/far")


PAIRS = [(0, 10), (SIZE - 3, 10), (70_000, 0), (5_000, 9_000), (400_000, 200_000)]
EXPECTED = [DATA[offset : offset + size] for offset, size in PAIRS]


@pytest.mark.parametrize("kind", ["i8", "u8", "i4", ">i4", ">u8", None])
def test_remote_readat_many_accepts_ranges_as_an_array(file, kind):
    asked = PAIRS if kind is None else numpy.array(PAIRS, dtype=kind)
    assert file.readat_many(asked) == EXPECTED
    assert file.readat_many(asked[::-1]) == EXPECTED[::-1]
    assert file.readat_many(pair for pair in PAIRS) == EXPECTED
    assert asyncio.run(file.areadat_many(asked)) == EXPECTED
    file.prefetch_many(asked)


def test_arrays_that_are_not_ranges_are_refused(file):
    for use in (file.readat_many, file.prefetch_many):
        with pytest.raises(ValueError, match="two columns"):
            use(numpy.arange(9))
        with pytest.raises(TypeError, match="give integers"):
            use(numpy.ones((2, 2)))
        with pytest.raises(ValueError, match="-5.*number(s)? from 0 on"):
            use(numpy.array([(1, 2), (-5, 1)]))


def test_remote_readinto_many_reads_rows_into_their_places(file):
    rows = numpy.random.default_rng(1).integers(0, SIZE // 256, 2_000)
    table = numpy.frombuffer(DATA[: SIZE // 256 * 256], "u1").reshape(-1, 256)
    into = numpy.zeros((len(rows), 256), "u1")
    assert file.readinto_many(rows * 256, into) == [256] * len(rows)
    assert (into == table[rows]).all()
    several = [bytearray(5), numpy.zeros(3, "<u4"), memoryview(bytearray(90))[10:20], bytearray()]
    assert file.readinto_many([7, 100, SIZE - 4, 9], several) == [5, 12, 4, 0]
    assert several[0] == DATA[7:12] and several[1].tobytes() == DATA[100:112]
    assert bytes(several[2]) == DATA[-4:] + bytes(6)
    for offsets, buffers in (([1, 2], several), ([1, 2, 3], bytearray(10)), ([], bytearray(1))):
        with pytest.raises(ValueError):
            file.readinto_many(offsets, buffers)
    with pytest.raises(BufferError, match="read-only"):
        file.readinto_many([1], [b"123"])
    with pytest.raises(BufferError, match="not in one piece"):
        file.readinto_many([1], [numpy.zeros((4, 4), "u1")[:, 1]])
    with pytest.raises(ValueError, match="one row"):
        file.readinto_many(numpy.array([[1, 2]]), [bytearray(1)])


def test_hints_and_counters_work_like_those_of_local_files(file):
    file.advise("random")
    with pytest.raises(ValueError, match="no advice `hurry`"):
        file.advise("hurry")
    assert file.readat(5_000, 100) == DATA[5_000:5_100]
    counted = file.stats()
    assert counted["bytes"] == 100 and 0 <= counted["cached_bytes"] <= 100
