"""Many files through fsspec cost what one file system costs."""

import gc
import random
import sys
import zipfile
from pathlib import Path

import pytest

import readpath

fsspec = pytest.importorskip("fsspec")
from readpath.filesystem import ReadpathFileSystem  # noqa: E402

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
import delayed_store  # noqa: E402


@pytest.mark.parametrize("chain", ["readpath::file://{}", "readpath::simplecache::file://{}"])
def test_many_distinct_files_leave_no_descriptor_or_file_system(tmp_path, chain, descriptors):
    def read(nth):
        path = tmp_path / f"{nth}"
        path.write_bytes(b"%d" % nth)
        with fsspec.open(chain.format(path)) as file:
            assert file.read() == b"%d" % nth

    read(0)
    read(1)
    gc.collect()
    before, kept = descriptors(), len(ReadpathFileSystem._cache)
    for nth in range(2, 100):
        read(nth)
    gc.collect()
    assert descriptors() <= before
    assert len(ReadpathFileSystem._cache) == kept


def test_archives_have_file_systems_of_their_own(tmp_path):
    for nth in range(3):
        with zipfile.ZipFile(tmp_path / f"{nth}.zip", "w") as archive:
            archive.writestr("one.txt", b"%d" % nth)
    for nth in range(3):
        with fsspec.open(f"readpath::zip://one.txt::file://{tmp_path}/{nth}.zip") as file:
            assert file.read() == b"%d" % nth


def test_backend_option_is_passed_through_fsspec(tmp_path):
    (tmp_path / "data").write_bytes(b"1234")
    url = f"readpath::file://{tmp_path}/data"
    for backend in ("threads", "aio", "io_uring"):
        with fsspec.open(url, readpath={"backend": backend}) as file:
            assert file.read() == b"1234" and backend in file.path_stats()["backend"]
        with readpath.open(url, backend=backend) as file:
            assert backend in file.path_stats()["backend"]
    with pytest.raises(ValueError, match="there are: auto, aio"):
        fsspec.open(url, readpath={"backend": "magic"}).open()


LINES = [b"x" * random.Random(nth).randrange(200) + b"\r\n" for nth in range(20_000)]


@pytest.fixture
def lines_url(tmp_path):
    (tmp_path / "lines").write_bytes(b"".join(LINES) + b"end")
    with delayed_store.running(tmp_path / "lines", 1) as url:
        yield f"readpath::{url}"


def test_remote_lines_are_read_by_blocks(lines_url):
    with fsspec.open(lines_url) as file:
        assert list(file) == [*LINES, b"end"]
        counters = file.reader.counters()
        # Each block is asked for once, and not once for each of its lines.
        assert counters["asked_bytes"] <= file.size + 65_536
        file.seek(0)
        assert file.readline() == LINES[0] and file.tell() == len(LINES[0])
        assert file.read(3) == LINES[1][:3] and file.readline() == LINES[1][3:]
        assert file.readline(1) == LINES[2][:1] and file.readline(0) == b""
        assert file.readline() == LINES[2][1:]
        assert file.readuntil(b"\r\n", 7) == LINES[3] and file.readuntil(b"never") != b""
        assert file.readline() == b""


def test_local_lines_equal_those_of_a_built_in_file(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"".join(LINES[:2_000]) + b"\n\n" + b"y" * 300_000 + b"\nend")
    with readpath.open(path) as file, open(path, "rb", buffering=0) as expected:
        for size in (-1, None, 0, 1, 5, 1_000):
            assert file.readline(size) == expected.readline(size) and file.tell() == expected.tell()
        assert list(file) == list(expected) and file.readline() == b""
