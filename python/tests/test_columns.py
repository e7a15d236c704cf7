"""Columns of a Parquet file are fetched together, and no others."""

import functools
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


def footer_of(data):
    return data[-footer_bytes(data) :]


NESTED = {
    "number": [1, 2, None] * 400,
    "text": ["a", "bc", "ä" * 300] * 400,
    "point": [{"x": 1.5, "y": {"z": True}}, None, {"x": 2.5, "y": None}] * 400,
    "list": [[{"k": 1, "v": "a"}], [], [{"k": 2, "v": None}] * 3] * 400,
}


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "brotli"])
@pytest.mark.parametrize("has_dictionary", [True, False])
@pytest.mark.parametrize("shape", ["nested", "no rows", "long", "wide", "deep", "unnamed"])
def test_layout_agrees_with_pyarrow(tmp_path, codec, has_dictionary, shape):
    """Places of chunks begin with the dictionary page. `long` has 400 row groups, `wide` has 300 columns."""
    made = {"nested": NESTED, "no rows": {name: column[:0] for name, column in NESTED.items()}}
    made["long"] = {"a": list(range(1200)), "b": ["x"] * 1200}
    made["unnamed"] = {"": [{"x": 1}] * 600, "x": [2] * 600}
    made["deep"] = {"a": functools.reduce(lambda one, _: [{"b": one[0]}], range(40), [1]) * 600}
    made["wide"] = {f"c{at}": [at, 2 * at] for at in range(300)}
    table = pyarrow.table(made[shape], pyarrow.table(NESTED).schema if shape == "no rows" else None)
    pyarrow.parquet.write_table(
        table, tmp_path / "t", row_group_size=3 if shape == "long" else 500, compression=codec,
        use_dictionary=has_dictionary, write_page_index=True,
    )  # fmt: skip
    expected = pyarrow.parquet.read_metadata(tmp_path / "t")
    paths, groups = layout_of(footer_of((tmp_path / "t").read_bytes()))
    columns = range(expected.num_columns)
    assert paths == [expected.schema.column(at).path for at in columns]
    assert len(groups) == expected.num_row_groups
    for group, chunks in enumerate(groups):
        of_group = [expected.row_group(group).column(at) for at in columns]
        starts = [
            one.dictionary_page_offset if one.has_dictionary_page else one.data_page_offset for one in of_group
        ]
        assert chunks == [(start, one.total_compressed_size) for start, one in zip(starts, of_group, strict=True)]
        assert any(one.has_dictionary_page for one in of_group) == has_dictionary


def test_bytes_behind_a_wrong_footer_are_read_as_they_are(tmp_path):
    """1 to 4 changed bytes of the footer. pyarrow ends the process for some of them."""
    pyarrow.parquet.write_table(pyarrow.table(NESTED), tmp_path / "t", row_group_size=300)
    data = (tmp_path / "t").read_bytes()
    begin, expected = len(data) - footer_bytes(data), pyarrow.parquet.read_metadata(tmp_path / "t")
    chunks = [expected.row_group(group).column(0) for group in range(expected.num_row_groups)]
    places = [(chunk.dictionary_page_offset, chunk.total_compressed_size) for chunk in chunks]
    system = fsspec.filesystem("memory")
    draw, refused = random.Random(1), 0
    for _ in range(2000):
        changed = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(begin, len(data) - 8)] = draw.randrange(256)
        system.pipe("/changed.parquet", bytes(changed))
        with readpath.open("memory://changed.parquet", memory="1MiB") as file:
            assert file.read() == changed
            for start, size in places:
                file.seek(start)
                assert file.read(size) == changed[start : start + size]
            try:
                file.prefetch_columns(["number", "point"])
            except ValueError:
                refused += 1
    system.rm("/changed.parquet")
    # Many changes concern statistics only. Both kinds must be among the cases.
    assert 100 < refused < 1900


@pytest.mark.parametrize(
    ("footer", "words"),
    [
        # Field 1 as a structure in a structure, without an end.
        (b"\x1c" * 100_000, "too many levels"),
        # Field 1 is a list of 2**63 structures, a binary of 5 bytes, or a number of 11 bytes.
        (b"\x19\xfc" + b"\xff" * 8 + b"\x7f", "length"),
        (b"\x18\x05abc", "length"),
        (b"\x16" + b"\xff" * 10 + b"\x01", "64 bits"),
        (b"\x16", "too few bytes"),
        (b"\x1f", "unknown type"),
        (b"\x00", "no schema"),
        # Schema: a list of one structure with 2 children, and none of them; one without a name.
        (b"\x29\x1c\x48\x00\x15\x04\x00\x29\x0c\x00", "children"),
        (b"\x29\x1c\x00", "without a name"),
        # A group with a name of 10,000 bytes and 130 children: 1.3 MB of paths in 11 KB.
        (
            b"\x29\xfc\x84\x01" + b"\x48\x00\x15\x02\x00" + b"\x48\x90\x4e" + b"n" * 10_000 + b"\x15\x84\x02\x00"
            + b"\x15\x02\x38\x01a\x00" * 130 + b"\x29\x0c\x00",
            "too long paths",
        ),
        # A list of 1,000,001 row groups: one more than pyarrow takes.
        (b"\x49\xfc\xc1\x84\x3d" + b"\x19\x0c\x00" * 1_000_001 + b"\x00", "too many items"),
    ],
)
def test_wrong_footers_are_errors(footer, words):
    with pytest.raises(ValueError, match=f"no Parquet file: .*{words}"):
        layout_of(footer)


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
