"""What containers forbid, forbidden in a process of its own: io_uring and userfaultfd, as Docker's default
profile does, and AIO besides, where that is asked for (seccomp(2))."""

import ctypes
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

# The numbers of the kernel's tables (asm/unistd.h): the first three are the same on every machine.
RING = [425, 426, 427]
USERFAULTFD = {"x86_64": 323, "aarch64": 282}[platform.machine()]
IOCTL = {"x86_64": 16, "aarch64": 29}[platform.machine()]
AIO = {"x86_64": [206, 209], "aarch64": [0, 2]}[platform.machine()]
NEW_USERFAULTFD = 0xAA00  # USERFAULTFD_IOC_NEW, of /dev/userfaultfd


def forbid(calls):
    """Has these system calls, and userfaultfd, fail with EPERM from now on."""
    load, if_equal, give = 0x20, 0x15, 0x06  # BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ, BPF_RET
    refuse = (give, 0, 0, 0x0005_0001)  # SECCOMP_RET_ERRNO | EPERM
    filter = [(load, 0, 0, 0)]  # the call's number
    for call in [*calls, USERFAULTFD]:
        filter += [(if_equal, 0, 1, call), refuse]
    filter += [(if_equal, 0, 3, IOCTL), (load, 0, 0, 24), (if_equal, 0, 1, NEW_USERFAULTFD), refuse]
    filter += [(give, 0, 0, 0x7FFF_0000)]  # SECCOMP_RET_ALLOW
    steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in filter))
    program = struct.pack("HxxxxxxP", len(filter), ctypes.addressof(steps))
    system = ctypes.CDLL(None, use_errno=True)
    assert system.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert system.prctl(22, 2, program) == 0, os.strerror(ctypes.get_errno())  # PR_SET_SECCOMP


def run_without(calls, code):
    """Runs the code in a process that may not make these calls; gives what it printed."""
    code = f"import forbidden\nforbidden.forbid({calls!r})\n{code}"
    command = [sys.executable, "-c", code]
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parent))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
