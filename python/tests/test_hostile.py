"""Invalid calls of any kind raise an exception, and the interpreter continues."""

import os
import subprocess
import sys
import textwrap
import threading

import pytest


BEFORE = """
import os, resource, readpath
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
path, sparse_path = {paths!r}
file, sparse = readpath.open(path), readpath.open(sparse_path)

class Endless:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter([(0, 4)])

def forever():
    while True:
        yield (0, 4)
"""


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    path, sparse = folder / "data.bin", folder / "sparse.bin"
    path.write_bytes(b"0123456789")
    with sparse.open("wb") as file:
        file.truncate(1 << 43)
    return str(path), str(sparse)


def told(paths, text):
    """What a program says last: it is one of its own, for it may be ended by what it does."""
    program = BEFORE.format(paths=paths) + textwrap.dedent(text)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode in (0, 1), f"{ran.returncode}: {ran.stderr}"
    lines = (ran.stdout + ran.stderr).strip().splitlines()
    # A note after the exception names the argument.
    return [line for line in lines if not line.startswith("while processing")][-1]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        # The length reported by an object may be wrong, and must not determine an allocation.
        ("print(file.readat_many(Endless(2**40)))", "[b'0123']"),
        ("print(file.readat_many(Endless(2**62)))", "[b'0123']"),
        ("print(file.readinto_many(Endless(2**62), bytearray(4)))", "TypeError"),
        ("file.readat_many(range(2**40))", "TypeError"),
        ("file.prefetch_many(Endless(2**62)); print('on')", "on"),
        # More than there is memory for.
        ("sparse.read()", "MemoryError"),
        ("sparse.readat(0, 2**62)", "MemoryError"),
        ("sparse.readat_many([(0, 2**50)] * 3)", "MemoryError"),
        ("sparse._start(0, 2**62)", "MemoryError: there is no memory for 8796093022208 bytes"),
        ("import asyncio; asyncio.run(sparse.areadat(0, 2**62))", "MemoryError"),
        ("readpath.map(sparse_path)", "OSError"),
        ("readpath.open(path, memory=2**62)", "ValueError"),
        ("readpath.open(path, page_cache='own', depth=2**40, kernel_cache=False)", "ValueError"),
        # Past the end.
        ("print(sparse.readat(2**43 - 3, 2**63))", r"b'\x00\x00\x00'"),
        ("print(file.readat(2**64 - 1, 2**64 - 1))", "b''"),
        ("print(file.readinto_at(2**63, bytearray(3)))", "0"),
        ("file.seek(2**63 - 1); print(file.read(), file.readline())", "b'' b''"),
        ("file.seek(2**63)", "OverflowError"),
        ("file.readat(-1, 5)", "ValueError"),
        ("file.readat(0, -5)", "ValueError"),
        ("file.readat_many([(0, -5)])", "ValueError"),
        ("file.readinto_many([-1], bytearray(3))", "ValueError"),
        ("file.readat(2**64, 5)", "OverflowError"),
        ("file.prefetch(2**64 - 1, 2**64 - 1); print('on')", "on"),
    ],
)
def test_impossible_numbers_raise_exceptions(paths, text, answer):
    assert told(paths, text).startswith(answer)


def test_planner_rejects_or_survives_any_claimed_file_length():
    from readpath import _native

    with pytest.raises(ValueError, match="none has 2⁶³ or more"):
        _native.Planner(2**64 - 1, 1 << 20, "adaptive", 1 << 18, 4)
    planner = _native.Planner(2**63 - 1, 1 << 20, "adaptive", 1 << 18, 4)
    with pytest.raises(MemoryError):
        planner.start([(0, 2**63 - 1)])
    # It is as it was.
    (read,) = planner.start([(0, 4)])
    while True:
        ranges, ended = planner.poll()
        if ended:
            break
        for name, first, end in ranges:
            planner.finish(name, b"x" * (end - first))
    assert ended == [read] and planner.take(read) == b"xxxx"


def ended_read(planner, size):
    """The number of a read of `size` bytes, which has ended."""
    (read,) = planner.start([(0, size)])
    while True:
        ranges, ended = planner.poll()
        if read in ended:
            return read
        for number, first, end in ranges:
            planner.finish(number, b"x" * (end - first))


def test_a_large_read_taken_by_two_threads_has_its_bytes_once():
    from readpath import _native

    # Larger than half of the cache: the read has a buffer of its own.
    size = 1 << 20
    planner = _native.Planner(64 << 20, 1 << 20, "none", 1 << 20, 4)
    barrier = threading.Barrier(2)
    rounds, taken = 200, []

    def take(round_, read):
        barrier.wait()
        try:
            taken.append((round_, planner.take(read) == b"x" * size))
        except ValueError as error:
            assert "taken already" in str(error)

    interval = sys.getswitchinterval()
    # The threads take turns as often as they can.
    sys.setswitchinterval(1e-6)
    try:
        for round_ in range(rounds):
            read = ended_read(planner, size)
            threads = [threading.Thread(target=take, args=(round_, read)) for _ in range(2)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
    finally:
        sys.setswitchinterval(interval)
    assert taken == [(round_, True) for round_ in range(rounds)]


@pytest.mark.parametrize(
    "text",
    [
        "sparse.prefetch(0, 2**63)",
        "sparse.advise('willneed')",
        "sparse.prefetch_many([(at << 26, 1 << 26) for at in range(1 << 17)])",
        "sparse.readat(0, 1 << 32)",
        "sparse.readline()",
        "file.readat_many(forever())",
    ],
)
def test_interrupt_ends_a_long_call(paths, text):
    if os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 4 << 30:
        pytest.skip("the kernel keeps some of what is read ahead")
    program = f"""
    import signal
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        {text}
        print("it was over before")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        os._exit(0)
    """
    assert told(paths, program) in ("interrupted", "it was over before")


def test_planner_is_called_back_by_a_buffer():
    """The planner's lock is free while the code of a buffer runs, which a class has from Python 3.12 on."""
    program = """
    from readpath import _native
    planner = _native.Planner(4096, 1 << 20, "none", 4096, 1)
    [read] = planner.start([(0, 0)])
    planner.poll()
    class Hostile:
        def __buffer__(self, flags):
            print(planner.counters()["fetches"])
            return memoryview(bytearray(8))
    print(planner.take_into(read, Hostile()))
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=30)
    if sys.version_info >= (3, 12):
        assert ran.stdout.split() == ["0", "0"], ran.stderr
    else:
        assert ran.stderr.strip().splitlines()[-1].startswith("TypeError"), ran.stderr
