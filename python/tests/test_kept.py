"""Cached bytes of a remote file may outlive its handle."""

import asyncio
import random

import pytest

fsspec = pytest.importorskip("fsspec")
from counting import Counting  # noqa: E402

import readpath  # noqa: E402
from readpath.asynchronous import AsyncReadpathFileSystem  # noqa: E402
from readpath.filesystem import ReadpathFileSystem  # noqa: E402

DATA = {f"/{nth}": random.Random(nth).randbytes(300_000 + nth) for nth in range(4)}


@pytest.fixture
def below():
    below = Counting()
    below.pipe(DATA)
    below.fetched = 0
    yield below
    below.rm("/", recursive=True)


def fetched(fs, path, expected):
    """Returns the number of bytes fetched while the whole file is read."""
    before = fs.fs.fetched
    with fs.open(path) as file:
        assert file.read() == expected
    with pytest.raises(ValueError, match="closed file"):
        file.readat(0, 1)
    return fs.fs.fetched - before


def test_cached_bytes_are_dropped_on_close_by_default(below):
    fs = ReadpathFileSystem(fs=below, skip_instance_cache=True)
    assert fetched(fs, "/0", DATA["/0"]) == fetched(fs, "/0", DATA["/0"]) == len(DATA["/0"])


def test_recently_closed_files_are_not_fetched_again(below):
    fs = ReadpathFileSystem(fs=below, keep_files=2, skip_instance_cache=True)
    for path in ("/0", "/1", "/2"):
        assert fetched(fs, path, DATA[path]) == len(DATA[path])
    assert fetched(fs, "/1", DATA["/1"]) == fetched(fs, "/2", DATA["/2"]) == 0
    assert fetched(fs, "/0", DATA["/0"]) == len(DATA["/0"])
    # /1 was closed before /2 and /0: it has made room.
    assert fetched(fs, "/2", DATA["/2"]) == 0 and fetched(fs, "/1", DATA["/1"]) > 0


def test_changed_file_is_fetched_again(below):
    fs = ReadpathFileSystem(fs=below, keep_files=2, skip_instance_cache=True)
    fetched(fs, "/0", DATA["/0"])
    below.pipe("/0", b"other" * 20_000)
    assert fetched(fs, "/0", b"other" * 20_000) == 100_000


def test_file_opened_twice_has_two_readers(below):
    fs = ReadpathFileSystem(fs=below, keep_files=2, skip_instance_cache=True)
    with fs.open("/3") as one, fs.open("/3") as two:
        assert one.reader is not two.reader
        assert one.read(1_000) == two.read(1_000) == DATA["/3"][:1_000]
        one.close()
        assert two.read() == DATA["/3"][1_000:]
    kept = two.reader
    one.close()
    with fs.open("/3") as file:
        assert file.reader is kept and file.read() == DATA["/3"]


def test_fetch_failure_does_not_outlive_its_handle(below):
    fs = ReadpathFileSystem(fs=below, keep_files=1, skip_instance_cache=True)
    real, below.cat_file = below.cat_file, lambda *said, **named: 1 // 0
    with fs.open("/0") as file, pytest.raises(ZeroDivisionError):
        file.read()
    below.cat_file = real
    assert fetched(fs, "/0", DATA["/0"]) == len(DATA["/0"])


def test_cached_bytes_outlive_an_event_loop(below):
    fs = AsyncReadpathFileSystem(fs=below, keep_files=1)

    async def read():
        file = await fs.open_async("/2")
        data = await file.read()
        await file.close()
        await file.close()
        return data

    for expected in (len(DATA["/2"]), 0):
        before = below.fetched
        assert asyncio.run(read()) == DATA["/2"]
        assert below.fetched - before == expected


def test_keep_files_option_reaches_local_paths(tmp_path):
    (tmp_path / "data").write_bytes(DATA["/1"])
    fs = fsspec.filesystem("readpath", keep_files=3, skip_instance_cache=True)
    assert "keep_files=3" in repr(fs.own)
    with readpath.open(f"readpath::file://{tmp_path}/data", keep_files=1) as file:
        assert file.read() == DATA["/1"]
    with pytest.raises(TypeError, match="the cache readpath has no option `keep_files`"):
        fsspec.filesystem("http").open("http://localhost:1", size=5, cache_type="readpath", cache_options={"keep_files": 1})


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("keep_files", -1, "keep_files=-1: give a number from 0"),
        ("depth", 0, "depth=0: give a number from 1"),
        ("backend", "nonsense", "no backend `nonsense`.*threads"),
        ("request", 100, "request 100: holds no page"),
        ("memory", "x", "memory x: expected a size"),
    ],
)
def test_unusable_option_is_refused_before_the_first_file(below, option, value, words):
    for opened in (
        lambda: ReadpathFileSystem(fs=below, skip_instance_cache=True, **{option: value}),
        lambda: AsyncReadpathFileSystem(fs=below, skip_instance_cache=True, **{option: value}),
        lambda: readpath.open("memory:///0", **{option: value}),
    ):
        with pytest.raises(ValueError, match=words):
            opened()
    for option in ("depth", "keep_files"):
        with pytest.raises(TypeError, match="integer"):
            readpath.open("memory:///0", **{option: "x"})
