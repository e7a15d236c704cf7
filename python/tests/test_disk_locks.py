"""An opening waits for another process that uses the disk tier, and Python goes on meanwhile."""

import signal
import subprocess
import sys
import threading
import time

import pytest

import readpath
from test_versions import OLD, served

HOLD = """
import fcntl, sys, time
ledger = open(sys.argv[1], "a")
fcntl.flock(ledger, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(1)
"""


@pytest.fixture
def locked_tier(tmp_path):
    """Folder of a disk tier that another process locks for a second."""
    folder = tmp_path / "tier"
    folder.mkdir(mode=0o700)
    (folder / "ledger").touch(mode=0o600)
    with subprocess.Popen([sys.executable, "-c", HOLD, folder / "ledger"], stdout=-1) as holder:
        assert holder.stdout.readline() == b"locked\n"
        yield folder


def test_threads_and_signal_handlers_run_during_the_wait_for_a_disk_tier(locked_tier):
    ticks, signals, is_done = [], [], threading.Event()

    def tick():
        while not is_done.wait(0.005):
            ticks.append(time.monotonic())

    ticker = threading.Thread(target=tick)
    previous = signal.signal(signal.SIGALRM, lambda *_: signals.append(time.monotonic()))
    try:
        with served(("strong",)) as (_, url):
            ticker.start()
            time.sleep(0.05)
            begin = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with readpath.open(url, disk=locked_tier, disk_size="64MiB", memory="1MiB") as file:
                end = time.monotonic()
                assert file.read(10) == OLD[:10]
    finally:
        is_done.set()
        ticker.join()
        signal.signal(signal.SIGALRM, previous)
    assert end - begin > 0.5, "the folder was not locked"
    assert max(later - former for former, later in zip(ticks, ticks[1:], strict=False)) < 0.4
    assert signals and signals[0] - begin < 0.6


def test_concurrent_openings_share_one_disk_tier(locked_tier):
    within = readpath.ReadPath(disk=locked_tier, disk_size="64MiB", memory="1MiB")
    found = []
    with served(("strong",)) as (_, url):

        def read():
            with within.open(url) as file:
                found.append(file.read(10))

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [OLD[:10]] * 4
