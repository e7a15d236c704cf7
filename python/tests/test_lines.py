"""Lines of a remote file equal those of `io.BytesIO`, also after errors and with a limit."""

import io

import pytest

fsspec = pytest.importorskip("fsspec")
from counting import Counting  # noqa: E402

from readpath.filesystem import ReadpathFileSystem  # noqa: E402


@pytest.fixture
def opened():
    """Opens a file with these bytes."""
    below = Counting()

    def open_with(data):
        below.pipe("/lines", data)
        return ReadpathFileSystem(fs=below, skip_instance_cache=True).open("/lines")

    yield open_with
    below.rm("/", recursive=True)


def fail_once(file, monkeypatch, failing_call):
    """Lets one call of the file's reader fail."""
    plain, calls = file.reader.read, []

    def read(offset, size):
        calls.append(offset)
        if len(calls) == failing_call:
            raise TimeoutError("the storage does not answer")
        return plain(offset, size)

    monkeypatch.setattr(file.reader, "read", read)


@pytest.mark.parametrize("failing_call", [1, 2, 3])
def test_failed_read_in_a_line_leaves_the_position(opened, monkeypatch, failing_call):
    data = b"first\n" + b"x" * 150_000 + b"\nlast"
    with opened(data) as file, io.BytesIO(data) as expected:
        assert file.read(6) == expected.read(6)
        fail_once(file, monkeypatch, failing_call)
        with pytest.raises(TimeoutError):
            file.readline()
        assert file.tell() == 6
        assert list(file) == list(expected)


def test_limited_line_reads_one_block_of_a_long_line(opened):
    data = b"x" * 1_000_000
    with opened(data) as file, io.BytesIO(data) as expected:
        for size in (10, 0, 1, 4_000):
            assert file.readline(size) == expected.readline(size)
            assert file.tell() == expected.tell()
        assert file.stats()["bytes"] <= 1 << 16


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 131_072, 200_000])
def test_limited_lines_over_blocks_have_their_bytes(opened, size):
    data = b"first\n" + b"x" * 140_000 + b"\n\n" + b"y" * 65_535 + b"\nlast"
    with opened(data) as file, io.BytesIO(data) as expected:
        for start in (0, 6, 70_000, 140_006, len(data)):
            assert file.seek(start) == expected.seek(start)
            assert file.readline(size) == expected.readline(size)
            assert file.tell() == expected.tell()
