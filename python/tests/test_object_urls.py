"""URLs of objects by the package's own clients: bytes, requests, errors and options."""

import asyncio
import errno
import http.server
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import readpath
from test_forks_of_urls import status_of_child
from test_versions import NEW, OLD, SIZE, Handler, served

REQUEST = 64 << 10
"""Size of the requests of `SMALL`, and bytes that the opening fetches."""

SMALL = {"memory": "1MiB", "readahead": "none", "request": "64KiB"}


def ranges(store):
    """First and last byte of each request, in their order."""
    return [tuple(map(int, asked["range"].removeprefix("bytes=").split("-"))) for asked in store.asked]


def test_file_of_a_url_has_the_interface_of_local_files():
    with served(("strong",)) as (store, url):
        with readpath.open(url) as file:
            assert isinstance(file, readpath.File) and file.size == SIZE and file.name == url
            assert file.read(10) == OLD[:10] and file.tell() == 10
            assert file.seek(-5, os.SEEK_END) == SIZE - 5 and file.read() == OLD[-5:]
            assert file.readat(SIZE - 3, 100) == OLD[-3:] and file.readat(SIZE + 9, 1) == b""
            assert file.readat_many([(5, 5), (900_000, 7)]) == [OLD[5:10], OLD[900_000:900_007]]
            buffer = bytearray(8)
            assert file.readinto_at(123_456, buffer) == 8 and buffer == OLD[123_456:123_464]
            assert list(file.readinto_many([1, 700_001], buffer)) == [4, 4]
            assert buffer == OLD[1:5] + OLD[700_001:700_005]
            file.seek(0)
            assert file.readline() == OLD[: OLD.index(b"\n") + 1]
            assert asyncio.run(file.areadat(500_000, 99)) == OLD[500_000:500_099]
            file.prefetch(0, SIZE)
            assert file.readat(0, SIZE) == OLD
        with pytest.raises(ValueError, match="closed"):
            file.read(1)


def test_each_byte_is_requested_once_and_the_first_ones_with_the_opening():
    with served(("strong",)) as (store, url):
        with readpath.open(url, **SMALL | {"memory": "4MiB"}) as file:
            assert ranges(store) == [(0, REQUEST - 1)]
            assert file.read() == OLD and file.readat(0, SIZE) == OLD
        asked = sorted(set(ranges(store)))
        assert sum(min(last, SIZE - 1) - first + 1 for first, last in ranges(store)) == SIZE
        assert all(last - first < REQUEST for first, last in asked)


@pytest.mark.parametrize("client", ["readpath", "fsspec"])
def test_close_ranges_of_one_call_leave_together(client):
    """Gaps of 8 KB cost less than a request. 20 ranges were 18 to 20 requests with each gap."""
    with served(("strong",)) as (store, url), readpath.open(url, client=client, readahead="none") as file:
        asked = [(100_000 + nth * 7 % 20 * 12_000, 4000) for nth in range(20)]
        opening = len(store.asked)
        assert file.readat_many(asked) == [OLD[at : at + size] for at, size in asked]
        assert len(store.asked) - opening <= 12


class Counted(Handler):
    """A server that counts its connections."""

    connections = 0

    def setup(self):
        super().setup()
        type(self).connections += 1


def test_files_of_a_server_share_its_connections():
    with served(("strong",), Counted) as (store, url):
        store.data = OLD[:5000]
        for options in ({}, {"depth": 4, "scheduler": "noop"}):
            Counted.connections = 0
            for _ in range(20):
                with readpath.open(url, **options) as file:
                    assert file.read() == OLD[:5000]
            assert Counted.connections <= 2
        assert len(store.asked) == 40
        # Other options are another client.
        readpath.open(url, storage_options={"timeout": "7s"}).close()
        assert len(store.asked) == 41


def test_small_object_takes_one_request_and_an_empty_one_two():
    for data, count in [(OLD[:REQUEST], 1), (b"x", 1), (b"", 2)]:
        with served(("strong",)) as (store, url):
            store.data = data
            with readpath.open(url) as file:
                assert file.read() == data and len(store.asked) == count


