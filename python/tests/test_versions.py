"""Objects that are overwritten while they are open: one version is read, or an error names the file."""

import asyncio
import contextlib
import email.utils
import errno
import http.server
import json
import random
import re
import threading

import pytest

import readpath

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")
from fsspec.core import url_to_fs  # noqa: E402

SIZE = 1_000_000
OLD, NEW = (random.Random(seed).randbytes(SIZE) for seed in (1, 2))
SMALL = {"memory": "1MiB", "readahead": "none", "request": "64KiB"}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def headers_of_version(self):
        store = self.server.store
        tag = f'"{hash(store.data) & 0xFFFFFFFF:08x}"'
        if "weak" in store.says:
            yield "ETag", f"W/{tag}"
        if "strong" in store.says:
            yield "ETag", tag
        if "modified" in store.says:
            yield "Last-Modified", email.utils.formatdate(store.seconds, usegmt=True)

    def answer(self):
        store, said = self.server.store, dict(self.headers_of_version())
        data, match = store.data, re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        store.asked.append(dict(self.headers))
        status, start, end = 200, 0, len(data)
        wanted, since = self.headers.get("If-Match"), self.headers.get("If-Unmodified-Since")
        if store.is_conditional and (
            (wanted and wanted != said.get("ETag"))
            or (since and since != said.get("Last-Modified"))
        ):
            self.send_response(412)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if match and store.gives_ranges:
            status, start = 206, int(match[1]) + store.shift
            end = min(end, int(match[2]) + 1) if match[2] else end
            if start >= len(data):
                self.send_response(416)
                self.send_header("Content-Length", "0")
                return self.end_headers()
        body = data[start : end - store.missing if match else end]
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        for name, value in said.items():
            self.send_header(name, value)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

    def log_message(self, *arguments):
        pass


class Store:
    """One object by HTTP, which the test overwrites."""

    def __init__(self, says):
        self.data, self.seconds, self.says = OLD, 1_000_000_000, says
        self.is_conditional = self.gives_ranges = True
        self.shift = self.missing = 0
        self.asked = []

    def overwrite(self, data=NEW):
        self.data, self.seconds = data, self.seconds + 1


