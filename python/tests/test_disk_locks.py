"""An opening waits for another process that uses the disk tier, and Python goes on meanwhile."""

import signal
import subprocess
import sys
import threading

import pytest

import readpath
from test_versions import OLD, served

SAFETY_SECONDS = 20
"""Time after which the folder is unlocked although the test did not ask for it."""

HOLD = f"""
import fcntl, select, sys
ledger = open(sys.argv[1], "a")
fcntl.flock(ledger, fcntl.LOCK_EX)
print("locked", flush=True)
is_asked, _, _ = select.select([sys.stdin], [], [], {SAFETY_SECONDS})
print("asked" if is_asked else "late")
"""


@pytest.fixture
def locked_tier(tmp_path):
    """Folder of a disk tier that another process locks, and that process. It ends with its input."""
    folder = tmp_path / "tier"
    folder.mkdir(mode=0o700)
    (folder / "ledger").touch(mode=0o600)
    hold = [sys.executable, "-c", HOLD, folder / "ledger"]
    with subprocess.Popen(hold, stdin=-1, stdout=-1) as holder:
        assert holder.stdout.readline() == b"locked\n"
        yield folder, holder


def test_threads_and_signal_handlers_run_during_the_wait_for_a_disk_tier(locked_tier):
    """The folder is unlocked by a handler, after a thread has run."""
    folder, holder = locked_tier
    has_run = threading.Event()

    def release(*_):
        thread = threading.Thread(target=has_run.set)
        thread.start()
        thread.join()
        holder.stdin.close()

    previous = signal.signal(signal.SIGALRM, release)
    try:
        with served(("strong",)) as (_, url):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with readpath.open(url, disk=folder, disk_size="64MiB", memory="1MiB") as file:
                assert has_run.is_set(), "the folder was not locked"
                assert holder.stdout.readline() == b"asked\n"
                assert file.read(10) == OLD[:10]
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_concurrent_openings_of_a_locked_disk_tier_read_their_bytes(locked_tier):
    folder, holder = locked_tier
    within = readpath.ReadPath(disk=folder, disk_size="64MiB", memory="1MiB")
    found = []
    with served(("strong",)) as (_, url):

        def read():
            with within.open(url) as file:
                found.append(file.read(10))

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        holder.stdin.close()
        for thread in threads:
            thread.join()
    assert found == [OLD[:10]] * 4
