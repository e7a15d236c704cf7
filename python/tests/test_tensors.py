"""Safetensors files, compared with the package safetensors."""

import errno
import json
import mmap
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import threading
import types
from pathlib import Path

import pytest

import readpath
from readpath.tensor_frameworks import Place, torch_type

numpy = pytest.importorskip("numpy")
oracle = pytest.importorskip("safetensors")
from safetensors.numpy import load_file, save, save_file  # noqa: E402

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
import delayed_store  # noqa: E402

TYPES = ["?", "u1", "i1", "<u2", "<i2", "<f2", "<u4", "<i4", "<f4", "<u8", "<i8", "<f8"]


def tensors(seed):
    draw = numpy.random.default_rng(seed)
    made = {
        f"{kind}{seed}": draw.integers(0, 2 if kind == "?" else 100, (nth + 1, 7, 11)).astype(kind)
        for nth, kind in enumerate(TYPES)
    }
    made[f"one{seed}"] = numpy.array(seed, "<f4")
    made[f"none{seed}"] = numpy.zeros((0, 5), "<f4")
    made[f"large{seed}"] = draw.standard_normal((600, 1_001)).astype("<f4")
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensors")
    for seed in (1, 2):
        save_file(tensors(seed), folder / f"{seed}.safetensors", {"seed": str(seed)})
    return folder


@pytest.fixture(params=["path", "http", "nfs"])
def name(request, folder):
    """The first file, by each way to it."""
    path = folder / "1.safetensors"
    if request.param == "path":
        yield path
    elif request.param == "http":
        pytest.importorskip("aiohttp")
        with delayed_store.running(path, 0) as url:
            yield url
    else:
        with request.getfixturevalue("nfs_server")(path) as url:
            yield url


def same(ours, expected):
    assert list(ours) == list(expected) or set(ours) == set(expected)
    for tensor, array in expected.items():
        assert ours[tensor].dtype == array.dtype and ours[tensor].shape == array.shape, tensor
        assert ours[tensor].tobytes() == array.tobytes(), tensor
    return True


def test_load_file_equals_that_of_safetensors(folder, name):
    assert same(readpath.load_file(name), load_file(folder / "1.safetensors"))


def test_load_file_merges_several_files(folder):
    paths = [folder / f"{seed}.safetensors" for seed in (1, 2)]
    assert same(readpath.load_file(paths), load_file(paths[0]) | load_file(paths[1]))
    with pytest.raises(ValueError, match="is in .* and in "):
        readpath.load_file([paths[0], paths[0]])


def test_safe_open_equals_that_of_safetensors(folder, name):
    with oracle.safe_open(folder / "1.safetensors", "np") as expected:
        with readpath.safe_open(name, framework="np", device="cpu") as file:
            assert file.keys() == sorted(expected.keys())
            assert file.offset_keys() == expected.offset_keys()
            assert file.metadata() == expected.metadata() == {"seed": "1"}
            for tensor in random.Random(1).sample(file.keys(), len(file.keys())):
                array = file.get_tensor(tensor)
                assert (array == expected.get_tensor(tensor)).all(), tensor
                part, other = file.get_slice(tensor), expected.get_slice(tensor)
                assert part.get_shape() == other.get_shape()
                assert part.get_dtype() == other.get_dtype()
            with pytest.raises(KeyError, match="there is no tensor 'other'"):
                file.get_tensor("other")


SLICES = [
    numpy.s_[:], numpy.s_[10:20], numpy.s_[-5:], numpy.s_[:, :10], numpy.s_[3:500, 7:9], numpy.s_[5],
    numpy.s_[-1, 3], numpy.s_[..., 2], numpy.s_[100:100], numpy.s_[::-50], numpy.s_[7:300:9, ::-2],
    numpy.s_[590:5:-7, :3], numpy.s_[5:2], numpy.s_[...], numpy.s_[:, 1000],
]  # fmt: skip


def test_tensor_slices_equal_those_of_the_array(folder, name):
    whole = load_file(folder / "1.safetensors")["large1"]
    with readpath.safe_open(name) as file:
        part = file.get_slice("large1")
        for index in SLICES:
            got = part[index]
            assert got.shape == whole[index].shape and (got == whole[index]).all(), index
        with pytest.raises(IndexError):
            part[600]
        assert file.get_slice("one1")[...] == 1
        assert file.get_slice("none1")[:].shape == (0, 5)