@contextlib.contextmanager
def served(says, handler=Handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.store = Store(says)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.store, f"http://127.0.0.1:{server.server_port}/data"
    finally:
        server.shutdown()
        server.server_close()


KINDS = [("strong",), ("weak",), ("weak", "modified"), ("modified",), ("strong", "modified")]


@pytest.mark.parametrize("is_conditional", [True, False])
@pytest.mark.parametrize("says", KINDS)
@pytest.mark.parametrize("client", ["readpath", "fsspec"])
def test_overwritten_http_object_is_an_error_that_names_it(client, says, is_conditional):
    with served(says) as (store, url):
        if (client, says) == ("readpath", ("weak",)):
            # A weak tag alone identifies no bytes.
            with pytest.raises(OSError, match="client='fsspec'") as raised:
                readpath.open(url, client=client)
            assert raised.value.errno == errno.EOPNOTSUPP and raised.value.filename == url
            assert type(readpath.open(url)).__name__ == "ReadpathFile"
            return
        store.is_conditional = is_conditional
        with readpath.open(url, client=client, **SMALL) as file:
            assert file.read(1000) == OLD[:1000]
            store.overwrite()
            # These pages are there, of the version that was opened.
            assert file.readat(0, 1000) == OLD[:1000]
            for read in (
                lambda: file.readat(500_000, 1000),
                lambda: file.readat_many([(300_000, 10), (900_000, 10)]),
                lambda: file.readinto_at(200_000, bytearray(10)),
                lambda: file.read(600_000),
            ):
                with pytest.raises(OSError, match="has changed in its storage") as raised:
                    read()
                assert url in str(raised.value) and raised.value.errno == 116
            assert file.revalidate() and file.readat(500_000, 1000) == NEW[500_000:501_000]
        with readpath.open(url, **SMALL) as file:
            assert file.read() == NEW


@pytest.mark.parametrize("client", ["readpath", "fsspec"])
def test_fetches_are_conditional_on_the_opened_version(client):
    with served(("strong",)) as (store, url):
        with readpath.open(url, client=client, **SMALL) as file:
            store.asked.clear()
            assert file.read() == OLD
        # The names of fields have no case.
        tags = {asked.get("If-Match", asked.get("if-match")) for asked in store.asked}
        assert len(tags) == 1 and None not in tags
    with served(("weak", "modified")) as (store, url):
        with readpath.open(url, client="fsspec", **SMALL) as file:
            store.asked.clear()
            assert file.read() == OLD
        # A weak tag never matches strongly, RFC 9110, section 13.1.1.
        assert all("If-Match" not in asked and "If-Unmodified-Since" in asked for asked in store.asked)


@pytest.mark.parametrize("length", [100, SIZE // 2, SIZE + 1])
def test_changed_length_without_a_tag_is_an_error(length):
    with served(()) as (store, url):
        with readpath.open(url, **SMALL) as file:
            assert file.read(1000) == OLD[:1000]
            store.overwrite((NEW + b"+")[:length])
            with pytest.raises(OSError, match="has changed in its storage") as raised:
                file.readat(400_000, 200_000)
            assert url in str(raised.value)


def test_wrong_range_or_length_of_an_answer_is_an_error_with_the_url():
    for name, value, words in (
        ("shift", 4096, "the answer is of 'bytes 4096-"),
        ("missing", 10, "there are"),
    ):
        with served(("strong",)) as (store, url):
            with readpath.open(url, client="fsspec", **SMALL) as file:
                setattr(store, name, value)
                with pytest.raises(OSError, match=words) as raised:
                    file.read(10_000)
                assert url in str(raised.value)


@pytest.mark.parametrize("name, value", [("shift", 4096), ("missing", 10)])
def test_wrong_answer_is_an_error_or_read_again_by_the_own_client(name, value):
    with served(("strong",)) as (store, url):
        with readpath.open(url, client="readpath", retries=0, **SMALL) as file:
            setattr(store, name, value)
            with pytest.raises(OSError) as raised:
                file.readat(500_000, 10_000)
            assert raised.value.filename == url
            setattr(store, name, 0)
            assert file.readat(500_000, 10_000) == OLD[500_000:510_000]


def test_server_without_ranges_is_read_through_fsspec():
    with served(("strong",)) as (store, url):
        store.gives_ranges = False
        with pytest.raises(OSError, match="client='fsspec'") as raised:
            readpath.open(url, client="readpath")
        assert raised.value.errno == errno.EOPNOTSUPP
        with readpath.open(url, **SMALL) as file:
            assert type(file).__name__ == "ReadpathFile" and file.read() == OLD


def test_server_without_ranges_still_returns_the_bytes():
    with served(("strong",)) as (store, url):
        with readpath.open(url, client="fsspec", **SMALL) as file:
            store.gives_ranges = False
            assert file.readat(500_000, 1000) == OLD[500_000:501_000]
            store.overwrite()
            with pytest.raises(OSError, match="has changed"):
                file.readat(700_000, 1000)


def test_cached_closed_file_is_not_mixed_with_a_new_version():
    with served(("strong",)) as (store, url):
        options = SMALL | {"keep_files": 2, "client": "fsspec"}
        with readpath.open(url, **options) as file:
            assert file.read(1000) == OLD[:1000]
        # The only request of another opening is the one for the version.
        store.asked.clear()
        with readpath.open(url, **options) as file:
            assert file.read(1000) == OLD[:1000]
        assert len(store.asked) == 1
        store.overwrite()
        with readpath.open(url, **options) as file:
            assert file.read() == NEW


def test_awaited_reads_are_of_one_version():
    async def read(url, store):
        fs, path = url_to_fs(f"readpath::{url}", asynchronous=True, skip_instance_cache=True, **SMALL)
        file = await fs.open_async(path)
        assert await file.read(1000) == OLD[:1000]
        store.overwrite()
        with pytest.raises(OSError, match="has changed") as raised:
            await file.readat(500_000, 1000)
        assert url in str(raised.value)
        await file.close()
        await fs.fs._session.close()

    with served(("strong",)) as (store, url):
        asyncio.run(read(url, store))


def test_weights_are_of_one_version(tmp_path):
    numpy = pytest.importorskip("numpy")
    save = pytest.importorskip("safetensors.numpy").save

    def made(seed):
        draw = numpy.random.default_rng(seed)
        return save({f"t{nth}": draw.integers(0, 255, 100_000, "u1") for nth in range(8)})

    with served(("strong",)) as (store, url):
        store.data = made(1)
        with readpath.safe_open(url) as file:
            file.get_tensor("t0")
            store.overwrite(made(2))
            with pytest.raises(OSError, match="has changed") as raised:
                file.get_tensor("t7")
            assert url in str(raised.value)


def test_storage_without_conditions_is_checked_periodically(monkeypatch):
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr("readpath.versions.CHECK_SECONDS", 0.0)
    memory.pipe("/versions", OLD)
    with readpath.open("memory://versions", **SMALL) as file:
        assert file.read(1000) == OLD[:1000]
        memory.pipe("/versions", NEW)
        with pytest.raises(OSError, match="has changed.*created.*/versions"):
            file.readat(500_000, 1000)
        memory.rm("/versions")
        with pytest.raises(FileNotFoundError):
            file.readat(700_000, 1000)


@pytest.fixture(scope="module")
def s3():
    """A store of the package moto, with a bucket without versions and one with."""
    pytest.importorskip("s3fs")
    boto3, server = pytest.importorskip("boto3"), pytest.importorskip("moto.server")
    store = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    store.start()
    host, port = store.get_host_and_port()
    options = {"endpoint_url": f"http://{host}:{port}", "key": "a", "secret": "b"}
    client = boto3.client(
        "s3", endpoint_url=options["endpoint_url"], aws_access_key_id="a", aws_secret_access_key="b",
        region_name="us-east-1",
    )  # fmt: skip
    for name in ("plain", "versioned"):
        client.create_bucket(Bucket=name)
    client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    yield client, options
    store.stop()


@pytest.mark.parametrize("bucket", ["plain", "versioned"])
@pytest.mark.parametrize("is_aware", [False, True])
@pytest.mark.parametrize("length", [SIZE, 1000, 2 * SIZE])
def test_overwritten_s3_object_is_an_error_or_its_old_version(s3, bucket, is_aware, length):
    client, options = s3
    client.put_object(Bucket=bucket, Key="data", Body=OLD)
    url = f"s3://{bucket}/data"
    with readpath.open(url, s3=options | {"version_aware": is_aware}, **SMALL) as file:
        assert file.read(1000) == OLD[:1000]
        client.put_object(Bucket=bucket, Key="data", Body=(NEW + NEW)[:length])
        if is_aware and bucket == "versioned":
            assert file.readat(500_000, 1000) == OLD[500_000:501_000]
        else:
            with pytest.raises(OSError, match="has changed") as raised:
                file.readat(500_000, 1000)
            assert f"{bucket}/data" in str(raised.value)
        assert file.revalidate()
        assert file.readat(0, 1000) == NEW[:1000]
    with readpath.open(url, s3=options | {"version_aware": is_aware}, **SMALL) as file:
        assert file.read() == (NEW + NEW)[:length]


def test_store_that_ignores_the_condition_is_detected(s3, monkeypatch):
    s3fs = pytest.importorskip("s3fs")
    client, options = s3
    real = s3fs.S3FileSystem._call_s3

    async def ignoring(self, method, *others, **named):
        named.pop("IfMatch", None)
        return await real(self, method, *others, **named)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", ignoring)
    client.put_object(Bucket="plain", Key="data", Body=OLD)
    with readpath.open("s3://plain/data", s3=options, **SMALL) as file:
        assert file.read(1000) == OLD[:1000]
        client.put_object(Bucket="plain", Key="data", Body=NEW)
        with pytest.raises(OSError, match="its ETag is"):
            file.readat(500_000, 1000)


def test_stale_listing_fails_once_and_reopening_succeeds(s3):
    """The file system has a listing from before; the first read says so, and the next opening is right."""
    client, options = s3
    client.put_object(Bucket="plain", Key="listed/data", Body=OLD)
    fs = fsspec.filesystem("readpath", target_protocol="s3", target_options=options, **SMALL)
    assert [entry["size"] for entry in fs.ls("plain/listed", detail=True)] == [SIZE]
    client.put_object(Bucket="plain", Key="listed/data", Body=NEW)
    with fs.open("plain/listed/data") as file:
        with pytest.raises(OSError, match="has changed"):
            file.read(1000)
    with fs.open("plain/listed/data") as file:
        assert file.read() == NEW


class Listing(fsspec.AbstractFileSystem):
    """A file system whose details come from cached listings, as those of FTP."""

    protocol = "listing"
    cachable = False
    files: dict = {}

    def ls(self, path, detail=True, **options):
        path = self._strip_protocol(path)
        if path not in self.dircache:
            self.dircache[path] = [
                {"name": name, "type": "file", "size": len(data), "modify": f"{seconds}"}
                for name, (data, seconds) in self.files.items()
                if self._parent(name) == path
            ]
        return self.dircache[path] if detail else [one["name"] for one in self.dircache[path]]

    def cat_file(self, path, start=None, end=None, **options):
        return self.files[self._strip_protocol(path)][0][start:end]

    def invalidate_cache(self, path=None):
        self.dircache.clear() if path is None else self.dircache.pop(path, None)


@pytest.fixture
def listing(monkeypatch):
    """The file system, whose details are compared after each fetch."""
    monkeypatch.setattr("readpath.versions.CHECK_SECONDS", 0.0)
    below = Listing(skip_instance_cache=True)
    monkeypatch.setattr(Listing, "files", {"folder/data": (OLD, 1)})
    below.ls("folder")
    return below


@pytest.mark.parametrize("after", [(NEW, 2), (NEW[:700_000], 1), None])
def test_change_behind_a_cached_listing_is_an_error_and_seen_by_revalidation(listing, after):
    from readpath.filesystem import ReadpathFileSystem

    fs = ReadpathFileSystem(fs=listing, skip_instance_cache=True, **SMALL)
    with fs.open("folder/data") as file:
        assert file.readat(0, 1000) == OLD[:1000] and not file.revalidate()
        if after is None:
            # Another file of the folder changes.
            listing.files["folder/other"] = (b"1", 5)
            assert file.readat(500_000, 1000) == OLD[500_000:501_000] and not file.revalidate()
            return
        listing.files["folder/data"] = after
        with pytest.raises(OSError, match="has changed in its storage.*folder/data") as caught:
            file.readat(500_000, 1000)
        assert caught.value.errno == errno.ESTALE
        listing.ls("folder")
        assert file.revalidate() and file.size == len(after[0])
        assert file.readat(500_000, 1000) == NEW[500_000:501_000]
    listing.ls("folder")
    with fs.open("folder/data") as file:
        listing.files["folder/data"] = (OLD, 3)
        assert file.revalidate() and file.readat(9, 9) == OLD[9:18]


class Blobs(Listing):
    """As adlfs: details of a listing have the tag without quotes, and the ones of a request with them."""

    async_impl = True
    asynchronous = True

    async def _info(self, path):
        name, is_listed = self._strip_protocol(path), self._parent(path) in self.dircache
        data, seconds = self.files[name]
        details = next(one for one in self.ls(self._parent(path)) if one["name"] == name)
        if not is_listed:
            self.dircache.clear()
        tag = details["modify"] if is_listed else f'"{seconds}"'
        return {"name": name, "type": "file", "size": details["size"], "etag": tag}

    async def _cat_file(self, path, start=None, end=None, **options):
        return self.cat_file(path, start, end)


def test_details_of_listings_and_requests_are_compared(listing):
    from readpath.versions import Version

    blobs = Blobs(skip_instance_cache=True)
    blobs.ls("folder")

    async def read():
        version = Version(blobs, "folder/data", await blobs._info("folder/data"))
        assert await version.range_of(5, 9) == OLD[5:9]
        blobs.ls("folder")
        blobs.files["folder/data"] = (NEW, 2)
        with pytest.raises(OSError, match="has changed in its storage.*etag"):
            await version.range_of(5, 9)

    asyncio.run(read())


class CloudHandler(http.server.BaseHTTPRequestHandler):
    """One object of Google Cloud Storage, by its JSON interface: lists it, describes it, and gives ranges of it."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        store = self.server.store
        store.asked.append(self.path)
        described = {
            "kind": "storage#object", "bucket": "bucket", "name": "data", "size": str(len(store.data)),
            "generation": str(store.seconds), "updated": "2026-01-01T00:00:00Z", "timeCreated": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        wanted = re.search(r"ifGenerationMatch=(\d+)", self.path)
        if "/download/" not in self.path:
            is_list = not self.path.partition("?")[0].endswith("/data")
            return self.give(200, json.dumps({"items": [described]} if is_list else described).encode())
        if wanted and wanted[1] != str(store.seconds):
            return self.give(412, b'{"error": {"code": 412, "message": "conditionNotMet"}}')
        start, end = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        part = store.data[start : end + 1]
        return self.give(206, part, f"bytes {start}-{start + len(part) - 1}/{len(store.data)}")

    def give(self, status, body, content_range=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.mark.parametrize("length", [SIZE, 700_000])
def test_overwritten_google_object_is_an_error_that_names_it(length, monkeypatch):
    gcsfs = pytest.importorskip("gcsfs")

    async def is_zonal(self, bucket):
        """By gRPC, for which this server has no answer."""
        return False

    monkeypatch.setattr(gcsfs.GCSFileSystem, "_is_zonal_bucket", is_zonal, raising=False)
    with served((), CloudHandler) as (store, url):
        options = {"endpoint_url": url.removesuffix("/data"), "token": "anon"}
        with readpath.open("gs://bucket/data", gs=options, **SMALL) as file:
            assert file.read(1000) == OLD[:1000]
            asked = [path for path in store.asked if "/download/" in path]
            assert asked and all("ifGenerationMatch=1000000000" in path for path in asked)
            store.overwrite(NEW[:length])
            with pytest.raises(OSError, match="has changed in its storage.*bucket/data"):
                file.readat(500_000, 1000)
            assert file.revalidate() and file.readat(500_000, 1000) == NEW[500_000:501_000]
