"""Columns of a Parquet file are fetched together, and no others."""

import random
import sys
from pathlib import Path

import pytest

pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")
import fsspec.parquet  # noqa: E402
import numpy  # noqa: E402
import pyarrow.parquet  # noqa: E402

import readpath  # noqa: E402
from readpath.columns import Columns, footer_bytes, layout_of  # noqa: E402
from readpath.filesystem import ReadpathFile  # noqa: E402

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
import delayed_store  # noqa: E402

GROUPS, COLUMNS, ROWS = 20, 8, 10_000
NAMES = ["c2", "c6"]


@pytest.fixture(scope="module")
def table():
    draw = numpy.random.default_rng(1)
    return pyarrow.table({f"c{nth}": draw.random(GROUPS * ROWS) for nth in range(COLUMNS)})


@pytest.fixture(scope="module")
def path(table, tmp_path_factory):
    path = tmp_path_factory.mktemp("columns") / "table.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=ROWS)
    return path


@pytest.fixture(scope="module")
def url(path):
    with delayed_store.running(path, 5) as url:
        yield f"readpath::{url}"


def chunk_bytes(path, groups, names):
    layout = pyarrow.parquet.read_metadata(path)
    return sum(
        layout.row_group(group).column(int(name[1:])).total_compressed_size
        for group in groups
        for name in names
    )


def test_two_columns_are_fetched_once_and_concurrently(url, path, table):
    with fsspec.open(url, readpath={"memory": "16MiB"}) as file:
        assert pyarrow.parquet.read_table(file, columns=NAMES).equals(table.select(NAMES))
        counters = file.reader.counters()
    wanted = chunk_bytes(path, range(GROUPS), NAMES)
    # Includes the footer with its surrounding pages, and pages shared by two chunks.
    assert counters["fetched_bytes"] <= wanted + (256 << 10) + 2 * GROUPS * len(NAMES) * 4096
    assert counters["depth_max"] >= 8
    assert counters["hit_bytes"] > wanted // 4


def test_reopened_file_fetches_columns_concurrently(url, path, table, monkeypatch):
    """Like pandas with its file system: the footer is read from one file object, the columns from another."""
    files = []
    begin = ReadpathFile.__init__
    monkeypatch.setattr(
        ReadpathFile, "__init__", lambda self, *said, **named: (files.append(self), begin(self, *said, **named))[0]
    )
    options = {"readpath": {"memory": "16MiB"}}
    got = pandas.read_parquet(url, columns=NAMES, storage_options=options)
    assert got.equals(table.select(NAMES).to_pandas())
    scanned = max((file.reader.counters() for file in files), key=lambda counters: counters["fetched_bytes"])
    assert scanned["depth_max"] >= 8
    assert scanned["fetched_bytes"] <= chunk_bytes(path, range(GROUPS), NAMES) + (320 << 10)


def test_more_memory_allows_more_concurrent_fetches(url):
    def depth(memory):
        with fsspec.open(url, readpath={"memory": memory}) as file:
            pyarrow.parquet.read_table(file, columns=NAMES)
            return file.reader.counters()["depth_max"]

    assert depth("512KiB") < depth("16MiB")


@pytest.mark.parametrize("client", ["readpath", "fsspec"])
def test_announced_columns_are_fetched_at_once_and_no_others(url, path, table, client):
    with readpath.open(url.removeprefix("readpath::"), client=client, memory="16MiB") as file:
        with pytest.raises(ValueError, match="no column 'c9'; there are 'c0', 'c1'"):
            file.prefetch_columns(["c9"])
        file.prefetch_columns(NAMES)
        assert pyarrow.parquet.read_table(file, columns=NAMES).equals(table.select(NAMES))
        fetched = file.stats()["fetched_bytes"] if client == "fsspec" else None
    # Includes the footer with its surrounding pages, and pages shared by two chunks.
    wanted = chunk_bytes(path, range(GROUPS), NAMES) + (256 << 10) + 2 * GROUPS * len(NAMES) * 4096
    assert fetched is None or fetched <= wanted


def test_columns_of_another_file_are_not_announced(tmp_path):
    (tmp_path / "data").write_bytes(bytes(5000))
    with delayed_store.running(tmp_path / "data", 0) as url, readpath.open(url) as file:
        with pytest.raises(ValueError, match="no Parquet file"):
            file.prefetch_columns(["c1"])


