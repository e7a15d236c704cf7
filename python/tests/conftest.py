"""Fixtures of all tests: the project's folder, its command, and an NFS server."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

# A command that a shell starts in the background ignores SIGINT. Python then installs no handler,
# and a run could not be interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def descriptors():
    """Gives the open descriptors, as pairs of number and file.

    A test compares sets, not counts: other tests' connections may close in the meantime.
    """

    def opened():
        links = [(name, f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        return {(name, os.readlink(link)) for name, link in links if os.path.islink(link)}

    return opened


@pytest.fixture(scope="session")
def command():
    """Runs the command `readpath`; the tests that need it are skipped where it is not built."""
    named = os.environ.get("READPATH_COMMAND")
    built = [ROOT / "target" / profile / "readpath" for profile in ("release", "debug")]
    there = [path for path in ([Path(named)] if named else built) if path.exists()]
    if not there:
        pytest.skip("the command is not built: cargo build -p readpath-cli")

    def run(*arguments):
        return subprocess.run(
            [there[0], *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
        )

    run.path = there[0]
    return run


@pytest.fixture(scope="session")
def nfs_server():
    """Serves a file by NFS; gives its URL. The tests that need it are skipped where it is not built."""
    named = os.environ.get("READPATH_NFS_SERVER")
    built = [ROOT / "target" / profile / "examples/nfs_serve" for profile in ("release", "debug")]
    there = [path for path in ([Path(named)] if named else built) if path.exists()]
    if not there:
        pytest.skip("the server is not built: cargo build -p readpath --example nfs_serve")

    @contextlib.contextmanager
    def serve(path):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([there[0], path], **pipes) as server:
            serve.processes.append(server)
            try:
                yield server.stdout.readline().strip()
            finally:
                server.stdin.close()

    serve.processes = []
    return serve
