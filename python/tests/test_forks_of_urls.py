"""A file of a URL that was open before a fork is readable in the child."""

import asyncio
import errno
import os
import signal
import threading
import urllib.request

import fsspec
import pytest

import readpath
from readpath.reader import Options, Reader
from readpath.forks import FetchThreads
from test_versions import NEW, OLD, Handler, served

DATA = bytes(range(256)) * 20_000
CHILD_SECONDS = 20


@pytest.fixture
def url():
    fsspec.filesystem("memory").pipe("/forked.bin", DATA)
    yield "memory://forked.bin"
    fsspec.filesystem("memory").rm("/forked.bin")


def status_of_child(check):
    """Exit status of a child that runs `check`: 0 for True, a signal's number if it hangs."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_SECONDS)
        try:
            os._exit(0 if check() else 3)
        finally:
            os._exit(4)
    return os.waitpid(child, 0)[1]


def test_child_reads_a_url_opened_by_the_parent(url):
    with readpath.open(url) as file:
        file.seek(100)
        assert file.read(10) == DATA[100:110]

        def check():
            far = file.readat(4_000_000, 99)
            return file.read(50) == DATA[110:160] and far == DATA[4_000_000:4_000_099]

        assert status_of_child(check) == 0
        assert file.read(50) == DATA[110:160]
    assert status_of_child(lambda: readpath.open(url).read() == DATA) == 0


def test_child_reads_through_the_cache_of_an_fsspec_file(url):
    from readpath.cache import ReadpathCache

    cache = ReadpathCache(1 << 16, lambda start, end: DATA[start:end], len(DATA))
    assert cache._fetch(5, 10) == DATA[5:10]
    begin, end = 3_000_000, 3_000_100
    assert status_of_child(lambda: cache._fetch(begin, end) == DATA[begin:end]) == 0
    cache.close()


def test_child_of_a_parent_with_reading_threads_reads_too(url):
    stop = threading.Event()
    with readpath.open(url, keep_files=2) as file:

        def read():
            while not stop.is_set():
                file.readat(7, 300_000)
                readpath.open(url, keep_files=2).close()

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            statuses = {
                status_of_child(
                    lambda: file.readat(9, 100) == DATA[9:109]
                    and readpath.open(url, keep_files=2).read(9) == DATA[:9]
                )
                for _ in range(10)
            }
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert statuses == {0}


def test_child_does_not_wait_for_a_fetch_of_the_parent():
    began, proceed = threading.Event(), threading.Event()

    def fetch(start, end):
        began.set()
        assert proceed.wait(CHILD_SECONDS)
        return DATA[start:end]

    with FetchThreads(4) as threads:
        reader = Reader(lambda *one: threads.submit(fetch, *one), len(DATA), Options())
        reading = threading.Thread(target=reader.read, args=(0, 10))
        reading.start()
        assert began.wait(CHILD_SECONDS)

        def check():
            proceed.set()
            return reader.read(0, 10) == DATA[:10]

        try:
            assert status_of_child(check) == 0
        finally:
            proceed.set()
            reading.join()


def test_closed_threads_stay_closed_in_the_child():
    threads = FetchThreads(2)
    threads.shutdown()

    def check():
        try:
            threads.submit(int)
        except RuntimeError:
            return True
        return False

    assert status_of_child(check) == 0


def stale(read):
    """True if a read is an OSError (`ESTALE`) that names a file."""
    try:
        read()
    except OSError as error:
        return error.errno == errno.ESTALE and error.filename is not None
    return False


@pytest.mark.parametrize("options", [{}, {"memory": "1MiB"}])
@pytest.mark.parametrize("is_renamed", [True, False])
def test_child_finds_a_change_of_the_file_after_the_fork(tmp_path, options, is_renamed):
    path, other = tmp_path / "data", tmp_path / "other"
    path.write_bytes(b"1" * 100)
    with readpath.open(path, **options) as file:

        def change():
            if is_renamed:
                other.write_bytes(b"2" * 200)
                other.rename(path)
            else:
                path.write_bytes(b"2" * 200)

        def check():
            change()
            # Another file of the name is not read. Bytes of the file itself are the present ones.
            if is_renamed != stale(lambda: file.readat(0, 10)):
                return False
            if not is_renamed and file.readat(0, 10) != b"2" * 10:
                return False
            # A grandchild opens the new file too.
            if status_of_child(lambda: is_renamed == stale(lambda: file.read(1)) and file.revalidate()) != 0:
                return False
            return file.size == 100 and file.revalidate() and file.size == 200 and not file.revalidate()

        assert status_of_child(check) == 0

        def check_first():
            return file.revalidate() and file.size == 200 and file.read() == b"2" * 200

        assert status_of_child(check_first) == 0
        if is_renamed:
            assert file.read() == b"1" * 100
    with readpath.open(path, **options) as file:
        assert status_of_child(lambda: not file.revalidate() and file.read() == b"2" * 200) == 0


def test_child_does_not_read_an_object_that_was_overwritten_after_the_fork():
    with served(("strong",)) as (store, url), readpath.open(url, memory="1MiB") as file:
        assert status_of_child(lambda: not file.revalidate() and file.readat(5, 9) == OLD[5:14]) == 0
        store.overwrite(NEW[:700_000])

        def check():
            awaited = stale(lambda: asyncio.run(file.areadat(0, 10)))
            many = stale(lambda: file.readat_many([(0, 10)]))
            if not (awaited and many and stale(lambda: file.read(10)) and file.size == len(OLD)):
                return False
            return file.revalidate() and file.size == 700_000 and file.readat(5, 9) == NEW[5:14]

        assert status_of_child(check) == 0
        assert status_of_child(lambda: file.revalidate() and file.readat(5, 9) == NEW[5:14]) == 0
        assert file.revalidate() and not file.revalidate() and file.readat(5, 9) == NEW[5:14]


class Returning(Handler):
    """A server whose object is the first version again after a request for another name."""

    def answer(self):
        if self.path != "/data":
            self.server.store.overwrite(OLD)
        super().answer()


def test_child_revalidates_an_object_that_returns_to_its_first_version():
    with served(("strong",), Returning) as (store, url), readpath.open(url, memory="1MiB") as file:
        store.overwrite(NEW[:700_000])

        def check():
            if not stale(lambda: file.readat(5, 9)):
                return False
            # The server is in the parent.
            urllib.request.urlopen(f"{url}/again").close()
            return file.revalidate() and file.readat(5, 9) == OLD[5:14] and not file.revalidate()

        assert status_of_child(check) == 0
