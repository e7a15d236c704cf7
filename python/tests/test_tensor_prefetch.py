"""`safe_open.prefetch`: order, limit and errors of a plan of tensors."""

import errno
import mmap
import os
import random
import resource
import threading
import time

import pytest

import readpath
from readpath.tensor_prefetch import PlannedRange, PlannedReads

numpy = pytest.importorskip("numpy")
pytest.importorskip("safetensors")
from safetensors.numpy import save_file  # noqa: E402

from test_forks_of_urls import status_of_child  # noqa: E402

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
        planned.start([lambda begin, end: self.pieces.append((begin, end))], self.ended.set)


def plan_of(ranges, piece_bytes, ahead_bytes):
    """A plan of ranges of one file."""
    return PlannedReads([PlannedRange(0, *one) for one in ranges], [piece_bytes], ahead_bytes)


def test_pieces_follow_the_plan_and_stop_at_the_limit():
    # Two ranges in plan order, pieces of 100 bytes at multiples of 100, a limit of 200 bytes.
    planned = plan_of([(450, 620), (0, 150)], 100, 200)
    requests = Requests(planned)
    # After 50 + 100 + 20 bytes the limit allows one piece more: 170 < 200, 270 >= 200.
    wait_until(lambda: len(requests.pieces) == 4)
    assert requests.pieces == [(450, 500), (500, 600), (600, 620), (0, 100)]
    assert not requests.ended.wait(0.05)
    # A load of bytes outside the plan makes no room; of 100 bytes within it, it does.
    planned.on_load(0, 700, 900)
    assert not requests.ended.wait(0.05)
    planned.on_load(0, 500, 600)
    assert requests.ended.wait(60)
    assert requests.pieces[4:] == [(100, 150)]


def test_loaded_pieces_are_not_requested():
    planned = plan_of([(0, 400)], 100, 1000)
    planned.on_load(0, 100, 300)
    requests = Requests(planned)
    assert requests.ended.wait(60)
    assert requests.pieces == [(0, 100), (300, 400)]


def test_a_range_in_a_plan_twice_makes_room_twice():
    planned = plan_of([(0, 100), (0, 100), (100, 200)], 100, 100)
    requests = Requests(planned)
    planned.on_load(0, 0, 100)
    assert requests.ended.wait(60)
    assert (100, 200) in requests.pieces


def test_stop_ends_a_plan_at_its_limit():
    planned = plan_of([(0, 1000)], 100, 100)
    requests = Requests(planned)
    wait_until(lambda: requests.pieces)
    planned.stop()
    assert requests.ended.wait(60)
    assert requests.pieces == [(0, 100)]


def test_a_plan_of_several_files_has_one_limit_in_its_order():
    # Files 0 and 2 have requests. A piece has 100 bytes in file 0, and 50 in file 2.
    ranges = [(2, 0, 100), (0, 0, 100), (1, 0, 100), (2, 100, 200), (0, 100, 200)]
    planned = PlannedReads([PlannedRange(*one) for one in ranges], [100, 100, 50], 250)
    assert planned.first_ranges() == [(2, 0, 100), (0, 0, 100), (1, 0, 50)]
    pieces, ended = [], threading.Event()

    def request_of(file):
        return lambda begin, end: pieces.append((file, begin, end))

    planned.start([request_of(0), None, request_of(2)], ended.set)
    wait_until(lambda: len(pieces) == 3)
    # File 1 counts without a request: 100 + 100 + 100 bytes have reached the limit.
    assert pieces == [(2, 0, 50), (2, 50, 100), (0, 0, 100)]
    assert not ended.wait(0.05)
    # These bytes are in the plan of other files. Bytes of the same offsets of file 1 make room.
    planned.on_load(0, 300, 400)
    assert not ended.wait(0.05)
    planned.on_load(1, 0, 100)
    wait_until(lambda: len(pieces) == 4)
    assert pieces[3] == (2, 100, 150)
    planned.on_load(2, 0, 100)
    assert ended.wait(60)
    assert pieces[4:] == [(2, 150, 200), (0, 100, 200)]


class Compared(int):
    """An offset that counts its comparisons."""

    total = 0

    def _counted(name):
        def compare(self, other):
            Compared.total += 1
            return getattr(int, name)(self, other)

        return compare

    __lt__, __gt__, __le__, __ge__ = map(_counted, ["__lt__", "__gt__", "__le__", "__ge__"])


@pytest.mark.parametrize("file", [0, 1])
def test_a_load_examines_only_the_ranges_that_it_overlaps(file):
    """1,000 ranges of file 1, and one of file 0. A binary search over 1,000 takes 10 steps."""
    ranges = [PlannedRange(0, 0, 100)]
    ranges += [PlannedRange(1, Compared(at), Compared(at + 100)) for at in range(0, 100_000, 100)]
    planned = PlannedReads(ranges, [100, 100], 1 << 30)
    Compared.total = 0
    planned.on_load(file, Compared(0), Compared(100))
    assert planned._loaded == 100
    assert Compared.total <= 40
    assert not planned._is_unloaded(file, Compared(0), Compared(100))
    assert planned._is_unloaded(1, Compared(50_000), Compared(50_001))
    assert Compared.total <= 80


