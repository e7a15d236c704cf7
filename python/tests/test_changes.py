"""Files changed by other programs while they are open."""

import os
import random

import pytest

import readpath

fsspec = pytest.importorskip("fsspec")


def rewritten(path, seed, size):
    data = random.Random(seed).randbytes(size)
    path.write_bytes(data)
    return data


@pytest.mark.parametrize("size", [100_000, 70_000, 250_000])
def test_rewritten_file_is_read_again_after_revalidation(tmp_path, size, monkeypatch):
    path = tmp_path / "data"
    before = rewritten(path, 1, 100_000)
    monkeypatch.chdir(tmp_path)
    with readpath.open("data") as file:
        assert file.read() == before and not file.revalidate()
        after = rewritten(path, 2, size)
        os.utime(path, ns=(1, 1))
        monkeypatch.chdir("/")
        assert file.revalidate() and not file.revalidate()
        assert file.size == size and file.readat(0, 1 << 20) == after
        file.seek(0)
        assert file.read() == after
        path.unlink()
        with pytest.raises(FileNotFoundError):
            file.revalidate()
        assert file.readat(5, 5) == after[5:10]
    with pytest.raises(ValueError, match="closed"):
        file.revalidate()


def test_shrunk_file_is_readable_after_revalidation(tmp_path):
    path = tmp_path / "data"
    rewritten(path, 1, 1_000_000)
    with readpath.open(path, page_cache="own", readahead="none") as file:
        after = rewritten(path, 2, 500_000)
        with pytest.raises(OSError, match="revalidate it"):
            file.readat(600_000, 10)
        assert file.revalidate()
        assert file.readat(499_990, 100) == after[-10:]


def test_changed_remote_file_is_detected_by_revalidation():
    memory = fsspec.filesystem("memory")
    memory.pipe("/changes", b"1" * 100_000)
    with readpath.open("memory://changes") as file:
        assert file.readline() == b"1" * 100_000 and not file.revalidate()
        memory.pipe("/changes", b"2\n" * 10)
        assert file.revalidate() and file.size == 20
        file.seek(0)
        assert file.readline() == b"2\n" and file.readat(18, 9) == b"2\n"
    memory.rm("/changes")


def test_cached_bytes_outlive_closed_files_up_to_keep_files(tmp_path):
    paths = [tmp_path / name for name in "abc"]
    data = [rewritten(path, nth, 40_000) for nth, path in enumerate(paths)]
    within = readpath.ReadPath(memory="8MiB", keep_files=2, kernel_cache=False)

    def device_bytes(path, expected):
        before = within.stats()["device_bytes"]
        with within.open(path) as file:
            assert file.read(40_000) == expected
        return within.stats()["device_bytes"] - before

    assert all(device_bytes(path, one) > 0 for path, one in zip(paths, data, strict=True))
    assert device_bytes(paths[1], data[1]) == device_bytes(paths[2], data[2]) == 0
    assert device_bytes(paths[0], data[0]) > 0
    data[0] = rewritten(paths[0], 9, 40_000)
    os.utime(paths[0], ns=(1, 1))
    assert device_bytes(paths[0], data[0]) > 0


@pytest.mark.parametrize("options", [{}, {"memory": "8MiB"}, {"page_cache": "own"}, {"page_cache": "none"}])
def test_read_bytes_are_of_the_old_or_the_new_content(tmp_path, options):
    """The whole of what is promised: a read may have bytes of both states."""
    path = tmp_path / "data"
    before = rewritten(path, 1, 300_000)
    with readpath.open(path, **options) as file:
        assert file.readat(100_000, 1000) == before[100_000:101_000]
        with path.open("r+b") as other:
            after = random.Random(2).randbytes(400_000)
            other.write(after)
        os.utime(path, ns=(1, 1))
        assert file.size == 300_000
        found = file.readat(0, 1 << 20)
        assert len(found) == 300_000
        assert all(byte in pair for byte, pair in zip(found, zip(before, after, strict=False), strict=True))
        assert file.revalidate() and file.readat(0, 1 << 20) == after


@pytest.mark.parametrize(
    "changes",
    [{"size": None}, {"partial": False}, {"type": "directory", "size": 0}],
    ids=repr,
)
def test_file_stays_usable_after_a_failed_revalidation(changes, monkeypatch):
    memory = fsspec.filesystem("memory")
    memory.pipe("/changes", b"1" * 100_000)
    with readpath.open("memory://changes", keep_files=1) as file:
        assert file.read(3) == b"111"
        memory.pipe("/changes", b"2" * 200_000)
        with monkeypatch.context() as patch:
            changed = memory.info("/changes") | changes
            patch.setattr(file.fs.fs, "info", lambda path: changed)
            with pytest.raises(OSError, match="no ranges|directory"):
                file.revalidate()
        assert file.size == 100_000 and file.read(3) == b"111" and file.tell() == 6
        assert file.revalidate() and file.size == 200_000 and not file.revalidate()
        file.seek(0)
        assert file.read() == b"2" * 200_000
    memory.rm("/changes")


def test_file_stays_usable_after_a_refused_reader(monkeypatch):
    memory = fsspec.filesystem("memory")
    memory.pipe("/changes", b"1" * 100_000)
    with readpath.open("memory://changes") as file:
        memory.pipe("/changes", b"2" * 200_000)
        with monkeypatch.context() as patch:
            patch.setattr(readpath.filesystem, "Reader", lambda *_: bytearray(1 << 62))
            with pytest.raises(MemoryError):
                file.revalidate()
        assert file.size == 100_000 and file.revalidate() and file.size == 200_000
        assert file.read() == b"2" * 200_000
    memory.rm("/changes")