def test_threads_a_fork_and_a_pickle_read_the_same_object():
    with served(("strong",)) as (store, url):
        with readpath.open(url, **SMALL) as file:
            results = {}

            def read(nth):
                results[nth] = all(
                    file.readat(offset, 3000) == OLD[offset : offset + 3000]
                    for offset in range(nth * 1000, SIZE, 80_000)
                )

            threads = [threading.Thread(target=read, args=(nth,)) for nth in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert results == dict.fromkeys(range(8), True)
            assert status_of_child(lambda: file.readat(400_000, 99) == OLD[400_000:400_099]) == 0
            file.seek(77)
            with pickle.loads(pickle.dumps(file)) as other:
                assert other.tell() == 77 and other.read(9) == OLD[77:86]


def test_object_of_s3_and_azure_is_read_with_storage_options():
    with served(("strong", "modified")) as (store, url):
        address = url.removesuffix("/data")
        s3 = {"aws_endpoint": address, "aws_skip_signature": "true", "aws_allow_http": "true"}
        azure = {
            "azure_storage_endpoint": address,
            "azure_storage_account_name": "account",
            "azure_skip_signature": "true",
            "azure_allow_http": "true",
        }
        for name, options in [("s3://bucket/data", s3), ("az://container/data", azure)]:
            with readpath.open(name, storage_options=options) as file:
                assert file.read() == OLD, name
        path = readpath.ReadPath(storage_options=s3 | {"aws_session_token": "hidden"})
        assert "hidden" not in repr(path) and path.open("s3://bucket/data").read(3) == OLD[:3]


def test_options_of_the_environment_have_the_names_of_their_clients(monkeypatch):
    """A variable that a client also knows without its beginning belongs to other programs."""
    with served(("strong",)) as (store, url):
        for name in ("ENDPOINT", "TIMEOUT", "REGION", "TOKEN", "PROXY_URL"):
            monkeypatch.setenv(name, "no client's")
        monkeypatch.setenv("AWS_ENDPOINT_URL", url.removesuffix("/data"))
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        assert readpath.open(url).read(5) == readpath.open("s3://bucket/data").read(5) == OLD[:5]


def test_client_of_other_options_is_not_taken_after_a_change_of_the_environment(monkeypatch):
    """An option replaces a variable of its name. Both values change places between two openings."""
    options = {"AWS_SKIP_SIGNATURE": "true", "AWS_ALLOW_HTTP": "true"}
    with served(("strong",)) as (first, first_url), served(("strong",)) as (second, second_url):
        addresses = [url.removesuffix("/data") for url in (first_url, second_url)]
        for store, (option, variable) in [(first, addresses), (second, addresses[::-1])]:
            monkeypatch.setenv("AWS_ENDPOINT_URL", variable)
            first.asked.clear()
            second.asked.clear()
            storage_options = options | {"AWS_ENDPOINT_URL": option}
            with readpath.open("s3://bucket/data", storage_options=storage_options) as file:
                assert file.read(5) == OLD[:5]
            assert [len(first.asked) > 0, len(second.asked) > 0] == [store is first, store is second]


def test_disk_tier_serves_the_next_process(tmp_path):
    program = (
        "import readpath, sys\n"
        "with readpath.open(sys.argv[1], disk=sys.argv[2], disk_size='64MiB', memory='1MiB') as file:\n"
        "    print(sum(file.readat(offset, 4096)[0] for offset in range(0, file.size, 50_000)))\n"
        # Blocks are written by threads, and the read of a block waits for none.
        "    import time; time.sleep(0.5)\n"
    )
    with served(("strong",)) as (store, url):
        expected = f"{sum(OLD[offset] for offset in range(0, SIZE, 50_000))}\n"
        counts = []
        for _ in range(2):
            store.asked.clear()
            arguments = [sys.executable, "-c", program, url, tmp_path / "tier"]
            assert subprocess.run(arguments, stdout=-1, check=True, text=True).stdout == expected
            counts.append(len(store.asked))
        assert counts[1] < counts[0] / 2, counts


def test_refused_disk_tier_has_the_error_of_its_cause(tmp_path):
    tier, link, file = tmp_path / "tier", tmp_path / "link", tmp_path / "file"
    tier.mkdir(mode=0o700)
    link.symlink_to(tier)
    file.touch()
    with served(("strong",)) as (store, url):

        def refusal(folder, size="64MiB"):
            with pytest.raises((OSError, ValueError)) as raised:
                readpath.open(url, disk=folder, disk_size=size)
            return raised.value

        # The numbers of open(2) with `O_DIRECTORY`, and of a missing right.
        assert refusal(file).errno == errno.ENOTDIR and refusal(link).errno == errno.ENOTDIR
        tier.chmod(0o755)
        error = refusal(tier)
        assert isinstance(error, PermissionError) and error.errno == errno.EACCES
        tier.chmod(0o700)
        if os.geteuid() == 0:
            os.chown(tier, 1, -1)
            error = refusal(tier)
            assert isinstance(error, PermissionError) and error.errno == errno.EPERM
            os.chown(tier, 0, -1)
        # An argument out of its range.
        assert type(refusal(tier, size="1000KiB")) is ValueError


def test_neither_fsspec_nor_an_event_loop_is_imported():
    program = (
        "import readpath, sys\n"
        "assert readpath.open(sys.argv[1]).read(3) == bytes(map(int, sys.argv[2:]))\n"
        "print({'fsspec', 'aiohttp', 'requests'} & set(sys.modules))\n"
    )
    with served(("strong",)) as (store, url):
        arguments = [sys.executable, "-c", program, url, *map(str, OLD[:3])]
        assert subprocess.run(arguments, stdout=-1, check=True, text=True).stdout == "set()\n"


def test_urls_and_options_for_fsspec_open_through_it():
    with served(("strong",)) as (store, url):
        for opened in (
            readpath.open(url, client="fsspec"),
            readpath.open(f"{url}?signature=1"),
            readpath.open(url, http={"block_size": 1000}),
            readpath.open(url, keep_files=1, http={}),
        ):
            with opened as file:
                assert type(file).__name__ == "ReadpathFile" and file.read(9) == OLD[:9]


class Folder(Handler):
    """A server of several objects, by the path of the request line."""

    def answer(self):
        self.server.store.lines.append(self.path)
        self.server.store.data = self.server.store.objects.get(self.path, b"another object")
        super().answer()


@pytest.fixture
def folder():
    """The store of a server of several objects, and its address."""
    with served(("strong",), Folder) as (store, url):
        store.lines, store.objects = [], {}
        yield store, url.removesuffix("/data")


@pytest.mark.parametrize(
    "path",
    [
        "/files/data%2Fa.bin", "/files/a%2Bb.bin", "/files/a%2fb%20c.bin", "/files/%41.bin", "/files/a%28b%29.bin",
        "/files/plain.bin", "/files/a+b.bin", "/files/a%20b.bin", "/files/a%25b.bin", "/files/%C3%A9.bin",
        "/files/a(b)=c@d,e;f.bin", "/files/a~b%2F%C3%A9.bin",
        # The client cannot send these.
        "/a%2F%2Fb", "/a%2F..%2Fb", "/%FF.bin", "/a%0Ab", "/a%00b",
    ],
)  # fmt: skip
def test_escapes_of_a_url_reach_the_server_as_they_are(folder, path):
    store, address = folder
    store.objects[path] = OLD
    with readpath.open(address + path) as file:
        assert file.read() == OLD
    assert set(store.lines) == {path}


@pytest.mark.parametrize(
    ("name", "path"),
    [("/é/a b.bin", "/%C3%A9/a%20b.bin"), ("/%c3%a9.bin", "/%C3%A9.bin"), ("/é/a b%2Fc.bin", "/%C3%A9/a%20b%2Fc.bin")],
)
def test_characters_that_no_url_has_are_escaped(folder, name, path):
    store, address = folder
    store.objects[path] = OLD
    with readpath.open(address + name) as file:
        assert file.read() == OLD
    assert set(store.lines) == {path}


@pytest.mark.parametrize("gives_ranges", [True, False])
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("/a/../b", "/b"), ("/a/./b", "/a/b"), ("/a/%2e%2e/b", "/b"), ("/a/%2E/b", "/a/b"), ("/a\\b", "/a/b"),
        ("/é/../a b", "/a%20b"), ("/a%2Fb/../c", "/c"),
    ],
)  # fmt: skip
def test_one_open_requests_one_object(folder, name, path, gives_ranges):
    """Dot segments and backslashes as in the URL standard, also through fsspec after a refusal."""
    store, address = folder
    store.gives_ranges = gives_ranges
    store.objects[path] = OLD
    with readpath.open(address + name) as file:
        assert (type(file).__name__ == "ReadpathFile") == (not gives_ranges)
        assert file.read() == OLD
    assert set(store.lines) == {path}


