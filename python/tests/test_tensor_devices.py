"""Loads to a device: order, overlap, bounds and errors, over a device made of memory."""

import itertools
import sys
import threading
import types

import pytest

import readpath
import readpath.tensor_devices
from readpath.tensor_devices import Device, DeviceLoader
from readpath.tensor_frameworks import Place, framework_named

numpy = pytest.importorskip("numpy")


class Copying(Device):
    """A device that copies a buffer when the copy is waited for: a buffer reused too early has wrong bytes."""

    def __init__(self):
        self.lock = threading.Lock()
        self.buffers, self.in_flight, self.in_flight_max, self.copies = [], {}, 0, 0
        self.failing_copy = None

    def host_buffer(self, size):
        self.buffers.append(memoryview(bytearray(size)))
        return self.buffers[-1]

    def empty(self, place):
        return bytearray(place.size)

    def start_copy(self, buffer, size, memory, offset):
        with self.lock:
            self.copies += 1
            if self.copies == self.failing_copy:
                raise RuntimeError("the device is lost")
            assert id(buffer) not in self.in_flight, "a buffer in use is filled again"
            self.in_flight[id(buffer)] = (buffer, size, memory, offset)
            self.in_flight_max = max(self.in_flight_max, len(self.in_flight))
            return id(buffer)

    def wait(self, copy):
        with self.lock:
            buffer, size, memory, offset = self.in_flight.pop(copy)
            memory[offset : offset + size] = buffer[:size]

    def tensor(self, memory, place):
        assert len(memory) == place.size
        return bytes(memory)


def reading(data, reads=None):
    def read_into(offset, buffer):
        if reads is not None:
            reads.append((offset, len(buffer)))
        if offset + len(buffer) > len(data):
            raise OSError("the file has become shorter")
        buffer[:] = data[offset : offset + len(buffer)]

    return read_into


DATA = numpy.random.default_rng(1).integers(0, 256, 10_000, "u1").tobytes()
PLACES = [Place("U8", (size,), offset, size) for offset, size in ((5, 2_500), (9_000, 0), (3_000, 100), (3_100, 4_001))]


def test_tensors_of_several_files_have_their_bytes():
    device, reads = Copying(), []
    other = DATA[::-1]
    loader = DeviceLoader(device, buffers=3, buffer_bytes=1_000)
    requests = [(reading(DATA, reads), place) for place in PLACES]
    requests += [(reading(other, reads), place) for place in PLACES]
    for _ in range(2):
        reads.clear()
        expected = [data[p.offset : p.offset + p.size] for data in (DATA, other) for p in PLACES]
        assert loader.load(requests) == expected
        # 2,500 bytes are three pieces, 100 one, 4,001 five; each is read once.
        assert len(reads) == 2 * 9 and max(size for _, size in reads) == 1_000
        assert sum(size for _, size in reads) == 2 * 6_601
        assert not device.in_flight
    # Buffers are allocated once, and never more copies in flight than buffers.
    assert [len(buffer) for buffer in device.buffers] == [1_000] * 3
    assert device.in_flight_max <= 3


def test_reads_and_copies_overlap():
    """The second read waits until the first copy is in flight: a loader in turns would wait for ever."""
    device = Copying()
    copied = threading.Event()
    start = device.start_copy

    def start_copy(*given):
        copy = start(*given)
        copied.set()
        return copy

    device.start_copy = start_copy
    begun = threading.Barrier(2, timeout=60)

    def read_into(offset, buffer):
        # Both reads are in flight before either ends.
        if offset < 2_000:
            begun.wait()
        else:
            assert copied.wait(60)
        reading(DATA)(offset, buffer)

    loader = DeviceLoader(device, buffers=2, buffer_bytes=1_000)
    assert loader.load([(read_into, Place("U8", (4_000,), 0, 4_000))]) == [DATA[:4_000]]


def test_errors_end_the_load_and_leave_the_loader_usable():
    device = Copying()
    loader = DeviceLoader(device, buffers=2, buffer_bytes=100)
    short = (reading(DATA[:3_050]), PLACES[3])
    with pytest.raises(OSError, match="shorter"):
        loader.load([(reading(DATA), PLACES[0]), short])
    assert not device.in_flight
    device.failing_copy = device.copies + 3
    with pytest.raises(RuntimeError, match="lost"):
        loader.load([(reading(DATA), PLACES[0])])
    assert not device.in_flight
    assert loader.load([(reading(DATA), PLACES[2])]) == [DATA[3_000:3_100]]


def failing_calls(monkeypatch, method, error, calls):
    """Lets these calls of a method of threads fail, by their numbers."""
    plain, numbers = getattr(threading.Thread, method), itertools.count(1)

    def call(thread, *arguments):
        if next(numbers) in calls:
            raise error
        return plain(thread, *arguments)

    monkeypatch.setattr(threading.Thread, method, call)


