"""`safe_open.prefetch`: order, limit and errors of a plan of tensors."""

import mmap
import os
import threading
import time

import pytest

import readpath
from readpath.tensor_prefetch import PlannedReads

numpy = pytest.importorskip("numpy")
pytest.importorskip("safetensors")
from safetensors.numpy import save_file  # noqa: E402

KIB = 1 << 10
MIB = 1 << 20


def wait_until(condition):
    """Waits for another thread."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


class Requests:
    """Pieces that a plan requests, and its end."""

    def __init__(self, planned):
        self.pieces, self.ended = [], threading.Event()
        planned.start(lambda begin, end: self.pieces.append((begin, end)), self.ended.set)


def test_pieces_follow_the_plan_and_stop_at_the_limit():
    # Two ranges in plan order, pieces of 100 bytes at multiples of 100, a limit of 200 bytes.
    planned = PlannedReads([(450, 620), (0, 150)], 100, 200)
    requests = Requests(planned)
    # After 50 + 100 + 20 bytes the limit allows one piece more: 170 < 200, 270 >= 200.
    wait_until(lambda: len(requests.pieces) == 4)
    assert requests.pieces == [(450, 500), (500, 600), (600, 620), (0, 100)]
    assert not requests.ended.wait(0.05)
    # A load of bytes outside the plan makes no room; of 100 bytes within it, it does.
    planned.on_load(700, 900)
    assert not requests.ended.wait(0.05)
    planned.on_load(500, 600)
    assert requests.ended.wait(60)
    assert requests.pieces[4:] == [(100, 150)]


def test_loaded_pieces_are_not_requested():
    planned = PlannedReads([(0, 400)], 100, 1000)
    planned.on_load(100, 300)
    requests = Requests(planned)
    assert requests.ended.wait(60)
    assert requests.pieces == [(0, 100), (300, 400)]


def test_a_range_in_a_plan_twice_makes_room_twice():
    planned = PlannedReads([(0, 100), (0, 100), (100, 200)], 100, 100)
    requests = Requests(planned)
    planned.on_load(0, 100)
    assert requests.ended.wait(60)
    assert (100, 200) in requests.pieces


def test_stop_ends_a_plan_at_its_limit():
    planned = PlannedReads([(0, 1000)], 100, 100)
    requests = Requests(planned)
    wait_until(lambda: requests.pieces)
    planned.stop()
    assert requests.ended.wait(60)
    assert requests.pieces == [(0, 100)]


@pytest.fixture
def path(tmp_path):
    """Three tensors of 1 MiB, in this order, whose pages are not in the page cache."""
    made = {name: numpy.full((256, 1024), at, "f4") for at, name in enumerate("abc")}
    save_file(made, tmp_path / "weights")
    with open(tmp_path / "weights", "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return tmp_path / "weights"


def resident(path):
    """Whether the first page of each MiB of the file's tensors is in the page cache."""
    found = []
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        first = 8 + int.from_bytes(os.pread(file.fileno(), 8, 0), "little")
        for tensor in range(3):
            at = first + tensor * 1024 * KIB + mmap.PAGESIZE
            try:
                found.append(os.preadv(file.fileno(), [bytearray(1)], at, os.RWF_NOWAIT) == 1)
            except BlockingIOError:
                found.append(False)
    return found


def test_prefetched_tensors_arrive_in_the_page_cache(path):
    if any(resident(path)):
        pytest.skip("this file system keeps written pages in memory")
    with readpath.safe_open(path) as file:
        file.prefetch(["c", ("a", slice(0, 256))])
        wait_until(lambda: resident(path)[0] and resident(path)[2])
        assert (file.get_tensor("c") == 2).all()


def test_a_url_is_prefetched_into_its_path(path):
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem

    fetched = []

    class Watched(MemoryFileSystem):
        protocol = "watched"
        store: dict = {}
        pseudo_dirs = [""]

        def cat_file(self, path, start=None, end=None, **options):
            fetched.append((start, end))
            return super().cat_file(path, start, end, **options)

    fsspec.register_implementation("watched", Watched, clobber=True)
    fsspec.filesystem("watched").pipe("watched://weights", path.read_bytes())
    with readpath.safe_open("watched://weights") as file:
        fetched.clear()
        file.prefetch(["b"], ahead_bytes=512 * KIB)
        # The tensor `b` begins a MiB behind the header, which is shorter than 512 bytes.
        wait_until(lambda: any(start >= MIB for start, _ in fetched))
        assert not any(end > 2 * MIB + 512 for _, end in fetched)
        assert (file.get_tensor("b") == 1).all()


def test_a_wrong_plan_raises_and_starts_nothing(path):
    with readpath.safe_open(path) as file:
        for plan, kind in (
            (["d"], KeyError),
            ([("a", 256)], IndexError),
            ([("a", 1.5)], TypeError),
        ):
            with pytest.raises(kind) as error:
                file.prefetch(["a", *plan])
            assert isinstance(error.value, readpath.SafetensorError)
        with pytest.raises(ValueError, match="ahead_bytes"):
            file.prefetch(["a"], ahead_bytes=0)
    with pytest.raises(ValueError, match="closed"):
        file.prefetch(["a"])


def test_plans_end_with_their_file(path):
    threads = {thread.name for thread in threading.enumerate()}
    assert "readpath-prefetch" not in threads
    descriptors = len(os.listdir("/proc/self/fd"))
    file = readpath.safe_open(path)
    file.prefetch(["a", "b", "c"], ahead_bytes=1)
    file.prefetch(["b"], ahead_bytes=1)
    del file
    wait_until(lambda: all(t.name != "readpath-prefetch" for t in threading.enumerate()))
    assert len(os.listdir("/proc/self/fd")) == descriptors
