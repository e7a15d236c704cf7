"""The file system for asyncio: the bytes of the one below, on the loop of whoever awaits."""

import asyncio
import contextlib
import os
import random
import re
import resource
import sys
import types
from pathlib import Path

import pytest

fsspec = pytest.importorskip("fsspec")
import fsspec.asyn  # noqa: E402
pytest.importorskip("aiohttp")
import readpath.asynchronous  # noqa: E402
from fsspec.core import url_to_fs  # noqa: E402

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
import delayed_store  # noqa: E402
from samples import in_child  # noqa: E402

DATA = random.Random(13).randbytes(3_000_003)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("asynchronous") / "data.bin"
    path.write_bytes(DATA)
    return path


@pytest.fixture(scope="module", params=["file", "local path", "http", "memory"])
def url(request, path):
    with contextlib.ExitStack() as stack:
        if request.param == "memory":
            fsspec.filesystem("memory").pipe("/asynchronous", DATA)
            stack.callback(fsspec.filesystem("memory").rm, "/asynchronous")
        yield {
            "file": f"readpath::file://{path}",
            "local path": f"readpath://{path}",
            "http": f"readpath::{stack.enter_context(delayed_store.running(path, 1))}",
            "memory": "readpath::memory://asynchronous",
        }[request.param]


@contextlib.asynccontextmanager
async def opened(url, **options):
    """The file system of a URL and the path, as stores of arrays ask for them."""
    fs, path = url_to_fs(url, asynchronous=True, skip_instance_cache=True, **options)
    assert fs.async_impl and fs.asynchronous
    yield fs, path
    if (session := getattr(fs.fs, "_session", None)) is not None:
        await session.close()


def test_async_ranges_return_the_files_bytes(url):
    draw = random.Random(1)
    asked = [(draw.randrange(len(DATA)), draw.randrange(50_000)) for _ in range(60)]
    starts, ends = [start for start, _ in asked], [start + size for start, size in asked]

    async def read():
        async with opened(url) as (fs, path):
            assert (await fs._info(path))["size"] == len(DATA) and await fs._exists(path)
            assert await fs._cat_file(path, 5, 105) == DATA[5:105]
            assert await fs._cat_file(path) == DATA
            if "http" not in url:  # the store doesn't know suffixes
                assert await fs._cat_file(path, start=-10) == DATA[-10:]
            got = await fs._cat_ranges([path] * len(asked), starts, ends)
            assert got == [DATA[start:end] for start, end in zip(starts, ends, strict=True)]

    asyncio.run(read())


def test_async_file_reads_stream_and_ranges(url):
    async def read():
        async with opened(url, readpath={"memory": "1MiB"}) as (fs, path):
            file = await fs.open_async(path)
            assert file.size == len(DATA)
            read = [piece := await file.read(65_536)]
            while piece:
                read.append(piece := await file.read(65_536))
            assert b"".join(read) == DATA
            assert await file.readat(7, 9) == DATA[7:16]
            assert await file.readat_many([(1, 2), (9_000, 5)]) == [DATA[1:3], DATA[9_000:9_005]]
            await file.close()
            with pytest.raises(OSError, match="give 'rb'"):
                await fs.open_async(path, "wb")

    asyncio.run(read())


def test_missing_file_fails_only_its_own_range(url):
    async def read():
        async with opened(url) as (fs, path):
            for use in (fs._info, fs._cat_file, fs.open_async):
                with pytest.raises(FileNotFoundError):
                    await use(f"{path}x")
            assert not await fs._exists(f"{path}x")
            good, bad = await fs._cat_ranges([path, f"{path}x"], [0, 0], [9, 9])
            assert good == DATA[:9] and isinstance(bad, FileNotFoundError)

    asyncio.run(read())


def test_folders_are_listed_and_files_written(tmp_path):
    async def use():
        fs = fsspec.filesystem("readpath", asynchronous=True, skip_instance_cache=True)
        await fs._makedirs(f"{tmp_path}/a/b", exist_ok=True)
        await fs._pipe_file(f"{tmp_path}/a/b/one", b"12345")
        assert await fs._cat_file(f"{tmp_path}/a/b/one", 1, 3) == b"23"
        assert await fs._find(str(tmp_path)) == [f"{tmp_path}/a/b/one"]
        assert await fs._glob(f"{tmp_path}/a/*/o*") == [f"{tmp_path}/a/b/one"]
        await fs._rm_file(f"{tmp_path}/a/b/one")
        assert await fs._find(str(tmp_path)) == []

    asyncio.run(use())


