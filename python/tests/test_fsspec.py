"""Reads through fsspec: the target's bytes, with fewer and larger fetches."""

import asyncio
import contextlib
import gc
import gzip
import json
import pickle
import random
import sys
import tarfile
import threading
import zipfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import readpath
from readpath.reader import Options, Reader, on_threads

fsspec = pytest.importorskip("fsspec")
from fsspec.tests import abstract  # noqa: E402

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
import delayed_store  # noqa: E402

from readpath.filesystem import ReadpathFile, ReadpathFileSystem, _path_of  # noqa: E402

DATA = random.Random(3).randbytes(4_000_003)
SMALL = {"memory": "1MiB", "readahead": "ondemand,read_ahead_kb=256", "request": "128KiB"}


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class", params=["local", "memory"])
    def fs(self, request):
        options = {"auto_mkdir": True} if request.param == "local" else {}
        below = fsspec.filesystem(request.param, **options)
        return ReadpathFileSystem(fs=below, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self, tmpdir):
        return str(tmpdir)

    @pytest.fixture
    def fs_sanitize_path(self):
        from fsspec.implementations.local import make_path_posix

        return make_path_posix


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("fsspec") / "data.bin"
    path.write_bytes(DATA)
    return path


@pytest.fixture(scope="module")
def url(path):
    with delayed_store.running(path, 1) as url:
        yield url


@pytest.fixture
def memory():
    """A file in fsspec's memory."""
    fsspec.filesystem("memory").pipe("/folder/data.bin", DATA)
    yield "readpath::memory://folder/data.bin"
    fsspec.filesystem("memory").rm("/folder", recursive=True)


def test_chained_url_opens_every_underlying_storage(url, memory, path):
    for name in (f"readpath::{url}", memory, f"readpath::file://{path}", f"readpath://{path}"):
        with fsspec.open(name) as file:
            assert file.read(10) == DATA[:10], name
            file.seek(-7, 2)
            assert file.read() == DATA[-7:], name
            assert isinstance(file, ReadpathFile | readpath.File)
    with readpath.open(url) as file:
        assert isinstance(file, readpath.File)
        assert file.readat(1_000_000, 50) == DATA[1_000_000:1_000_050]
    with readpath.open(url, client="fsspec") as file:
        assert isinstance(file, ReadpathFile)
        assert file.readat(1_000_000, 50) == DATA[1_000_000:1_000_050]


def test_options_reach_the_reader_and_are_validated(url):
    with fsspec.open(f"readpath::{url}", readpath={"readahead": "none"}) as file:
        file.read(1000)
        assert file.reader.counters()["fetched_bytes"] == 4096
    with pytest.raises(ValueError, match="there is no readahead policy `psychic`"):
        fsspec.open(f"readpath::{url}", readpath={"readahead": "psychic"}).open()
    with pytest.raises(ValueError, match="at least 64KiB"):
        fsspec.open(f"readpath::{url}", readpath={"memory": "4KiB"}).open()


def test_missing_files_raise_file_not_found(url, path):
    for name in (f"readpath::{url}x", "readpath::memory://none", f"readpath://{path}x"):
        with pytest.raises(FileNotFoundError):
            fsspec.open(name).open()
    with pytest.raises(IsADirectoryError):
        fsspec.open(f"readpath://{path.parent}").open()


@pytest.mark.parametrize("cache", ["filesystem", "cache_type"])
def test_random_and_sequential_reads_return_the_files_bytes(url, cache):
    draw = random.Random(5)
    with fsspec.filesystem("http").open(url, cache_type="readpath", cache_options=SMALL) as file:
        if cache == "filesystem":
            file = fsspec.open(f"readpath::{url}", readpath=SMALL).open()
        for _ in range(100):
            offset, size = draw.randrange(len(DATA) + 10), draw.randrange(200_000)
            file.seek(offset)
            assert file.read(size) == DATA[offset : offset + size]
        file.seek(0)
        read = [piece := file.read(65_536)]
        while piece:
            read.append(piece := file.read(65_536))
        assert b"".join(read) == DATA
        file.close()


