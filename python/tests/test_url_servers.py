"""URLs of servers that redirect, have an own certificate, no ranges, or an encoding: right bytes, or a clear error."""

import contextlib
import errno
import gzip
import io
import os
import shutil
import ssl
import subprocess
import sys

import pytest

import readpath
from test_versions import OLD, SIZE, Handler, served


@contextlib.contextmanager
def redirecting(status, target):
    """The URL of a server that redirects each request to `target`, and the paths that were asked for."""
    asked = []

    class Redirect(Handler):
        def answer(self):
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Location", target)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with served((), Redirect) as (_, url):
        yield url, asked


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirect_to_another_host_and_path_is_followed(status):
    with served(("strong",)) as (store, url):
        elsewhere = url.replace("127.0.0.1", "localhost").replace("/data", "/other/name")
        with redirecting(status, elsewhere) as (first, asked), readpath.open(first, memory="1MiB") as file:
            assert file.size == SIZE and file.read(9) == OLD[:9]
            assert file.readat(700_000, 99) == OLD[700_000:700_099]
            assert set(asked) == {"/data"}
        # The range and the version go with it.
        assert all("range" in {name.lower() for name in headers} for headers in store.asked)
        assert store.asked[-1].get("if-match")


def test_object_that_changes_behind_a_redirect_is_an_error():
    with (
        served(("strong",)) as (store, url),
        redirecting(302, url) as (first, _),
        readpath.open(first, memory="1MiB", readahead="none") as file,
    ):
        assert file.readat(300_000, 9) == OLD[300_000:300_009]
        store.overwrite()
        with pytest.raises(OSError, match="changed|version|412"):
            file.readat(900_000, 9)


def test_circle_of_redirects_is_an_error_with_the_url():
    with redirecting(302, "/data") as (url, asked):
        with pytest.raises(OSError, match="redirect") as caught:
            readpath.open(url, retries=0)
        assert caught.value.filename == url and len(asked) < 50


def test_server_without_the_field_accept_ranges_is_asked_for_ranges():
    class Silent(Handler):
        def send_header(self, name, value):
            if name != "Accept-Ranges":
                super().send_header(name, value)

    with served(("strong",), Silent) as (_, url), readpath.open(url, memory="1MiB") as file:
        assert file.readat(500_000, 99) == OLD[500_000:500_099] and file.read() == OLD


def test_server_without_ranges_is_an_error_with_url_and_remedy():
    with served(("strong",)) as (store, url):
        store.gives_ranges = False
        with pytest.raises(OSError, match="Range.*client='fsspec'") as caught:
            readpath.open(url, client="readpath", retries=0)
        assert caught.value.filename == url
        assert readpath.open(url).read() == OLD


class Chunked(Handler):
    """A server that sends no length, as the ones do which compress or make an answer."""

    def send_header(self, name, value):
        name, value = ("Transfer-Encoding", "chunked") if name == "Content-Length" else (name, value)
        super().send_header(name, value)

    def answer(self):
        plain = self.wfile
        self.wfile = io.BytesIO()
        super().answer()
        header, end, body = self.wfile.getvalue().partition(b"\r\n\r\n")
        self.wfile = plain
        plain.write(header + end)
        if self.command == "GET":
            plain.write(b"%x\r\n%b\r\n" % (len(body), body) * bool(body) + b"0\r\n\r\n")


class WithoutTotal(Handler):
    """A server that does not know the length of the object (RFC 9110, section 14.4)."""

    def send_header(self, name, value):
        super().send_header(name, value.partition("/")[0] + "/*" if name == "Content-Range" else value)


@pytest.mark.parametrize("kind", [Chunked, WithoutTotal])
def test_answers_without_a_length_are_read_through_fsspec(kind):
    with served(("strong",), kind) as (_, url):
        with pytest.raises(OSError, match="client='fsspec'") as caught:
            readpath.open(url, client="readpath", retries=0)
        assert caught.value.errno == errno.EOPNOTSUPP and caught.value.filename == url
        with readpath.open(url) as file:
            assert type(file).__name__ != "ObjectFile" and file.read() == OLD


@pytest.mark.parametrize("status", [206, 500])
def test_failed_request_is_no_error_of_a_disk(status):
    class Faulty(Handler):
        def send_response(self, sent):
            super().send_response(status if sent == 206 and self.server.store.shift else sent)

    with (
        served(("strong",), Faulty) as (store, url),
        readpath.open(url, memory="1MiB", readahead="none", retries=0) as file,
    ):
        # Another range, or a status.
        store.shift = 1
        with pytest.raises(OSError) as caught:
            file.readat(900_000, 9)
    assert caught.value.errno == errno.EIO and caught.value.filename == url
    assert caught.value.strerror.startswith("the request for byte 900000 of the object failed; ")
    # The page of these bytes begins at 219 * 4096.
    assert ("GET http" if status == 500 else "got 897025..901120") in caught.value.strerror


