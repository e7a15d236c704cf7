"""A hint of the program belongs to its open file: not to the next one, and for as long as it is open."""

import os
import random

import pytest

fsspec = pytest.importorskip("fsspec")
from counting import Counting  # noqa: E402
from samples import in_child  # noqa: E402

import readpath  # noqa: E402
from readpath.filesystem import ReadpathFileSystem  # noqa: E402
from test_versions import NEW, served  # noqa: E402

DATA = random.Random(5).randbytes(600_000)
READS = 16


@pytest.fixture
def below():
    below = Counting()
    below.pipe("/data", DATA)
    yield below
    below.rm("/", recursive=True)


@pytest.fixture
def fs(below):
    return ReadpathFileSystem(fs=below, readahead="ondemand", keep_files=2, skip_instance_cache=True)


def fetches(file):
    """Number of fetches of sequential reads. Without readahead it is the number of the reads."""
    before = file.stats()["fetches"]
    for nth in range(READS):
        assert len(file.readat(16_384 * nth, 16_384)) == 16_384
    return file.stats()["fetches"] - before


def test_hint_ends_with_the_open_file(fs):
    with fs.open("/data") as file:
        expected = fetches(file)
    assert expected < READS
    fs.kept._readers.clear()
    with fs.open("/data") as file:
        file.advise("random")
    with fs.open("/data") as file:
        assert fetches(file) == expected


@pytest.fixture
def table(below):
    """Name of a Parquet file with columns of 80,000 bytes."""
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    draw = random.Random(1)
    columns = {name: [draw.random() for _ in range(20_000)] for name in "abc"}
    with below.open("/table", "wb") as file:
        pyarrow.parquet.write_table(
            pyarrow.table(columns), file, row_group_size=10_000, use_dictionary=False
        )
    return "/table"


def scan_column(file):
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(file, columns=["b"]).num_rows == 20_000


def test_reads_of_columns_end_with_the_open_file(fs, table):
    counts = []
    for advice in (None, "normal"):
        fs.kept._readers.clear()
        with fs.open(table) as file:
            scan_column(file)
        with fs.open(table) as file:
            if advice is not None:
                file.advise(advice)
            counts.append(fetches(file))
    assert counts[0] == counts[1] < READS


def test_reads_of_columns_leave_the_hint_of_the_program(fs, table):
    with fs.open(table) as file:
        file.advise("random")
        scan_column(file)
        file.seek(0)
        # No read of columns: the hint of the program applies again.
        file.read(10)
        pages = {offset // 4096 for offset in range(0, READS * 16_384, 4096)}
        for page in sorted(pages):
            before = file.stats()["fetched_bytes"]
            file.readat(4096 * page, 4096)
            assert file.stats()["fetched_bytes"] - before <= 4096


@pytest.mark.parametrize("advice", ["random", "sequential"])
def test_child_of_fork_has_the_hint_of_its_parent(fs, advice):
    with fs.open("/data") as file:
        file.advise(advice)
        expected = fetches(file)

    with fs.open("/data") as file:
        fs.kept._readers.clear()
        file.advise(advice)
        assert in_child(lambda: fetches(file) == expected)


def test_hint_outlives_a_change_of_the_file(fs, below):
    with fs.open("/data") as file:
        file.advise("random")
        below.pipe("/data", DATA[::-1])
        assert file.revalidate()
        assert fetches(file) == READS


def local_readahead_bytes(file):
    """Bytes that the readahead of a local file has fetched for sequential reads."""
    for nth in range(READS):
        file.readat(4096 * nth, 4096)
    return file.path_stats()["readahead_bytes"]


@pytest.mark.parametrize("revalidates", [False, True])
def test_child_of_fork_has_the_hint_of_a_local_file(tmp_path, revalidates):
    """With `random` there is no readahead, as with `FADV_RANDOM`."""
    path = tmp_path / "data"
    path.write_bytes(DATA)
    with readpath.open(path, memory="8MiB", readahead="ondemand", kernel_cache=False) as file:
        assert local_readahead_bytes(file) > 0
    with readpath.open(path, memory="8MiB", readahead="ondemand", kernel_cache=False) as file:
        file.advise("random")

        def has_hint():
            if revalidates:
                os.utime(path, ns=(1, 1))
                assert file.revalidate()
            return local_readahead_bytes(file) == 0

        assert in_child(has_hint)


OPTIONS = {"memory": "8MiB", "readahead": "ondemand", "request": "16KiB"}


def requests(store, file):
    """Number of requests of sequential reads, from a page on."""
    before = len(store.asked)
    for nth in range(READS):
        file.readat(303_104 + 16_384 * nth, 16_384)
    return len(store.asked) - before


@pytest.mark.parametrize("advice", ["normal", "random"])
def test_hint_outlives_a_change_of_an_object(advice):
    counts = []
    for changes in (False, True):
        with served(("strong",)) as (store, url), readpath.open(url, **OPTIONS) as file:
            file.advise(advice)
            if changes:
                # As reads of columns leave it.
                file._advise_policy("random")
                store.data = NEW
                assert file.revalidate()
            counts.append(requests(store, file))
    assert counts[0] == counts[1]