def test_stream_is_prefetched_in_large_requests(url):
    with fsspec.open(f"readpath::{url}", readpath=SMALL) as file:
        while file.read(4096):
            pass
        counters = file.reader.counters()
    # Windows double from 16 KiB to 256 KiB, in requests of at most 128 KiB; nothing twice.
    assert counters["fetched_bytes"] <= len(DATA) + 4096
    assert counters["fetches"] < 60
    assert counters["depth_max"] >= 2


def test_ranges_of_one_call_are_fetched_concurrently():
    """A fetch that waits for all others to have begun: one by one would never end."""
    barrier = threading.Barrier(32, timeout=20)

    def fetch(start, end):
        barrier.wait()
        return DATA[start:end]

    options = Options(depth=32, readahead="none")
    with ThreadPoolExecutor(32) as threads:
        reader = Reader(on_threads(fetch, threads), len(DATA), options)
        asked = [(nth * 100_000, 5_000) for nth in range(32)]
        got = reader.read_many(asked)
    assert got == [DATA[offset : offset + size] for offset, size in asked]


def test_read_larger_than_memory_bypasses_the_cache():
    pieces = []

    def fetch(start, end):
        pieces.append((start, end))
        return DATA[start:end]

    with ThreadPoolExecutor(4) as threads:
        reader = Reader(on_threads(fetch, threads), len(DATA), Options("64KiB", request="64KiB"))
        assert reader.read(3, 2_000_000) == DATA[3:2_000_003]
        buffer = bytearray(5_000_000)
        assert reader.read_into(0, buffer) == len(DATA)
    assert buffer[: len(DATA)] == DATA
    # Requests reach the storage in pieces of its maximum size.
    assert pieces[0] == (0, 65_536) and max(end - start for start, end in pieces) == 65_536


def test_reads_can_be_awaited(url):
    asked = [(nth * 40_000, 1_000) for nth in range(100)]

    async def read(file):
        return await file.areadat_many(asked), await file.areadat(len(DATA) - 3, 10)

    with fsspec.open(f"readpath::{url}") as file:
        many, end = asyncio.run(read(file))
    assert many == [DATA[offset : offset + size] for offset, size in asked]
    assert end == DATA[-3:]


def failing(fail_at):
    def fetch(start, end):
        future = Future()
        if start <= fail_at < end:
            future.set_exception(ConnectionResetError("gone"))
        else:
            future.set_result(DATA[start:end])
        return future

    return Reader(fetch, len(DATA), Options(memory="1MiB", request="64KiB"))


def test_fetch_error_fails_only_the_reads_that_need_the_bytes():
    reader = failing(500_000)
    for offset in range(0, 450_000, 50_000):  # a stream that reads ahead into the bad place
        assert reader.read(offset, 50_000) == DATA[offset : offset + 50_000]
    with pytest.raises(ConnectionResetError, match="gone"):
        reader.read(499_000, 2_000)
    assert reader.read(600_000, 10) == DATA[600_000:600_010]
    assert reader.read(0, 10) == DATA[:10]


def test_fetch_error_among_many_reads_leaves_the_reader_usable():
    reader = failing(500_000)
    with pytest.raises(ConnectionResetError):
        reader.read_many([(nth * 10_000, 100) for nth in range(100)])
    assert reader.read(490_000, 100) == DATA[490_000:490_100]
    for _ in range(300):  # with pages still held, a megabyte would not last
        assert len(reader.read(1_000_000, 300_000)) == 300_000


def test_fetch_with_a_wrong_length_raises_an_error():
    def reader(change):
        def fetch(start, end):
            future = Future()
            future.set_result(change(DATA[start:end]))
            return future

        return Reader(fetch, len(DATA), Options(readahead="none"))

    with pytest.raises(OSError, match="has become shorter"):
        reader(lambda data: data[:100]).read(0, 200)
    with pytest.raises(ValueError, match="0 to 4096 were asked for, and 4097 bytes came"):
        reader(lambda data: data + b"!").read(0, 200)