def test_get_tensors_reads_in_file_order_for_any_requested_order(
    folder, tmp_path, monkeypatch
):
    asked = []
    real = os.posix_fadvise
    monkeypatch.setattr("readpath.tensor_files.PIECE_BYTES_MAX", 128 << 10)
    monkeypatch.setattr("readpath.tensor_files.KERNEL_AHEAD_BYTES", 1 << 40)

    def advise(*said):
        if said[3] == os.POSIX_FADV_WILLNEED:
            asked.append(said[1])
        real(*said)

    monkeypatch.setattr(os, "posix_fadvise", advise)
    # The kernel does not drop pages that are still mapped.
    path = Path(shutil.copy(folder / "1.safetensors", tmp_path))
    with readpath.safe_open(path) as file:
        names = random.Random(3).sample(file.keys(), len(file.keys()))
        # Another process may map or bring in pages while they are dropped.
        for _ in range(5):
            cold(path)
            asked.clear()
            got = file.get_tensors(names)
            if asked:
                break
    assert list(got) == names
    assert asked == sorted(asked) and len(asked) >= 2
    assert same(got, load_file(path))


def cold(path):
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def device_bytes():
    """Bytes that the kernel read from storage for this process: proc(5)."""
    text = Path("/proc/self/io").read_text()
    return int(dict(line.split(": ") for line in text.splitlines())["read_bytes"])


def load_beside_others(path, barrier, queue):
    barrier.wait()
    before = device_bytes()
    tensors = readpath.load_file(path)
    queue.put((device_bytes() - before, sum(int(tensor.sum()) for tensor in tensors.values())))


def test_concurrent_processes_read_a_file_from_the_device_once():
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder) / "shared.safetensors"
        draw = numpy.random.default_rng(1)
        made = {f"t{nth}": draw.integers(0, 255, 1 << 20, "u1") for nth in range(32)}
        save_file(made, path)
        cold(path)
        barrier, queue = context.Barrier(3), context.Queue()
        workers = [
            context.Process(target=load_beside_others, args=(path, barrier, queue)) for _ in range(3)
        ]
        for worker in workers:
            worker.start()
        told = [queue.get(timeout=60) for _ in workers]
        for worker in workers:
            worker.join()
        assert {total for _, total in told} == {sum(int(array.sum()) for array in made.values())}
        fetched = sum(count for count, _ in told)
        if fetched == 0:
            pytest.skip("/var/tmp lies on no device that proc(5) counts")
        assert fetched <= 1.1 * path.stat().st_size


@pytest.fixture
def on_disk():
    """A file of 64 MiB on a disk, where there is one that proc(5) counts."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder) / "large.safetensors"
        draw = numpy.random.default_rng(2)
        save_file({f"t{nth}": draw.integers(0, 255, (1 << 12, 1 << 10), "u1") for nth in range(16)}, path)
        yield path


FAULTED_AROUND = 16 * 4096
"""So much the kernel maps at once where a page is touched that it holds."""


def test_loaded_tensors_cause_no_major_fault(on_disk):
    """Counts of the kernel's: how often a touch had to wait for it, getrusage(2)."""
    path = on_disk
    oracle = load_file(path)
    for kernel_ahead_bytes in (0, 8 << 20):
        cold(path)
        with readpath.safe_open(path) as file:
            for one in file._files:
                one._kernel_ahead_bytes = kernel_ahead_bytes
            tensors = file.get_tensors()
        before = resource.getrusage(resource.RUSAGE_SELF)
        found = [int(tensor.max()) for tensor in tensors.values()]
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert after.ru_majflt == before.ru_majflt
        assert after.ru_minflt - before.ru_minflt < path.stat().st_size // FAULTED_AROUND // 4
        assert found == [int(array.max()) for array in oracle.values()]
        del tensors


def test_tensor_reads_fetch_only_the_requested_bytes(on_disk):
    cold(on_disk)
    with readpath.safe_open(on_disk) as file:
        before = device_bytes()
        rows = file.get_slice("t7")[100:200]
        few = device_bytes() - before
        before = device_bytes()
        whole = file.get_tensor("t12")
        many = device_bytes() - before
    if many == 0:
        pytest.skip("/var/tmp lies on no device that proc(5) counts")
    assert few <= rows.nbytes + (128 << 10) and whole.nbytes <= many <= whole.nbytes + (128 << 10)


def test_shrunk_tensor_file_is_an_error_and_no_bus_error(on_disk):
    with readpath.safe_open(on_disk) as file:
        os.truncate(on_disk, 20 << 20)
        assert file.get_tensor("t0").shape == (1 << 12, 1 << 10)
        for use in (lambda: file.get_tensor("t9"), lambda: file.get_slice("t9")[:5], file.get_tensors):
            with pytest.raises(OSError, match="it has become shorter"):
                use()