def test_escapes_that_the_client_cannot_send_are_an_error_with_a_remedy(folder):
    store, address = folder
    with pytest.raises(OSError, match="would request `/a/b`.*client='fsspec'") as caught:
        readpath.open(f"{address}/a%2Fb", client="readpath")
    assert caught.value.errno == errno.EOPNOTSUPP and not store.lines


def test_names_of_objects_in_stores_are_taken_literally(folder):
    """A key may contain escapes: `a%2Fb` is another object than `a/b`."""
    store, address = folder
    s3 = {"aws_endpoint": address, "aws_skip_signature": "true", "aws_allow_http": "true"}
    for key, path in [("a%2Fb", "/bucket/a%252Fb"), ("a/b", "/bucket/a/b"), ("a+b c", "/bucket/a%2Bb%20c"),
                      ("a%20b", "/bucket/a%2520b"), ("a%", "/bucket/a%25"), ("a#b?c", "/bucket/a%23b%3Fc")]:  # fmt: skip
        store.lines.clear()
        store.objects = {path: OLD}
        with readpath.open(f"s3://bucket/{key}", client="readpath", storage_options=s3) as file:
            assert file.read() == OLD and file.name == f"s3://bucket/{key}"
        assert set(store.lines) == {path}
    # Two colons, and marks of a query or a fragment, do not lead to fsspec, which would need s3fs.
    for key, path in [("a::b", "/bucket/a::b"), ("a?b", "/bucket/a%3Fb"), ("a#b", "/bucket/a%23b")]:
        store.objects = {path: OLD, path.replace("::", "%3A%3A"): OLD}
        with readpath.open(f"s3://bucket/{key}", storage_options=s3, retries=1) as file:
            assert file.read() == OLD
    for key in ("a/../b", "a "):
        with pytest.raises(OSError, match="would request.*client='fsspec'") as caught:
            readpath.open(f"s3://bucket/{key}", client="readpath", storage_options=s3)
        assert caught.value.errno == errno.EOPNOTSUPP