def test_close_wakes_waiting_readers_with_an_error():
    reader = Reader(lambda start, end: Future(), len(DATA))
    threading.Timer(0.1, reader.close).start()
    with pytest.raises(ValueError, match="closed file"):
        reader.read(0, 10)
    with pytest.raises(ValueError, match="closed file"):
        reader.read(0, 10)


def test_a_cache_and_a_file_system_can_be_sent_to_another_process(url):
    cached = fsspec.filesystem("http").open(url, cache_type="readpath")
    again = pickle.loads(pickle.dumps(cached))
    again.seek(100)
    assert again.read(10) == DATA[100:110]
    system = pickle.loads(pickle.dumps(fsspec.filesystem("readpath", target_protocol="http")))
    with system.open(url) as file:
        assert file.read(4) == DATA[:4]


def test_pandas_and_pyarrow_read_the_same_data(tmp_path):
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    import pyarrow.parquet

    table = pyarrow.table({"number": range(100_000), "text": [str(n) for n in range(100_000)]})
    pyarrow.parquet.write_table(table, tmp_path / "table.parquet", row_group_size=10_000)
    with delayed_store.running(tmp_path / "table.parquet", 1) as url:
        got = pandas.read_parquet(f"readpath::{url}", columns=["number"])
        assert got["number"].sum() == sum(range(100_000))
        with fsspec.open(f"readpath::{url}") as file:
            assert pyarrow.parquet.ParquetFile(file).read_row_group(7).equals(table[70_000:80_000])


CHAINS = ["{}", "readpath::{}", "simplecache::readpath::{}", "readpath::simplecache::{}"]
CHAINS += ["filecache::readpath::{}", "blockcache::readpath::{}"]
CHAINS += ["readpath::filecache::{}", "readpath::blockcache::{}"]