@pytest.mark.parametrize("failed_page", [0, 1, 2])
def test_failed_page_of_an_unaligned_tensor_is_an_error(tmp_path, monkeypatch, failed_page):
    """The kernel maps no page, and the device fails for one of the tensor's three pages."""
    path, page_bytes = tmp_path / "a", mmap.PAGESIZE
    save_file({"a": numpy.zeros(2 * page_bytes, "u1")}, path)
    pread = os.pread

    def failing_pread(file, size, offset):
        if size == 1 and offset // page_bytes == failed_page:
            raise OSError(errno.EIO, "the sector is bad")
        return pread(file, size, offset)

    with readpath.safe_open(path) as file:
        (place,) = file._files[0].places.values()
        assert place.offset % page_bytes and place.offset < page_bytes
        monkeypatch.setattr(readpath._native, "populate", lambda *_: False)
        monkeypatch.setattr(os, "pread", failing_pread)
        with pytest.raises(OSError, match="the sector is bad"):
            file.get_tensor("a")


def test_closed_tensor_file_raises_value_error(folder, name):
    with readpath.safe_open(name) as file:
        part = file.get_slice("large1")
    assert file.keys() and part.get_shape() == [600, 1_001]
    for use in (lambda: file.get_tensor("large1"), file.get_tensors, lambda: part[:5]):
        with pytest.raises(ValueError, match="closed file"):
            use()


def test_closed_compressed_tensor_file_raises_value_error(folder, tmp_path):
    """Storage without random access: the file is read whole at its opening."""
    pytest.importorskip("fsspec")
    import gzip

    (tmp_path / "weights.gz").write_bytes(gzip.compress((folder / "1.safetensors").read_bytes()))
    with readpath.safe_open(f"file://{tmp_path}/weights.gz", compression="gzip") as file:
        assert same(file.get_tensors(), load_file(folder / "1.safetensors"))
    with pytest.raises(ValueError, match="closed file"):
        file.get_tensor("large1")


def test_resident_tensors_cause_no_prefetch_or_device_read(folder, monkeypatch):
    path = folder / "2.safetensors"
    path.read_bytes()
    asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *said: asked.append(said))
    monkeypatch.setattr("readpath.tensor_files.KERNEL_AHEAD_BYTES", 1 << 40)
    before = device_bytes()
    readpath.load_file(path)
    asked = [said for said in asked if said[3] == os.POSIX_FADV_WILLNEED]
    assert asked == [] and device_bytes() == before