def test_loads_of_overlapping_ranges_count_each_byte_once_per_range():
    """A drawn plan and drawn loads, next to a count of each byte of each range."""
    draw = random.Random(1)

    def drawn():
        begin, end = sorted((draw.randrange(200), draw.randrange(200)))
        return begin, end

    for _ in range(50):
        ranges, loaded = [drawn() for _ in range(12)], set()
        planned = plan_of(ranges, 100, 1 << 30)
        for _ in range(20):
            begin, end = drawn()
            planned.on_load(0, begin, end)
            loaded |= set(range(begin, end))
            assert planned._loaded == sum(len(loaded & set(range(*one))) for one in ranges)
            first, last = drawn()
            left = any(set(range(first, last)) & set(range(*one)) - loaded for one in ranges)
            assert planned._is_unloaded(0, first, last) == left


def test_a_child_of_fork_loads_while_the_parent_held_the_lock_of_the_plan():
    planned = plan_of([(0, 400)], 100, 1000)

    def check():
        planned.on_load(0, 0, 100)
        return planned._loaded == 100

    held, proceed = threading.Event(), threading.Event()

    def hold():
        with planned._change:
            held.set()
            proceed.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    try:
        assert status_of_child(check) == 0
    finally:
        proceed.set()
        holder.join()


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


@pytest.fixture(scope="module")
def watched():
    """A file system in memory, and the URL, start and end of each range that is fetched from it."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem

    fetched = []

    class Watched(MemoryFileSystem):
        protocol = "watched"
        store: dict = {}
        pseudo_dirs = [""]

        def cat_file(self, path, start=None, end=None, **options):
            fetched.append((path, start, end))
            return super().cat_file(path, start, end, **options)

    fsspec.register_implementation("watched", Watched, clobber=True)
    return fsspec.filesystem("watched"), fetched


@pytest.fixture
def fetched(path, watched):
    """The fetched ranges of watched://weights and of watched://more, a file of one tensor of 1 MiB."""
    system, fetched = watched
    system.pipe("watched://weights", path.read_bytes())
    save_file({"d": numpy.full((256, 1024), 3, "f4")}, path.parent / "more")
    system.pipe("watched://more", (path.parent / "more").read_bytes())
    return fetched


def test_files_of_a_plan_share_the_limit(fetched):
    """A limit of 1.5 MiB: the first tensor of 1 MiB, and half of the second, which is in the other file."""
    with readpath.safe_open(["watched://weights", "watched://more"]) as file:
        fetched.clear()
        file.prefetch(["d", "c", "b", "a"], ahead_bytes=1536 * KIB)
        wait_until(lambda: any(name == "watched://more" for name, _, _ in fetched))
        time.sleep(0.1)
        # Ends of requests are whole pages. The header is shorter than 512 bytes.
        ends = {end for name, _, end in fetched if name == "watched://weights"}
        assert max(ends) <= 2 * MIB + 512 * KIB + 8 * KIB and min(ends) > 2 * MIB
        assert (file.get_tensor("c") == 2).all() and (file.get_tensor("d") == 3).all()


def test_a_url_is_prefetched_into_its_path(fetched):
    with readpath.safe_open("watched://weights") as file:
        fetched.clear()
        file.prefetch(["b"], ahead_bytes=512 * KIB)
        # The tensor `b` begins a MiB behind the header, which is shorter than 512 bytes.
        wait_until(lambda: any(start >= MIB for _, start, _ in fetched))
        assert not any(end > 2 * MIB + 512 for _, _, end in fetched)
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


def test_plans_end_with_their_file(path, descriptors):
    threads = {thread.name for thread in threading.enumerate()}
    assert "readpath-prefetch" not in threads
    before = descriptors()
    file = readpath.safe_open(path)
    file.prefetch(["a", "b", "c"], ahead_bytes=1)
    file.prefetch(["b"], ahead_bytes=1)
    del file
    wait_until(lambda: all(t.name != "readpath-prefetch" for t in threading.enumerate()))
    assert descriptors() <= before


def test_only_files_of_a_plan_need_descriptors_and_a_failed_plan_leaves_the_last_one(
    tmp_path, descriptors
):
    """With four free descriptors, a plan of 1 of 10 files starts, and one of 10 files fails."""
    for at in range(10):
        save_file({f"t{at}": numpy.full((256, 1024), at, "f4")}, tmp_path / f"{at}")
    names = [f"t{at}" for at in range(10)]
    before = descriptors()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with readpath.safe_open([tmp_path / f"{at}" for at in range(10)]) as file:
        opened = len(os.listdir("/proc/self/fd"))
        highest = max(map(int, os.listdir("/proc/self/fd")))
        fillers = [os.open("/", os.O_RDONLY) for _ in range(highest + 1 - opened)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 5, limits[1]))
            file.prefetch(["t3", ("t4", slice(0, 0))], ahead_bytes=1)
            last = file._planned
            with pytest.raises(OSError) as caught:
                file.prefetch(names)
            assert caught.value.errno == errno.EMFILE
            assert file._planned is last and not last._is_stopped
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for filler in fillers:
                os.close(filler)
        assert (file.get_tensor("t3") == 3).all()
    wait_until(lambda: all(t.name != "readpath-prefetch" for t in threading.enumerate()))
    assert descriptors() <= before
