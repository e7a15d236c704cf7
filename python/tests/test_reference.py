"""Random calls of several threads beside the same bytes in memory: each gives what they say, or an error that was made."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import readpath
from readpath.reader import Options, Reader, on_threads

SIZE = 1_300_007
CONTENT = random.Random(4).randbytes(SIZE)
ROUNDS = int(os.environ.get("READPATH_ROUNDS", "60"))


def place(draw, most=60_000):
    """An offset, a size, and the bytes there; also past the end."""
    offset = draw.randrange(SIZE + 5_000)
    size = draw.randrange(draw.choice([10, 4_096, most]))
    return offset, size, CONTENT[offset : offset + size]


def at_once(work, threads=3):
    """Does it on several threads; the first error of theirs is the test's."""
    errors = []

    def guarded(number):
        try:
            work(random.Random(number))
        except BaseException as error:
            errors.append(error)

    all_threads = [threading.Thread(target=guarded, args=(number,)) for number in range(threads)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    if errors:
        raise errors[0]


class Storage:
    """Answers late, in any order, and sometimes with an error."""

    def __init__(self, fails_one_of):
        self.fails_one_of = fails_one_of
        self.draw = random.Random(1)
        self.lock = threading.Lock()

    def fetch(self, start, end):
        with self.lock:
            fails = self.fails_one_of and self.draw.randrange(self.fails_one_of) == 0
        if fails:
            raise OSError(5, "made by the test")
        return CONTENT[start:end]


@pytest.mark.parametrize("fails_one_of", [0, 15])
@pytest.mark.parametrize("memory", ["64KiB", "1MiB"])
def test_planner_equals_the_model_with_little_memory_and_errors(memory, fails_one_of):
    with ThreadPoolExecutor(8) as threads:
        storage = Storage(fails_one_of)
        reader = Reader(on_threads(storage.fetch, threads), SIZE, Options(memory, depth=5))

        def work(draw):
            for _ in range(ROUNDS):
                offset, size, right = place(draw)
                try:
                    match draw.randrange(5):
                        case 0 | 1:
                            assert reader.read(offset, size) == right
                        case 2:
                            buffer = bytearray(size)
                            count = reader.read_into(offset, buffer)
                            assert buffer[:count] == right
                        case 3:
                            places = [place(draw) for _ in range(draw.randrange(40))]
                            many = reader.read_many([(at, size) for at, size, _ in places])
                            assert many == [right for _, _, right in places]
                        case _:
                            reader.prefetch([(offset, size)])
                            reader.advise(draw.choice(["normal", "random", "sequential"]))
                except OSError as error:
                    assert fails_one_of and error.errno == 5

        at_once(work)
        # An error was of those that met it.
        storage.fails_one_of = 0
        assert b"".join(reader.read(at, 100_000) for at in range(0, SIZE, 100_000)) == CONTENT
        reader.close()


@pytest.mark.parametrize("options", [{}, {"kernel_cache": False, "memory": "128KiB", "depth": 3}])
def test_file_equals_the_model_for_all_calls_and_in_children(tmp_path, options):
    path = tmp_path / "data.bin"
    path.write_bytes(CONTENT)
    with readpath.open(path, **options) as file:

        def act(draw):
            offset, size, right = place(draw)
            match draw.randrange(6):
                case 0 | 1:
                    assert file.readat(offset, size) == right
                case 2:
                    buffer = bytearray(size)
                    assert buffer[: file.readinto_at(offset, buffer)] == right
                case 3:
                    places = [place(draw) for _ in range(draw.randrange(300))]
                    many = file.readat_many([(at, size) for at, size, _ in places])
                    assert many == [right for _, _, right in places]
                case 4:
                    offsets = [draw.randrange(SIZE - 64) for _ in range(50)]
                    got = np.zeros((50, 64), dtype=np.uint8)
                    assert file.readinto_many(np.array(offsets), got) == [64] * 50
                    assert got.tobytes() == b"".join(CONTENT[at : at + 64] for at in offsets)
                case _:
                    file.prefetch(offset, size)
                    file.advise(draw.choice(["normal", "random", "sequential", "dontneed"]))

        at_once(lambda draw: [act(draw) for _ in range(ROUNDS)])
        for seed in range(5):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    draw = random.Random(seed)
                    for _ in range(20):
                        act(draw)
                    code = 0
                finally:
                    os._exit(code)
            act(random.Random(seed + 50))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_mapping_equals_the_model_for_all_calls(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(CONTENT)
    try:
        mapping = readpath.map(path, memory="256KiB", kernel_cache=False)
    except OSError as error:
        pytest.skip(str(error))
    with mapping:

        def work(draw):
            view = memoryview(mapping)
            for _ in range(ROUNDS):
                offset, size, right = place(draw)
                end = min(offset + size, SIZE)
                match draw.randrange(4):
                    case 0 | 1:
                        assert view[offset:end] == right
                    case 2:
                        if offset < SIZE:
                            mapping.load(offset, end - offset)
                            assert bytes(mapping[offset:end]) == right
                    case _:
                        mapping.advise(draw.choice(["willneed", "dontneed", "random"]), offset, size)
            view.release()

        at_once(work)
