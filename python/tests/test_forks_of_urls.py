"""A file of a URL that was open before a fork is readable in the child."""

import os
import signal
import threading

import fsspec
import pytest

import readpath
from readpath.reader import Options, Reader
from readpath.forks import FetchThreads

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