def test_unknown_option_is_refused_with_a_suggestion(path):
    with pytest.raises(TypeError, match="no option `memry`; did you mean `memory`"):
        url_to_fs(f"readpath::file://{path}", asynchronous=True, memry="1MiB")
    fs, _ = url_to_fs(f"readpath::file://{path}", asynchronous=True, memory="1MiB")
    assert isinstance(fs, readpath.asynchronous.AsyncReadpathFileSystem)
    assert fs.options.memory == "1MiB"


@pytest.mark.parametrize("batch_size", [None, 8])
def test_ranges_of_many_files_keep_the_limit_of_descriptors(tmp_path, batch_size):
    """A child with 190 free descriptors reads 600 files."""
    paths = [str(tmp_path / f"{nth}") for nth in range(600)]
    for nth, path in enumerate(paths):
        Path(path).write_bytes(b"%d" % nth * 100)
    expected = fsspec.filesystem("file").cat_ranges(paths, [1] * 600, [90] * 600)

    def read():
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        highest = max(int(number) for number in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 191, hard))
        fs = fsspec.filesystem("readpath", asynchronous=True, skip_instance_cache=True)
        found = asyncio.run(fs._cat_ranges(paths, 1, 90, batch_size=batch_size))
        return found == expected

    assert in_child(read)


def test_batch_size_is_the_number_of_files_open_at_once(tmp_path, monkeypatch):
    paths = [str(tmp_path / f"{nth}") for nth in range(40)]
    for path in paths:
        Path(path).write_bytes(b"12345")
    fs = fsspec.filesystem("readpath", asynchronous=True, skip_instance_cache=True)
    plain, opened = fs._opened, []

    async def open_slowly(path):
        opened.append(path)
        counts.append(len(opened))
        await asyncio.sleep(0.001)
        file = await plain(path)
        close = file.close
        return types.SimpleNamespace(
            size=file.size,
            areadat_many=file.areadat_many,
            close=lambda: (opened.remove(path), close()),
        )

    monkeypatch.setattr(fs, "_opened", open_slowly)
    # The last row has the setting of fsspec for all file systems.
    for options, count in (({"batch_size": 8}, 8), ({"batch_size": -1}, 40), ({}, 5)):
        if not options:
            monkeypatch.setitem(fsspec.config.conf, "gather_batch_size", 5)
        counts = []
        assert asyncio.run(fs._cat_ranges(paths, 1, 3, **options)) == [b"23"] * 40
        assert max(counts) == count


@pytest.mark.parametrize("options", [{"depth": 7}, {"backend": "threads"}, {"memory": "1MiB"}])
def test_options_of_local_files_are_those_of_the_blocking_file_system(path, options):
    """Both file systems show the options of their read path, except for the kept files."""
    def shown(read_path):
        return re.sub("keep_files=[0-9]+", "", repr(read_path))

    fs = fsspec.filesystem("readpath", asynchronous=True, skip_instance_cache=True, **options)
    assert asyncio.run(fs._cat_file(str(path), 5, 105)) == DATA[5:105]
    blocking = fsspec.filesystem("readpath", skip_instance_cache=True, **options)
    assert shown(fs._own) == shown(blocking.own)


class Listed(fsspec.asyn.AsyncFileSystem):
    """A storage with cached listings, like those of s3fs and gcsfs."""

    cachable = False
    names = ("one",)

    async def _ls(self, path, detail=True, **options):
        path = self._strip_protocol(path)
        if path not in self.dircache:
            self.dircache[path] = [
                {"name": f"{path}/{name}", "size": 0, "type": "file"} for name in self.names
            ]
        return self.dircache[path]

    def invalidate_cache(self, path=None):
        if path is None:
            self.dircache.clear()
        else:
            self.dircache.pop(self._strip_protocol(path), None)


@pytest.mark.parametrize(("path", "counts"), [(None, [2, 2]), ("readpath::/a", [2, 1])])
def test_listings_are_current_after_invalidation(path, counts):
    """Of two folders, the other one keeps its listing if one is named."""
    async def count(fs):
        return [len(await fs._ls(folder)) for folder in ("/a", "/b")]

    async def use():
        below = Listed(asynchronous=True)
        fs = fsspec.filesystem("readpath", fs=below, asynchronous=True, skip_instance_cache=True)
        assert await count(fs) == [1, 1]
        below.names = ("one", "two")
        assert await count(fs) == [1, 1]
        fs.invalidate_cache(path)
        assert await count(fs) == counts

    asyncio.run(use())