def varint(number):
    """Bytes of an integer in Thrift's compact protocol: zigzag, then groups of 7 bits, the lowest first."""
    rest, found = (number << 1) ^ (number >> 63), bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*found, rest])


def with_offsets_of_chunk(path, chunk, change):
    """A Parquet file whose footer has changed offsets of a column chunk, of the same number of bytes."""
    data = path.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[begin:]
    for offset in (chunk.dictionary_page_offset, chunk.data_page_offset):
        assert len(varint(change(offset))) == len(varint(offset)) and varint(offset) in footer
        footer = footer.replace(varint(offset), varint(change(offset)))
    return data[:begin] + footer


@pytest.mark.parametrize("client", ["readpath", "fsspec"])
@pytest.mark.parametrize("case", ["no footer", "no columns", "negative", "outside"])
def test_bytes_of_an_odd_parquet_file_are_read_as_they_are(path, table, tmp_path, case, client):
    odd = tmp_path / "odd.parquet"
    if case == "no footer":
        odd.write_bytes(random.Random(3).randbytes(5000) + b"\x08\0\0\0PAR1")
    elif case == "no columns":
        pyarrow.parquet.write_table(table.select([]), odd)
    else:
        # 32 MiB is outside the file. The chunk is planned after the read of the first row group.
        change = {"negative": lambda offset: -offset - 1, "outside": lambda offset: offset | 1 << 25}[case]
        chunk = pyarrow.parquet.read_metadata(path).row_group(2).column(2)
        odd.write_bytes(with_offsets_of_chunk(path, chunk, change))
        assert len(odd.read_bytes()) < 1 << 25
    data = odd.read_bytes()
    first = pyarrow.parquet.read_metadata(path).row_group(0).column(2)
    begin = first.dictionary_page_offset or first.data_page_offset
    with delayed_store.running(odd, 0) as url, readpath.open(url, client=client, memory="16MiB") as file:
        assert file.read() == data and file.tell() == len(data)
        file.seek(begin)
        size = first.total_compressed_size
        assert file.read(size) == data[begin : begin + size]
        assert file.tell() == min(len(data), begin + size) or len(data) < begin
        if case in ("no footer", "no columns"):
            with pytest.raises(ValueError, match="no Parquet file"):
                file.prefetch_columns(["c1"])


def test_expected_columns_are_planned_by_row_groups_within_the_limit(path):
    layout = pyarrow.parquet.read_metadata(path)

    def chunk(group, nth):
        said = layout.row_group(group).column(nth)
        return said.dictionary_page_offset or said.data_page_offset, said.total_compressed_size

    def both(group):
        # Adjacent columns are one range.
        (begin, first), (_, second) = chunk(group, 4), chunk(group, 5)
        return begin, first + second

    columns = columns_of(path, 3 * both(0)[1] + 3 * chunk(0, 1)[1])
    expected = columns.expect(["c4", "c1", "c5"])
    assert expected[:4] == [chunk(0, 1), both(0), chunk(1, 1), both(1)] and len(expected) <= 6
    # A read of an expected range makes place for the next one.
    assert columns.expect(["c1"]) == []
    planned = [place for group in range(3) for place in columns.read(*both(group))]
    assert set(planned).isdisjoint(expected) and both(3) in planned


def test_row_group_is_fetched_without_other_row_groups(url, path, table):
    with fsspec.open(url) as file:
        got = pyarrow.parquet.ParquetFile(file, pre_buffer=True).read_row_group(7, columns=NAMES)
        assert got.equals(table.slice(7 * ROWS, ROWS).select(NAMES))
        fetched = file.reader.counters()["fetched_bytes"]
    assert fetched <= chunk_bytes(path, [7], NAMES) + (256 << 10) + 4 * 4096