@pytest.mark.parametrize("name", ["data", "data.parquet"])
def test_range_past_the_end_has_no_bytes(name):
    """An object is opened by its start, or by its end."""
    for data in (b"", b"x", OLD[:5000]):
        with served(("strong",)) as (store, url):
            store.data = data
            with readpath.open(url.replace("data", name)) as file:
                assert file.size == len(data) and file.read() == data
                assert file.readat(len(data), 10) == b"" and file.readat(1 << 40, 10) == b""


def test_encoded_object_has_its_stored_bytes():
    """`Content-Encoding` belongs to the object. No other encoding is asked for."""

    class Encoded(Handler):
        def headers_of_version(self):
            yield from super().headers_of_version()
            yield "Content-Encoding", "gzip"

    with served(("strong",), Encoded) as (store, url):
        store.data = gzip.compress(OLD[:200_000])
        with readpath.open(url, memory="1MiB") as file:
            assert file.size == len(store.data) and gzip.decompress(file.read()) == OLD[:200_000]
        assert not any("accept-encoding" in {name.lower() for name in headers} for headers in store.asked)
        store.gives_ranges = False
        with pytest.raises(OSError, match="Range.*client='fsspec'"):
            readpath.open(url, client="readpath", retries=0)


class FromTheEnd(Handler):
    """A server that also takes `bytes=-N`."""

    def answer(self):
        asked, size = self.headers.get("Range", ""), len(self.server.store.data)
        if asked.startswith("bytes=-"):
            last = min(size, int(asked[7:]))
            self.headers.replace_header("Range", f"bytes={size - last}-{size - 1}")
        super().answer()


def test_name_of_a_format_with_its_index_at_the_end_is_opened_by_the_end():
    with served(("strong",), FromTheEnd) as (store, url):
        with readpath.open(url + ".parquet", readahead="none") as file:
            # The end of the size of pyarrow's first read is there.
            assert file.readat(SIZE - 65_536, 65_536) == OLD[-65_536:] and len(store.asked) == 1
            assert file.readat(0, 100) == OLD[:100] and len(store.asked) == 2
            assert file.readat(SIZE - 200_000, 200_000) == OLD[-200_000:] and file.read() == OLD


@pytest.fixture
def certificate(tmp_path):
    """A key, its certificate for 127.0.0.1, and the certificate of the authority."""
    if not shutil.which("openssl"):
        pytest.skip("no program openssl")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "9", "-subj", "/CN=authority")
    openssl("req", *new_key, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=server")
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "9", "-extfile", "names"]
    openssl("x509", "-req", "-in", "request.pem", "-out", "cert.pem", *signed)
    return tmp_path


@contextlib.contextmanager
def encrypted(certificate):
    """The URL of a server of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")

    class Tls(Handler):
        def setup(self):
            self.request = context.wrap_socket(self.request, server_side=True, do_handshake_on_connect=False)
            super().setup()

        def handle(self):
            # A refused certificate ends the connection, which is no fault of the server.
            with contextlib.suppress(OSError):
                self.request.do_handshake()
                super().handle()

    with served(("strong",), Tls) as (store, url):
        yield store, url.replace("http:", "https:")


def read_by_another_process(url, **variables):
    """Output of a process that reads 9 bytes: authorities are looked up once per process."""
    program = (
        "import readpath, sys\n"
        "try:\n"
        "    print(readpath.open(sys.argv[1], retries=0).read(9))\n"
        "except OSError as error:\n"
        "    print(error, error.filename)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SSL_CERT")}
    command = [sys.executable, "-c", program, url]
    return subprocess.run(command, stdout=-1, check=True, text=True, env=environment | variables).stdout


def test_own_authority_is_named_by_a_variable(certificate):
    with encrypted(certificate) as (_, url):
        said = read_by_another_process(url, SSL_CERT_FILE=str(certificate / "ca.pem"))
        assert said == f"{OLD[:9]}\n"


def test_unknown_authority_is_an_error_with_url_and_remedy(certificate):
    with encrypted(certificate) as (_, url):
        said = read_by_another_process(url)
        assert "certificate" in said and url in said and "SSL_CERT_FILE" in said, said
        allowed = {"allow_invalid_certificates": "true"}
        assert readpath.open(url, storage_options=allowed).read(9) == OLD[:9]


def test_certificate_of_another_host_is_an_error(certificate):
    with encrypted(certificate) as (_, url):
        said = read_by_another_process(
            url.replace("127.0.0.1", "localhost"), SSL_CERT_FILE=str(certificate / "ca.pem")
        )
        assert "certificate" in said and "localhost" in said, said
