"""Remote file details are queried once per open, and again after a change."""

import gc
import itertools

import pytest

fsspec = pytest.importorskip("fsspec")
from counting import Counting  # noqa: E402

import readpath.details  # noqa: E402
from readpath.filesystem import ReadpathFileSystem  # noqa: E402


@pytest.fixture
def below():
    below = Counting()
    below.pipe("/data", b"1" * 100)
    below.asked = 0
    yield below
    below.rm("/", recursive=True)


@pytest.fixture
def fs(below):
    return ReadpathFileSystem(fs=below, skip_instance_cache=True)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""
    now = [5.0]
    monkeypatch.setattr(readpath.details.time, "monotonic", lambda: now[0])
    return now


def test_open_queries_file_details_once(fs, below, clock):
    for opening in range(1, 4):
        assert fs.info("/data")["size"] == 100 and fs.isfile("/data")
        with fs.open("/data") as file:
            assert file.read() == b"1" * 100
        assert below.asked == opening
    assert fs.info(path="/data") == fs.info(path="readpath::/data") == fs.info("/data")
    assert fs.isfile(path="/data") and fs.isfile("/data") and below.asked == opening + 1
    # A missing file is queried each time.
    assert not fs.isfile("/none") and not fs.isfile(path="/none") and below.asked == opening + 3


def test_file_details_are_queried_again_after_expiry_and_changes(fs, below, clock):
    changes = [
        lambda: fs.pipe_file("/data", b"2" * 50),
        lambda: fs.pipe("/data", b"3" * 60),
        lambda: fs.cp_file("/data", "/data"),
        lambda: fs.invalidate_cache(),
        lambda: clock.__setitem__(0, clock[0] + 0.2),
    ]
    for nth, change in enumerate(changes):
        fs.info("/data")
        before = below.asked
        change()
        assert fs.info("/data")["size"] == len(below.cat("/data")), nth
        assert below.asked > before, nth
    fs.rm("/data")
    assert not fs.isfile("/data")


@pytest.mark.parametrize("name", ["/data", "memory:///data", "readpath::memory://data"])
def test_details_of_a_written_file_are_always_queried(fs, clock, name):
    for size in (10, 20):
        with fs.open(name, "wb") as file:
            assert fs.info(name) is not None
            file.write(b"x" * size)
        assert fs.info(name)["size"] == size
        with fs.open(name) as file:
            assert file.read() == b"x" * size
        assert fs.info(name)["size"] == size


def test_names_of_written_files_are_forgotten_with_their_file_objects(tmp_path):
    fs = fsspec.filesystem("readpath", skip_instance_cache=True)
    for nth in range(100):
        with fs.open(f"{tmp_path}/{nth}", "wb") as file:
            file.write(b"1")
            assert len(fs._known._written) <= 2
    with pytest.raises(FileNotFoundError):
        fs.open(f"{tmp_path}/none/0", "wb")
    del file
    gc.collect()
    assert not fs._known._written


@pytest.mark.parametrize("name", ["/data", "memory:///data", "readpath::memory://data"])
def test_open_by_any_name_uses_the_reply(fs, below, clock, name):
    assert fs.info(name)["size"] == 100 and fs.isfile(path=name)
    with fs.open(name) as file:
        assert file.read() == b"1" * 100
    assert below.asked == 1


def test_pyarrow_queries_file_details_once_per_open(fs, below, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    table = pyarrow.table({"number": range(1_000)})
    with below.open("/table.parquet", "wb") as file:
        pyarrow.parquet.write_table(table, file)
    below.asked, opened = 0, itertools.count()
    begin = ReadpathFileSystem._open
    monkeypatch.setattr(
        ReadpathFileSystem, "_open", lambda *said, **named: (next(opened), begin(*said, **named))[1]
    )
    assert pyarrow.parquet.read_table("/table.parquet", filesystem=fs).equals(table)
    assert below.asked <= next(opened)