@pytest.fixture(scope="module", params=["file", "http"])
def archives(request, tmp_path_factory):
    """URLs of a text alone, compressed, and in archives."""
    folder = tmp_path_factory.mktemp("archives")
    (folder / "text.csv").write_bytes(TEXT)
    with gzip.open(folder / "text.csv.gz", "wb") as file:
        file.write(TEXT)
    with zipfile.ZipFile(folder / "text.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "text.csv", "text.csv")
    with tarfile.open(folder / "text.tar", "w") as archive:
        archive.add(folder / "text.csv", "text.csv")
    with contextlib.ExitStack() as stack:

        def url_of(name):
            if request.param == "file":
                return f"file://{folder / name}"
            return stack.enter_context(delayed_store.running(folder / name, 1))

        yield {ending: url_of(f"text.{ending}") for ending in ("csv", "csv.gz", "zip", "tar")}


TEXT = b"number,text\n" + b"".join(b"%d,line %d\n" % (nth, nth) for nth in range(5_000))


@pytest.mark.parametrize("chain", CHAINS)
def test_chained_caches_archives_and_compression_return_the_bytes(archives, chain, tmp_path):
    pandas = pytest.importorskip("pandas")
    below = {name: chain.format(url) for name, url in archives.items()}
    options = {name: {"cache_storage": str(tmp_path / name)} for name in ("filecache", "blockcache")}
    options = {name: kept for name, kept in options.items() if name in chain}
    urls = {below["csv"]: None, below["csv.gz"]: "gzip"}
    for archive in ("zip", "tar"):
        inner = f"{archive}://text.csv::{below[archive]}"
        urls |= {inner: None, f"readpath::{inner}": None}
    for url, compression in urls.items():
        with fsspec.open(url, compression=compression, **options) as file:
            assert file.read() == TEXT, url
        opened = fsspec.open(url, compression=compression, **options)
        file = opened.open()
        assert file.read() == TEXT, url
        opened.close()
        frame = pandas.read_csv(url, compression=compression, storage_options=dict(options))
        assert frame["number"].sum() == sum(range(5_000)), url


def test_file_keeps_its_underlying_file_system_alive(archives):
    """Also where nothing else does: an archive closes what it reads when it goes."""
    for url in (f"zip://text.csv::{archives['zip']}", f"tar://text.csv::{archives['tar']}"):
        for chained in (url, url.replace("::", "::readpath::")):
            file = readpath.open(chained, skip_instance_cache=True)
            gc.collect()
            assert file.read() == TEXT
            file.close()
    below = fsspec.filesystem("zip", fo=archives["zip"])
    below.info = lambda path: {"name": path, "size": None, "type": "file"}
    file = ReadpathFileSystem(fs=below, skip_instance_cache=True).open("text.csv")
    del below
    gc.collect()
    assert file.read() == TEXT


@pytest.mark.parametrize("prefix", ["", "readpath::"])
def test_parts_of_archives_at_plain_paths_are_read(tmp_path, monkeypatch, prefix):
    with zipfile.ZipFile(tmp_path / "texts.zip", "w") as archive:
        archive.writestr("text.csv", TEXT)
    (tmp_path / "text.csv").write_bytes(TEXT)
    with tarfile.open(tmp_path / "texts.tar", "w") as archive:
        archive.add(tmp_path / "text.csv", "text.csv")
    monkeypatch.chdir(tmp_path)
    for kind in ("zip", "tar"):
        for place in (tmp_path / f"texts.{kind}", f"texts.{kind}"):
            with readpath.open(f"{prefix}{kind}://text.csv::{place}") as file:
                assert file.read() == TEXT
    # Two colons in the name of a part, whose archive is an option.
    with zipfile.ZipFile(tmp_path / "odd.zip", "w") as archive:
        archive.writestr("a::b", TEXT[:9])
    with readpath.open(f"{prefix}zip://a::b", zip={"fo": str(tmp_path / "odd.zip")}) as file:
        assert file.read() == TEXT[:9]


def test_opened_compressed_file_stays_open(archives):
    file = readpath.open(archives["csv.gz"], compression="gzip", skip_instance_cache=True)
    gc.collect()
    assert file.read() == TEXT


def test_reference_file_system_reads_the_referenced_ranges(archives, tmp_path):
    references = {"version": 1, "refs": {"part": [archives["csv"], 12, 100], "whole": [archives["csv"]]}}
    (tmp_path / "references.json").write_text(json.dumps(references))
    protocol = archives["csv"].split(":")[0]
    for chain in ("", "readpath::"):
        with fsspec.open(
            f"{chain}reference://part",
            reference={"fo": f"readpath::file://{tmp_path}/references.json", "remote_protocol": protocol},
        ) as file:
            assert file.read() == TEXT[12:112]


def test_unknown_options_are_refused_by_name(url, archives):
    system = fsspec.filesystem("readpath", target_protocol="http")
    wrong = [
        lambda: fsspec.filesystem("readpath", memry="1MiB"),
        lambda: fsspec.open(f"readpath::{url}", memry="1MiB"),
        lambda: fsspec.open(f"readpath::{url}", readpath={"memry": "1MiB"}),
        lambda: readpath.open(url, memry="1MiB"),
        lambda: fsspec.filesystem("nfs", memry="1MiB"),
        lambda: fsspec.filesystem("http").open(
            url, cache_type="readpath", cache_options={"memry": "1MiB"}
        ),
    ]
    for use in wrong:
        with pytest.raises(TypeError, match="no option `memry`; did you mean `memory`.* depth, "):
            use()
    with pytest.raises(TypeError, match="`anon`; There are: .*under its protocol's name"):
        fsspec.open("readpath::memory://key", anon=True)
    with pytest.raises(TypeError, match="a file of readpath has no option `memory`"):
        system.open(url, memory="1MiB")
    # Options of fsspec itself, and options of the storage.
    fsspec.filesystem("readpath", use_listings_cache=True, skip_instance_cache=True)
    with fsspec.open(f"readpath::{url}", http={"block_size": 1 << 20}, memory="1MiB") as file:
        assert file.read(4) == DATA[:4]
    with system.open(url, block_size=4096, cache_type="readahead") as file:
        assert file.read(4) == DATA[:4]


KEYWORD_CALLS = {
    "info": lambda fs, url, local: fs.info(path=url("/kept/one")),
    "ls": lambda fs, url, local: fs.ls(path=url("/kept"), detail=False),
    "find": lambda fs, url, local: fs.find(path=url("/kept")),
    "exists": lambda fs, url, local: fs.exists(path=url("/kept/one")),
    "cat_file": lambda fs, url, local: fs.cat_file(path=url("/kept/one"), start=1),
    "cat_ranges": lambda fs, url, local: fs.cat_ranges(paths=[url("/kept/one")], starts=[1], ends=[3]),
    "cat_ranges mixed": lambda fs, url, local: fs.cat_ranges([url("/kept/two")], starts=[0], ends=[9]),
    "sizes": lambda fs, url, local: fs.sizes(paths=[url("/kept/one"), url("/kept/two")]),
    "unstrip_protocol": lambda fs, url, local: fs.unstrip_protocol(name=url("/kept/one")),
    "get_file": lambda fs, url, local: fs.get_file(rpath=url("/kept/one"), lpath=local),
    "get_file mixed": lambda fs, url, local: fs.get_file(url("/kept/one"), lpath=local),
    "put_file": lambda fs, url, local: fs.put_file(lpath=local, rpath=url("/put")),
    "cp_file": lambda fs, url, local: fs.cp_file(path1=url("/kept/one"), path2=url("/copied")),
    "mv": lambda fs, url, local: fs.mv(path1=url("/put"), path2=url("/moved")),
    "pipe_file": lambda fs, url, local: fs.pipe_file(path=url("/piped"), value=b"piped"),
    "mkdir": lambda fs, url, local: fs.mkdir(path=url("/made")),
    "rm_file": lambda fs, url, local: fs.rm_file(path=url("/piped")),
    "walk": lambda fs, url, local: list(fs.walk(path=url("/kept"))),
    "expand_path": lambda fs, url, local: sorted(fs.expand_path(path=url("/kept"), recursive=True)),
    "invalidate_cache": lambda fs, url, local: fs.invalidate_cache(path=url("/kept")),
    "invalidate_cache all": lambda fs, url, local: fs.invalidate_cache(),
    "ls without a path": lambda fs, url, local: fs.ls(),
    "info of another word": lambda fs, url, local: fs.info(name=url("/kept/one")),
}


def test_forwarded_methods_take_keywords_as_the_file_system_below(tmp_path):
    memory = fsspec.filesystem("memory")
    found = {}
    for prefix, fs in (("memory:/", memory), ("readpath::memory:/", fsspec.filesystem("readpath", target_protocol="memory"))):
        memory.rm("/", recursive=True)
        memory.pipe({"/kept/one": b"first", "/kept/two": b"second"})
        local = tmp_path / "local"
        local.write_bytes(b"here")

        def result_of(call):
            try:
                result = call(fs, lambda path: prefix + path, str(local))
            except TypeError:
                return TypeError
            # The times of creation differ.
            if isinstance(result, dict):
                result.pop("created", None)
            return result, local.read_bytes(), {name: memory.cat(name) for name in memory.find("/")}

        found[prefix] = {name: result_of(call) for name, call in KEYWORD_CALLS.items()}
        memory.rm("/", recursive=True)
    expected, forwarded = found.values()
    # The listing of the root without a path is readpath's own.
    assert expected.pop("ls without a path") is TypeError and len(forwarded.pop("ls without a path")[0]) > 0
    assert forwarded == expected


def test_all_listings_are_dropped_without_a_path():
    dropped = []

    class Noting(fsspec.AbstractFileSystem):
        cachable = False

        def invalidate_cache(self, path=None):
            dropped.append(path)

    ReadpathFileSystem(fs=Noting(), skip_instance_cache=True).invalidate_cache()
    assert dropped == [None]


def test_local_files_without_a_given_depth_have_the_one_of_a_read_path() -> None:
    depth = list(readpath.ReadPath.NAMES).index("depth")
    assert _path_of(Options())._options[depth] == readpath.ReadPath()._options[depth]
    assert _path_of(Options(depth=3))._options[depth] == 3