def test_remote_tensors_are_fetched_concurrently():
    """A storage that answers none of three until all are asked for."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem

    made = {f"t{nth:02}": numpy.full(1 << 20, nth, "u1") for nth in range(12)}
    wanted = ["t09", "t01", "t05"]
    begun, are_begun, alone = set(), threading.Event(), []

    class Together(MemoryFileSystem):
        protocol = "together"
        store: dict = {}
        pseudo_dirs = [""]

        def cat_file(self, path, start=None, end=None, **options):
            # One MiB each, behind a header that is shorter.
            begun.update(name for name in wanted if (start or 0) >> 20 == int(name[1:]))
            if len(begun) == len(wanted):
                are_begun.set()
            if start >> 20 and not are_begun.wait(5):
                alone.append(start)
                are_begun.set()
            return super().cat_file(path, start, end, **options)

    fsspec.register_implementation("together", Together, clobber=True)
    fsspec.filesystem("together").pipe("together://weights", save(made))
    with readpath.safe_open("together://weights") as file:
        assert same(file.get_tensors(wanted), {name: made[name] for name in wanted})
    assert not alone


def test_tensor_writes_are_private(folder):
    path = folder / "1.safetensors"
    before = path.read_bytes()
    with readpath.safe_open(path) as file:
        one, two = file.get_tensor("<f41"), file.get_tensor("<f41")
        one[:] = 777
        assert (one == 777).all() and not (two == 777).any()
    assert (one == 777).all() and path.read_bytes() == before


def written(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def one(**said):
    return {"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} | said}


SMALL = {
    "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
"""By the list of types in the description of the format, and the names in `ml_dtypes`."""


@pytest.mark.parametrize("kind", SMALL)
def test_one_byte_types_load_with_ml_dtypes(tmp_path, kind):
    path = written(tmp_path / "small", one(dtype=kind), b"1234")
    with readpath.safe_open(path) as file:
        assert file.get_slice("a").get_dtype() == kind and file.get_slice("a").get_shape() == [4]
        try:
            import ml_dtypes
        except ImportError:
            with pytest.raises(TypeError, match=f"no type {kind}; install the package ml_dtypes"):
                file.get_tensor("a")
            return
        assert file.get_tensor("a").dtype == getattr(ml_dtypes, SMALL[kind])
        assert file.get_tensor("a").tobytes() == b"1234"


def test_types_that_torch_lacks_are_type_errors():
    torch = types.SimpleNamespace(__version__="9", float4_e2m1fn_x2="pairs")
    assert torch_type(torch, Place("F4", (8, 2), 0, 8)) == ("pairs", (8, 1))
    with pytest.raises(TypeError, match="half a byte"):
        torch_type(torch, Place("F4", (8, 1), 0, 4))
    with pytest.raises(TypeError, match="torch 9 has no type F6_E2M3"):
        torch_type(torch, Place("F6_E2M3", (4,), 0, 3))


def test_half_byte_types_load_only_with_torch(tmp_path):
    path = written(tmp_path / "packed", one(dtype="F4", shape=[2, 4]), b"1234")
    with readpath.safe_open(path) as file:
        assert file.get_slice("a").get_shape() == [2, 4]
        with pytest.raises(TypeError, match="framework='pt'"):
            file.get_tensor("a")
        with pytest.raises(TypeError, match="gives it whole"):
            file.get_slice("a")[:1]
    torch = pytest.importorskip("torch")
    ours = readpath.load_file(path, "pt")["a"]
    with oracle.safe_open(path, "pt") as file:
        expected = file.get_tensor("a")
    assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape) == (torch.float4_e2m1fn_x2, (2, 2))
    assert bytes(ours.view(torch.uint8).flatten().tolist()) == b"1234"


WRONG = {
    "no header": (b"{", b"", "none of safetensors"),
    "no object": ([1], b"", "none of safetensors"),
    "type": (one(dtype="F5"), b"1234", "of type 'F5'; known are"),
    "size": (one(shape=[5]), b"1234", "has 5 bytes, not 4"),
    "negative": (one(shape=[-2, -2]), b"1234", "has 4 bytes|shape"),
    "hole": (one(data_offsets=[1, 5]), b"12345", "begins at byte .* and not at"),
    "short": (one(), b"123", "downloaded in full"),
    "long": (one(), b"12345", "downloaded in full"),
}


@pytest.mark.parametrize("case", WRONG)
def test_malformed_tensor_files_are_refused_with_a_message(tmp_path, case):
    header, data, words = WRONG[case]
    path = written(tmp_path / "wrong", header, data)
    with pytest.raises(oracle.SafetensorError):
        oracle.safe_open(path, "np").__enter__()
    with pytest.raises(ValueError, match=words) as raised:
        readpath.load_file(path)
    assert str(path) in str(raised.value)


def test_load_file_errors_are_built_in_exceptions(tmp_path, folder, descriptors):
    with pytest.raises(FileNotFoundError):
        readpath.load_file(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        readpath.load_file(tmp_path)
    (tmp_path / "tiny").write_bytes(b"1234")
    with pytest.raises(ValueError, match="no file of safetensors"):
        readpath.load_file(tmp_path / "tiny")
    before = descriptors()
    with pytest.raises(FileNotFoundError):
        readpath.load_file([folder / "1.safetensors", tmp_path / "none"])
    assert descriptors() <= before
    with pytest.raises(ValueError, match="give 'numpy' or 'pt'"):
        readpath.load_file(folder / "1.safetensors", "jax")
    with pytest.raises(ValueError, match="framework='pt'"):
        readpath.load_file(folder / "1.safetensors", device="cuda")


def test_torch_has_the_same_tensors(folder, name):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    ours, expected = readpath.load_file(name, "pt"), load_torch(folder / "1.safetensors")
    assert set(ours) == set(expected)
    for tensor, array in expected.items():
        assert ours[tensor].dtype == array.dtype and torch.equal(ours[tensor], array), tensor
    with readpath.safe_open(name, "pt") as file:
        part = file.get_slice("large1")[10:20, ::3]
        assert torch.equal(part, expected["large1"][10:20, ::3]) and part.is_contiguous()
    kinds = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
    made = {str(kind): torch.arange(50).to(kind) for kind in kinds}
    save_torch(made, folder / "small.safetensors")
    small = readpath.load_file(folder / "small.safetensors", framework="torch")
    for kind, array in made.items():
        assert small[kind].dtype == array.dtype
        assert small[kind].view(torch.uint8).tolist() == array.view(torch.uint8).tolist()