def test_columns_read_together_are_fetched_together_in_the_next_group(url, path, table):
    """Row groups in any order: four columns take four round trips in the first group, and one in the others."""
    names = ["c1", "c3", "c5", "c7"]
    wanted = {group: chunk_bytes(path, [group], names) for group in range(GROUPS)}
    with fsspec.open(url) as file:
        read = pyarrow.parquet.ParquetFile(file, pre_buffer=True).read_row_group
        for group in (19, 10, 1):
            before = file.reader.counters()["fetched_bytes"]
            assert read(group, columns=names).equals(table.slice(group * ROWS, ROWS).select(names))
            counters = file.reader.counters()
            end_of_file = 256 << 10 if group == 19 else 0
            assert counters["fetched_bytes"] - before <= wanted[group] + 8 * 4096 + end_of_file
            assert (counters["depth_max"] >= 4) == (group != 19)
    # The next file with these columns uses the learned ranges. Another read order replaces them.
    with fsspec.open(url) as file:
        read = pyarrow.parquet.ParquetFile(file, pre_buffer=True).read_row_group
        read(18, columns=["c1"])
        before = file.reader.counters()["fetched_bytes"]
        read(2, columns=["c1"])
        assert file.reader.counters()["fetched_bytes"] - before <= chunk_bytes(path, [2], ["c1"]) + 2 * 4096


def test_bytes_prefetched_by_fsspec_are_not_fetched_again(url, table):
    with fsspec.parquet.open_parquet_file(url, columns=NAMES, engine="pyarrow") as file:
        assert not hasattr(file, "reader")
        assert pandas.read_parquet(file, columns=NAMES).equals(table.select(NAMES).to_pandas())


def test_pandas_reads_the_same_table_for_any_memory_size(url, table):
    expected = table.to_pandas()
    for memory in ("64KiB", "1MiB", "64MiB"):
        options = {"readpath": {"memory": memory}}
        assert pandas.read_parquet(url, storage_options=options).equals(expected)
        filtered = pandas.read_parquet(url, filters=[("c3", "<", 0.01)], storage_options=options)
        assert len(filtered) == (expected["c3"] < 0.01).sum()


def columns_of(path, ahead_bytes, together=None):
    end = path.read_bytes()[-100_000:]
    return Columns(layout_of(end[-footer_bytes(end) :]), ahead_bytes, together)


def test_column_plan_has_each_chunk_once_within_the_limit(path):
    layout = pyarrow.parquet.read_metadata(path)
    chunks = []
    for group in range(GROUPS):
        chunk = layout.row_group(group).column(2)
        chunks.append((chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size))
    size_max = max(size for _, size in chunks)
    for seed in range(20):
        order = [0, *random.Random(seed).sample(range(1, GROUPS), GROUPS - 1)]
        columns, planned = columns_of(path, 5 * size_max), []
        for group in order:
            planned.append(columns.read(*chunks[group]))
            known = {place for place in chunks}
            assert all(place in known for place in planned[-1])
            assert len(planned[-1]) <= 5
    in_order = columns_of(path, 5 * size_max)
    planned = [place for place in chunks for place in in_order.read(*place)]
    assert planned == chunks[1:]


def test_columns_of_one_row_group_are_planned_once_each(path):
    layout = pyarrow.parquet.read_metadata(path)

    def chunk(group, nth):
        said = layout.row_group(group).column(nth)
        return said.dictionary_page_offset or said.data_page_offset, said.total_compressed_size

    together = {}
    columns = columns_of(path, 10 << 20, together)
    assert [columns.read(*chunk(12, nth)) for nth in (1, 4, 6)] == [[], [], []]
    assert columns.read(*chunk(3, 4)) == [chunk(3, 1), chunk(3, 6)]
    assert columns.read(*chunk(3, 1)) == [] and columns.read(*chunk(3, 6)) == []
    # Another file with the same columns; with room for one more.
    other = columns_of(path, chunk(5, 4)[1], together)
    assert other.read(*chunk(5, 1)) == [chunk(5, 4)]
    # A program that reads only one of them gets only that one from the next row group on.
    alone = columns_of(path, 10 << 20, together)
    assert alone.read(*chunk(15, 6)) == [chunk(15, 1), chunk(15, 4)]
    assert alone.read(*chunk(2, 6)) == []


def test_partial_chunk_read_produces_no_plan(path):
    columns = columns_of(path, 1 << 20)
    chunk = pyarrow.parquet.read_metadata(path).row_group(0).column(2)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    assert columns.read(begin, 100) is None and columns.read(0, 3) is None
    assert columns.read(begin + 1, 1 << 20) is None
    assert footer_bytes(b"no parquet") is None and footer_bytes(b"PAR1") is None