def test_url_with_an_empty_part_is_read_through_fsspec(monkeypatch):
    with served(("strong",)) as (store, url):
        empty = url.replace("/data", "//folder//data")
        with readpath.open(empty) as file:
            assert type(file).__name__ == "ReadpathFile" and file.read() == OLD
    for name in (empty, "s3://bucket/folder//x", "s3://bucket//lead"):
        with pytest.raises(OSError, match="part of its path is empty; open it with client='fsspec'") as caught:
            readpath.open(name, client="readpath")
        assert caught.value.errno == errno.EOPNOTSUPP and caught.value.filename == name

    # The error of the package's own client stays if fsspec has no file system for the URL.
    def missing(*arguments, **options):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("readpath.urls.open_url", missing)
    with pytest.raises(OSError, match="part of its path is empty"):
        readpath.open("s3://bucket/folder//x")


def test_address_of_version_6_is_read_by_the_own_client():
    with served(("strong",)) as (store, _):
        server = http.server.ThreadingHTTPServer.__new__(http.server.ThreadingHTTPServer)
        server.address_family = socket.AF_INET6
        try:
            server.__init__(("::1", 0), Handler)
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")
        server.store = store
        with server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            with readpath.open(f"http://[::1]:{server.server_port}/a::b", retries=3) as file:
                assert isinstance(file, readpath.File) and file.read() == OLD
            server.shutdown()


@pytest.mark.parametrize(
    "url",
    [
        "https://host/x?signed=1", "s3://bucket/x?versionId=abc", "gs://bucket/x#1234", "zip://a::https://host/x",
        "https://host/x::https://host/y", "s3://bucket/x::memory", "ftp://host/x",
    ],
)  # fmt: skip
def test_options_of_the_own_client_are_refused_at_urls_of_fsspec(url):
    with pytest.raises(TypeError, match="fsspec opens this URL, and has no option disk, retries; leave it out"):
        readpath.open(url, retries=3, disk="/tmp", memory="1MiB")


@pytest.mark.parametrize("name", ["http://127.0.0.1:1/x", "s3://bucket/x", "nfs://127.0.0.1/x", "/x"])
def test_options_without_effect_on_a_file_are_refused(name):
    """No name is looked for: an error of the connection or the file would be an OSError."""
    with pytest.raises(ValueError, match="^keep_files: "):
        readpath.open(name, keep_files=3)
    if "://" in name:
        for option, value in {"backend": "threads", "kernel_cache": False}.items():
            with pytest.raises(ValueError, match=f"^{option}: only local files have this option"):
                readpath.open(name, page_cache="own", **{option: value})


