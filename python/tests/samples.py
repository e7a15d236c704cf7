"""Helpers of several tests: small jobs, and work in another process."""

import os

import readpath

SEQUENTIAL = readpath.Job.of("seq", rw="read", bs="16k", size="8m")
RANDOM = readpath.Job.of("rand", rw="randread", bs="64k", size="256m", io_size="16m")
MAPPED = readpath.Job.of("map", rw="randread", bs="64k", size="64m", io_size="4m", ioengine="mmap")


def in_child(work):
    """Returns True if `work()` is true in a child of fork."""
    process = os.fork()
    if process == 0:
        is_true = False
        try:
            is_true = work()
        finally:
            os._exit(0 if is_true else 1)
    return os.waitpid(process, 0)[1] == 0