@pytest.mark.parametrize(
    ("method", "error", "calls"),
    [
        ("start", RuntimeError("can't start new thread"), {2}),
        # Ctrl-C, and once more in the wait for the threads.
        ("join", KeyboardInterrupt(), {1, 2}),
    ],
)
def test_load_after_a_failed_one_has_its_own_bytes(monkeypatch, method, error, calls):
    """A thread of the failed load fills its buffer while the next load reads."""
    loader = DeviceLoader(Copying(), buffers=2, buffer_bytes=100)
    place = Place("U8", (100,), 0, 100)
    release, filled, reads = threading.Event(), threading.Event(), []

    def read_late(offset, buffer):
        reads.append(offset)
        release.wait(0.5)
        buffer[:] = b"O" * len(buffer)
        filled.set()

    def read_slowly(offset, buffer):
        buffer[:] = b"N" * len(buffer)
        release.set()
        filled.wait(5)

    failing_calls(monkeypatch, method, error, calls)
    with pytest.raises(type(error)):
        loader.load([(read_late, Place("U8", (1_000,), 0, 1_000))])
    assert loader.load([(read_slowly, place)]) == [b"N" * 100]
    # At most one read of each buffer: the failed load began no others.
    assert len(reads) <= 2


def test_files_load_by_the_loader_of_their_device(tmp_path, monkeypatch):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    names = []
    for at in range(2):
        made = {f"{name}{at}": numpy.full(300, 10 * at + nth, "u1") for nth, name in enumerate("cab")}
        save_file(made, tmp_path / str(at))
        names.append(tmp_path / str(at))
    with readpath.safe_open(names) as file:
        file._make.loader = DeviceLoader(Copying(), buffers=2, buffer_bytes=128)
        assert file.get_tensors(["a1", "c0"]) == {"a1": bytes([11]) * 300, "c0": bytes(300)}
        assert list(file.get_tensors(["a1", "c0"])) == ["a1", "c0"]
        assert file.get_tensor("b1") == bytes([12]) * 300


def test_meta_tensors_need_only_the_header(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    save_file({"a": torch.ones(30, 2, dtype=torch.bfloat16)}, tmp_path / "file")
    for options in ({}, {"backend": "pread"}):
        with readpath.safe_open(tmp_path / "file", "pt", "meta", **options) as file:
            tensor = file.get_tensor("a")
        assert (tensor.device.type, tensor.shape, tensor.dtype) == ("meta", (30, 2), torch.bfloat16)


class Stream:
    """A stand-in for streams and events of torch.cuda, whose copies end at once."""

    def __init__(self, device=None):
        self.waited = 0

    def wait_stream(self, other):
        self.waited += 1

    def record(self, stream):
        pass

    def synchronize(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def test_cuda_loads_have_the_types_and_shapes_of_torch(monkeypatch):
    """The calls of torch, with the host's memory in place of a device's."""
    torch = pytest.importorskip("torch")
    from readpath.tensor_devices import CudaDevice

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *given, pin_memory=False, **options: empty(*given, **options))
    loader = DeviceLoader(CudaDevice("cpu"), buffers=2, buffer_bytes=64)
    made = {
        "F32": torch.arange(60, dtype=torch.float32).reshape(5, 3, 4),
        "BF16": torch.arange(7, dtype=torch.bfloat16),
        "F8_E4M3": torch.arange(9).to(torch.float8_e4m3fn),
        "BOOL": torch.tensor(True),
        "I64": torch.empty(0, 3, dtype=torch.int64),
    }
    data, requests = b"", []
    for dtype, tensor in made.items():
        contents = bytes(tensor.reshape(-1).view(torch.uint8).tolist())
        requests.append((dtype, tuple(tensor.shape), len(data), len(contents)))
        data += contents
    loaded = loader.load([(reading(data), Place(*place)) for place in requests])
    for expected, tensor in zip(made.values(), loaded, strict=True):
        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))


class DeviceName:
    """A stand-in for torch.device: type and index of a name."""

    def __init__(self, name):
        self.type, _, index = name.partition(":")
        self.index = int(index) if index else None


def test_tensors_of_cuda_go_to_the_gpu_that_is_current_at_the_open(monkeypatch):
    """torch takes `cuda` for the current GPU of each call, so one name may mean two GPUs."""
    current = [0]
    torch = types.ModuleType("torch")
    torch.device, torch.uint8 = DeviceName, "uint8"
    torch.cuda = types.SimpleNamespace(current_device=lambda: current[0])
    torch.empty = lambda shape, dtype, device: ("empty", device)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(readpath.tensor_devices, "cuda_loader", lambda name: ("loader", name))
    cases = [("cuda", 0, "cuda:0"), ("cuda", 1, "cuda:1"), ("cuda:0", 1, "cuda:0"), ("cuda:2", 1, "cuda:2")]
    for device, current[0], expected in cases:
        make = framework_named("pt", device)
        assert make.loader == ("loader", expected)
        # The current GPU changes between the open and the load.
        current[0] = 3
        assert make.over(b"", 0, Place("U8", (0,), 0, 0)) == ("empty", expected)
    assert framework_named("pt", "cpu").loader is None