@pytest.mark.parametrize(
    ("client", "name"),
    [
        ("readpath", "memory://m"), ("readpath", "file:///m"), ("readpath", "zip://a::file:///m.zip"),
        ("readpath", "simplecache::https://host/x"), ("readpath", "/m"), ("readpath", Path("m")),
        ("fsspec", "/m"), ("fsspec", b"m"), ("fsspec", Path("m")), ("fsspec", "nfs://host/x"),
    ],
)  # fmt: skip
def test_clients_are_refused_at_names_that_they_do_not_open(client, name):
    with pytest.raises(ValueError, match=f"^client='{client}' opens .*; leave client out"):
        readpath.open(name, client=client)


def test_options_of_the_own_client_with_ones_of_fsspec_are_refused_with_the_remedy():
    for options, words in [
        ({"client": "fsspec"}, "give client='readpath'$"),
        ({"block_size": 5}, "give client='readpath' and leave out block_size$"),
    ]:
        with pytest.raises(TypeError, match=f"no option storage_options; {words}"):
            readpath.open("https://host/x", storage_options={"timeout": "3s"}, **options)


def test_options_that_fsspec_lacks_are_an_error_that_names_them():
    """A server without byte ranges is read through fsspec."""
    with served(("strong",)) as (store, url):
        store.gives_ranges = False
        lost = {
            "retries": 0, "storage_options": {"timeout": "9s"}, "scheduler": "noop", "page_cache": "own", "eviction": "lru"
        }  # fmt: skip
        with pytest.raises(OSError, match=", ".join(sorted(lost))) as caught:
            readpath.open(url, memory="1MiB", **lost)
        assert caught.value.errno == errno.EOPNOTSUPP and caught.value.filename == url
        with pytest.raises(OSError, match="no option retries: "):
            readpath.open(url, retries=0)
        # The page cache that `memory` implies, and options without a value, are none of the caller.
        for options in ({}, {"memory": "1MiB", "depth": 4}, {"scheduler": None, "memory": "1MiB"}):
            with readpath.open(url, **options) as file:
                assert type(file).__name__ == "ReadpathFile" and file.read() == OLD


def test_unusable_names_and_options_are_errors_with_a_remedy():
    with served(("strong",)) as (store, url):
        cases = [
            (lambda: readpath.open(url, client="curl"), ValueError, "readpath or fsspec"),
            (lambda: readpath.open(url, storage_options={"aws_regoin": "x"}), ValueError, "aws_regoin"),
            (lambda: readpath.open(url, storage_options={"timeout": 3}), TypeError, "strings"),
            (lambda: readpath.open(url, storage_options={"timeout": "10 parsecs"}), ValueError, "option `timeout`"),
            (
                lambda: readpath.open("s3://bucket/key", storage_options={"aws_allow_http": "perhaps", "timeout": "9s"}),
                ValueError,
                "option `aws_allow_http`.*perhaps",
            ),
            (lambda: readpath.open(url, disk="/tmp"), ValueError, "disk_size"),
            (lambda: readpath.open(url, retries=-1), ValueError, "-1"),
            (lambda: readpath.open(url, request="1000"), ValueError, "request"),
            (lambda: readpath.open(url, request=5000), ValueError, "whole pages"),
            (lambda: readpath.open(url, request="8MiB"), ValueError, "at most 4 MiB"),
            (lambda: readpath.open(f"{url}/"), ValueError, "slash"),
            (lambda: readpath.open(f"{url}?a=1", client="readpath"), ValueError, "query; .*client='fsspec'"),
            (lambda: readpath.open("http://"), ValueError, "no URL"),
        ]
        for call, kind, words in cases:
            with pytest.raises(kind, match=words):
                call()


class Missing(Handler):
    """A server whose paths are the statuses of its answers."""

    def answer(self):
        self.send_response(int(self.path[1:]))
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_errors_of_the_server_are_errors_of_the_system():
    with served((), Missing) as (store, url):
        for status, kind, number in [
            (404, FileNotFoundError, errno.ENOENT),
            (403, PermissionError, errno.EACCES),
            (401, PermissionError, errno.EACCES),
            (500, OSError, errno.EIO),
        ]:
            name = url.replace("/data", f"/{status}").replace("//", "//user:secret@")
            with pytest.raises(kind) as raised:
                readpath.open(name, retries=0)
            assert raised.value.errno == number
            assert "secret" not in str(raised.value) and f"/{status}" in raised.value.filename
    with pytest.raises(ConnectionRefusedError) as raised:
        readpath.open(url, retries=0)
    assert raised.value.filename == url


