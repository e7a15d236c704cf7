"""Small jobs that many tests run."""

import readpath

SEQUENTIAL = readpath.Job.of("seq", rw="read", bs="16k", size="8m")
RANDOM = readpath.Job.of("rand", rw="randread", bs="64k", size="256m", io_size="16m")
MAPPED = readpath.Job.of("map", rw="randread", bs="64k", size="64m", io_size="4m", ioengine="mmap")
