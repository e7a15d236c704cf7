"""Files on an NFS server: a real one, of another project, on loopback."""

import asyncio
import contextlib
import errno
import os
import random
import signal
import socket
import threading
import time

import pytest

import readpath

DATA = random.Random(11).randbytes(3_000_001)


@pytest.fixture(scope="module")
def url(nfs_server, tmp_path_factory):
    path = tmp_path_factory.mktemp("nfs") / "file"
    path.write_bytes(DATA)
    with nfs_server(path) as url:
        yield url


def test_nfs_file_reads_like_a_local_file(url):
    with readpath.open(url, memory="1MiB") as file:
        assert (file.size, file.read(10), file.tell()) == (len(DATA), DATA[:10], 10)
        file.seek(-5, 2)
        assert file.read() == DATA[-5:]
        draw = random.Random(1)
        asked = [(draw.randrange(len(DATA)), draw.randrange(200_000)) for _ in range(50)]
        expected = [DATA[offset : offset + size] for offset, size in asked]
        assert file.readat_many(asked) == expected
        assert asyncio.run(file.areadat_many(asked)) == expected
        buffer = bytearray(1000)
        assert file.readinto_at(2_000_000, buffer) == 1000 and buffer == DATA[2_000_000:2_001_000]
        assert file.stats()["bytes"] > 0
        # Its read path is its own, and has asked the server.
        assert file.path_stats()["device_bytes"] > 0
    with readpath.open(f"{url}?rsize=8192&slots=2") as file:
        assert file.readat(1, 100_000) == DATA[1:100_001]


def test_nfs_errors_are_built_in_exceptions(url):
    base = url.removesuffix("file")
    for name, kind in [("none", FileNotFoundError), ("folder", IsADirectoryError), ("secret", PermissionError)]:
        with pytest.raises(kind) as raised:
            readpath.open(base + name)
        assert raised.value.filename == base + name, raised.value
    with readpath.open(base + "to-file") as file:
        assert file.readat(5, 10) == DATA[5:15]
    with pytest.raises(OSError, match="symbolic links") as raised:
        readpath.open(base + "loop")
    assert raised.value.errno == errno.ELOOP
    with readpath.open(base + "empty") as file:
        assert file.read() == b""
    with pytest.raises(ValueError, match="a multiple of 4096 bytes"):
        readpath.open(f"{url}?rsize=5000")
    with pytest.raises(ValueError, match="names no file"):
        readpath.open("nfs://host")
    with pytest.raises(ConnectionRefusedError, match="check that an NFS server listens there"):
        readpath.open("nfs://127.0.0.1:1/data/file")


def test_forked_child_reads_over_its_own_connection(url):
    with readpath.open(url) as file:
        assert file.readat(0, 10) == DATA[:10]
        child = os.fork()
        if child == 0:
            os._exit(0 if file.readat(1_000_000, 10) == DATA[1_000_000:1_000_010] else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert file.readat(2_000_000, 10) == DATA[2_000_000:2_000_010]


def test_fsspec_reads_nfs_urls(url):
    fsspec = pytest.importorskip("fsspec")
    for name in (url, f"readpath::{url}"):
        with fsspec.open(name) as file:
            assert isinstance(file, readpath.File) and file.read(7) == DATA[:7], name
    fs, path = fsspec.core.url_to_fs(url)
    assert fs.info(path) == {"name": url, "size": len(DATA), "type": "file"}
    assert fs.cat_file(path, 5, 12) == DATA[5:12] and fs.ls(path, detail=False) == [url]
    assert fs.cat_ranges([path, path], [0, 9], [4, 12]) == [DATA[:4], DATA[9:12]]
    assert not fs.exists(path + "x") and fs.isdir(path.removesuffix("file") + "folder")
    with pytest.raises(NotImplementedError, match="can't be listed"):
        fs.ls(path.removesuffix("file") + "folder")
    with pytest.raises(OSError, match="opened for reading"):
        fs.open(path, "wb")


@contextlib.contextmanager
def silent_server():
    """A server that accepts connections and answers no call; gives the URL of a file there."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"nfs://127.0.0.1:{listener.getsockname()[1]}/data/file"


def seconds_until_interrupt(work):
    """Sends SIGINT after 0.3 s, and returns the time until the KeyboardInterrupt of `work`."""
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        return time.monotonic() - begin
    finally:
        timer.join()


def test_opening_at_a_silent_server_is_interrupted():
    with silent_server() as url:
        assert seconds_until_interrupt(lambda: readpath.open(f"{url}?timeout=10s&repeat=500ms")) < 2


@pytest.mark.parametrize("options", [{"memory": "8MiB", "readahead": "none"}, {"page_cache": "none"}])
def test_calls_of_a_file_are_interrupted_when_its_server_stops(nfs_server, tmp_path, options):
    (tmp_path / "file").write_bytes(DATA)
    with nfs_server(tmp_path / "file") as url:
        file = readpath.open(f"{url}?timeout=10s&repeat=500ms", **options)
        assert file.readat(0, 10) == DATA[:10]
        server = nfs_server.processes[-1]
        os.kill(server.pid, signal.SIGSTOP)
        try:
            for work in (
                lambda: file.readat(1_000_000, 100),
                lambda: file.readinto_at(1_500_000, bytearray(100)),
                lambda: file.readat_many([(2_000_000, 100), (2_500_000, 100)]),
                file.revalidate,
                lambda: readpath.open(f"{url}?timeout=10s"),
            ):
                assert seconds_until_interrupt(work) < 2
        finally:
            os.kill(server.pid, signal.SIGCONT)
        # The file stays usable.
        assert file.readat(1_000_000, 100) == DATA[1_000_000:1_000_100]
        file.close()


def test_a_timeout_of_the_opening_has_the_url_as_its_filename():
    with silent_server() as url:
        name = f"{url}?timeout=1s&repeat=500ms"
        with pytest.raises(TimeoutError, match="did not answer in time") as raised:
            readpath.open(name)
        assert (raised.value.errno, raised.value.filename) == (errno.ETIMEDOUT, name)