def test_errors_of_awaited_reads_name_the_url_and_the_cause():
    """As the ones of the other reads."""

    class Failing(Handler):
        def answer(self):
            if not self.server.store.asked:
                return super().answer()
            self.send_response(403)
            self.send_header("Content-Length", "0")
            return self.end_headers()

    with served(("strong",), Failing) as (store, url), readpath.open(url, **SMALL, retries=0) as file:
        said = []
        for read in (
            lambda: file.readat(500_000, 9),
            lambda: asyncio.run(file.areadat(500_000, 9)),
            lambda: asyncio.run(file.areadat_many([(500_000, 9)])),
        ):
            with pytest.raises(PermissionError, match="403") as raised:
                read()
            assert raised.value.filename == url
            # The rest has the time of the request.
            said.append(str(raised.value).partition(" in ")[0])
        assert len(set(said)) == 1
    with served(("strong",)) as (store, url), readpath.open(url, **SMALL) as file:
        store.overwrite()
        with pytest.raises(OSError, match="the object has changed in its storage.*revalidate") as raised:
            asyncio.run(file.areadat(500_000, 9))
        assert raised.value.errno == errno.ESTALE and raised.value.filename == url


class Silent(Handler):
    """A server that answers the opening alone, until `released`."""

    released = threading.Event()

    def answer(self):
        if self.server.store.asked:
            self.released.wait(30)
        super().answer()


class Interrupted(Exception):
    pass


def test_signal_ends_a_read_that_waits_for_the_server():
    def interrupt(number, frame):
        raise Interrupted

    with served(("strong",), Silent) as (store, url):
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with readpath.open(url, **SMALL) as file:
                for read in (
                    lambda: file.readat(500_000, 100),
                    lambda: file.readat_many([(600_000, 10), (700_000, 10)]),
                    lambda: file.readinto_at(800_000, bytearray(10)),
                ):
                    signal.setitimer(signal.ITIMER_REAL, 0.2)
                    with pytest.raises(Interrupted):
                        read()
                assert not Silent.released.is_set() and file.readat(0, 9) == OLD[:9]
                Silent.released.set()
                assert file.readat(500_000, 100) == OLD[500_000:500_100]
        finally:
            signal.signal(signal.SIGALRM, before)
            Silent.released.set()


def test_columns_of_parquet_are_prefetched_together():
    """pyarrow reads one chunk after the other. The chunks of later row groups are in memory then."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    values = {f"c{nth}": [float(nth * row) for row in range(80_000)] for nth in range(6)}
    sink = pyarrow.BufferOutputStream()
    options = {"row_group_size": 10_000, "compression": "none", "use_dictionary": False}
    parquet.write_table(pyarrow.table(values), sink, **options)
    with served(("strong",)) as (store, url):
        store.data = sink.getvalue().to_pybytes()
        for memory in (None, "2MiB"):
            store.asked.clear()
            with readpath.open(url, memory=memory) as file:
                read = parquet.read_table(file, columns=["c1", "c4"]).to_pydict()
            assert read == {"c1": values["c1"], "c4": values["c4"]}
            # Two columns of six, and the ends of the file: no other column.
            requested = sum(min(last, len(store.data) - 1) - first + 1 for first, last in ranges(store))
            assert requested < len(store.data) / 2
        with readpath.open(url) as file:
            file.seek(-100, os.SEEK_END)
            file.read()
            layout = parquet.read_metadata(pyarrow.BufferReader(store.data))
            chunk = layout.row_group(0).column(1)
            file.seek(chunk.data_page_offset)
            file.read(chunk.total_compressed_size)
            # The same column of the next row group needs no request.
            later = layout.row_group(1).column(1)
            file.readat(later.data_page_offset, later.total_compressed_size)
            count = len(store.asked)
            assert file.readat(later.data_page_offset, later.total_compressed_size)
            assert len(store.asked) == count and any(
                first <= later.data_page_offset <= last for first, last in ranges(store)
            )


def test_revalidate_finds_the_new_version():
    with served(("strong",)) as (store, url):
        with readpath.open(url) as file:
            assert not file.revalidate()
            store.overwrite(NEW[:700_000])
            assert file.revalidate() and file.size == 700_000 and file.readat(0, SIZE) == NEW[:700_000]
            assert not file.revalidate()
