"""Files close with their last reference. A file sent to another process is the same file there."""

import copy
import gc
import gzip
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import weakref

import pytest

import readpath

fsspec = pytest.importorskip("fsspec")
numpy = pytest.importorskip("numpy")
DATA = bytes(range(256)) * 4096


@pytest.fixture
def stored(tmp_path):
    """The same bytes in memory, in a file, and compressed."""
    fsspec.filesystem("memory").pipe("/lifetimes", DATA)
    (tmp_path / "data").write_bytes(DATA)
    with gzip.open(tmp_path / "data.gz", "wb") as file:
        file.write(DATA)
    on_disk = f"file://{tmp_path}/data"
    yield [("memory://lifetimes", {}), (on_disk, {}), (f"{on_disk}.gz", {"compression": "gzip"})]
    fsspec.filesystem("memory").rm("/lifetimes")


def test_remote_file_is_freed_with_its_last_reference(stored):
    """Whether it was closed or not. No collection of cycles is needed for files of ours."""
    for url, options in stored:
        for is_closed in (True, False):
            gc.collect()
            gc.disable()
            try:
                file = readpath.open(url, **options)
                assert file.read(10) == DATA[:10]
                gone = weakref.ref(file)
                if is_closed:
                    file.close()
                del file
                assert gone() is None, (url, is_closed)
            finally:
                gc.enable()


def test_dropped_remote_files_leak_no_memory(stored):
    resident = []
    for round in range(3):
        for _ in range(60):
            file = readpath.open(stored[0][0])
            assert len(file.read()) == len(DATA)
        del file
        gc.collect()
        resident.append(int(open("/proc/self/statm").read().split()[1]) * 4096)
    # Each of these files held 1.2 MiB: 72 MiB a round.
    assert resident[2] - resident[1] < 16 << 20


def written(path, seed):
    """A file of safetensors of two tensors, written by hand."""
    one = numpy.random.default_rng(seed).integers(0, 255, (30, 40), "u1")
    two = numpy.array(seed, "<f8")
    header = {
        "one": {"dtype": "U8", "shape": [30, 40], "data_offsets": [0, 1200]},
        "two": {"dtype": "F64", "shape": [], "data_offsets": [1200, 1208]},
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + one.tobytes() + two.tobytes())
    return one


def test_unclosed_weights_leave_no_descriptor(tmp_path, descriptors):
    expected = written(tmp_path / "weights", 1)
    before = descriptors()
    for _ in range(20):
        file = readpath.safe_open(tmp_path / "weights")
        assert (file.get_tensor("one") == expected).all()
        part = file.get_slice("one")
        del file
        assert (part[3:5] == expected[3:5]).all()
        del part
    gc.collect()
    assert descriptors() <= before


def test_remote_weights_are_freed_with_their_last_reference(tmp_path):
    expected = written(tmp_path / "weights", 2)
    fsspec.filesystem("memory").put_file(str(tmp_path / "weights"), "/weights")
    file = readpath.safe_open("memory://weights")
    gone = weakref.ref(file._files[0]._file)
    assert (file.get_tensor("one") == expected).all()
    del file
    gc.collect()
    assert gone() is None
    assert (readpath.load_file("memory://weights")["one"] == expected).all()


CHILD = """
import pickle, sys
for opened in pickle.load(sys.stdin.buffer):
    print(int(opened.get_tensor("one").sum()), float(opened.get_slice("two")[()])) if hasattr(opened, "keys") else print(
        int(opened[2:7].sum()))
"""


def test_pickled_weights_are_the_same_file_in_another_process(tmp_path, monkeypatch):
    expected = written(tmp_path / "weights", 3)
    written(tmp_path / "other", 4)
    monkeypatch.chdir(tmp_path)
    file = readpath.safe_open("weights")
    descriptor = file._files[0]._file
    sent = pickle.dumps([file, file.get_slice("one"), readpath.safe_open("weights", backend="pread")])
    monkeypatch.chdir("/")
    # In the child this number is of the other file.
    other = os.open(tmp_path / "other", os.O_RDONLY)
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    with subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=False,
        preexec_fn=lambda: os.dup2(other, descriptor),
        close_fds=False,
    ) as child:
        found, _ = child.communicate(sent, timeout=60)
    os.close(other)
    both = f"{int(expected.sum())} 3.0"
    assert found.decode().splitlines() == [both, str(int(expected[2:7].sum())), both]


def test_weights_in_a_forked_process_are_the_same_file(tmp_path):
    expected = written(tmp_path / "weights", 3)
    file = readpath.safe_open(tmp_path / "weights")
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=lambda: queue.put(int(file.get_tensor("one").sum())))
    process.start()
    process.join(60)
    assert process.exitcode == 0 and queue.get() == int(expected.sum())


def test_copied_weights_reopen_the_file(tmp_path):
    expected = written(tmp_path / "weights", 5)
    file = readpath.safe_open(tmp_path / "weights", backend="pread")
    for again in (copy.copy(file), copy.deepcopy(file), pickle.loads(pickle.dumps(file))):
        descriptor = getattr(again._files[0]._file, "name", None)
        assert descriptor is not None
        with again:
            assert (again.get_tensor("one") == expected).all()
    assert (file.get_tensor("one") == expected).all()
    (tmp_path / "weights").unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(pickle.dumps(file))
