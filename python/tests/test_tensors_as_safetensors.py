"""`safe_open` next to that of the package safetensors: options, errors and parts."""

import pytest

import readpath

fsspec = pytest.importorskip("fsspec")
numpy = pytest.importorskip("numpy")
oracle = pytest.importorskip("safetensors")
from safetensors.numpy import save, save_file  # noqa: E402

MADE = {"rows": numpy.arange(12, dtype="f4").reshape(3, 4), "number": numpy.array(5.0)}


@pytest.fixture
def path(tmp_path):
    save_file(MADE, tmp_path / "weights", {"by": "test"})
    return tmp_path / "weights"


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_backends_have_the_same_tensors(path, backend):
    with readpath.safe_open(path, "numpy", "cpu", backend=backend) as file:
        for name, array in file.get_tensors().items():
            assert (array == MADE[name]).all() and array.dtype == MADE[name].dtype
            array[...] = 1
    for name, array in readpath.load_file(path, backend=backend).items():
        assert (array == MADE[name]).all()
    with oracle.safe_open(path, "numpy") as file:
        assert (file.get_tensor("rows") == MADE["rows"]).all()


def test_unknown_backend_raises_safetensor_error(path):
    for module in (oracle, readpath):
        with pytest.raises(oracle.SafetensorError, match="backend.*wrong"):
            module.safe_open(path, "numpy", backend="wrong")


def test_empty_and_whole_slices_equal_those_of_safetensors(path):
    with readpath.safe_open(path, "numpy") as ours, oracle.safe_open(path, "numpy") as expected:
        for name in MADE:
            for index in ((), ..., (...,)):
                part, other = ours.get_slice(name)[index], expected.get_slice(name)[index]
                assert part.shape == other.shape and (part == other).all(), (name, index)


WRONG = [
    lambda file: file.get_tensor("none"),
    lambda file: file.get_slice("none"),
    lambda file: file.get_slice("rows")[9],
    lambda file: file.get_slice("rows")[0, 9],
    lambda file: file.get_slice("rows")[0, 0, 0],
    lambda file: file.get_slice("rows")[None],
    lambda file: file.get_slice("rows")["text"],
    lambda file: file.get_slice("rows")[1.5],
    lambda file: file.get_slice("rows")[[0, 1]],
]


@pytest.mark.parametrize("nth", range(len(WRONG)))
def test_invalid_tensor_accesses_raise_safetensor_error(path, nth):
    for module in (oracle, readpath):
        with module.safe_open(path, "numpy") as file:
            with pytest.raises(oracle.SafetensorError):
                WRONG[nth](file)


def test_malformed_files_raise_safetensor_error_and_value_error(tmp_path, path):
    (tmp_path / "text").write_bytes(b"no file of safetensors at all")
    (tmp_path / "short").write_bytes(path.read_bytes()[:-1])
    for name in ("text", "short"):
        with pytest.raises(oracle.SafetensorError):
            oracle.safe_open(tmp_path / name, "numpy").__enter__()
        for kind in (oracle.SafetensorError, readpath.SafetensorError, ValueError):
            with pytest.raises(kind):
                readpath.safe_open(tmp_path / name)
    for kind in (oracle.SafetensorError, ValueError):
        with pytest.raises(kind):
            readpath.safe_open(path, "unknown")
    with pytest.raises(KeyError), readpath.safe_open(path) as file:
        file.get_tensor("none")


def test_a_store_without_lengths_is_read_whole():
    from fsspec.implementations.memory import MemoryFileSystem

    class Streams(MemoryFileSystem):
        protocol = "streams"
        store: dict = {}
        pseudo_dirs = [""]
        token = None

        def __init__(self, *arguments, token=None, **options):
            super().__init__(*arguments, **options)
            type(self).token = token

        def info(self, path, **options):
            return super().info(path, **options) | {"size": None}

    fsspec.register_implementation("streams", Streams, clobber=True)
    fsspec.filesystem("streams").pipe("streams://weights", save(MADE))
    tensors = readpath.load_file("streams://weights", streams={"token": "abc"})
    assert Streams.token == "abc"
    assert all((tensors[name] == MADE[name]).all() for name in MADE)
    with readpath.safe_open("streams://weights", readahead="none", memory="1MiB") as file:
        assert (file.get_slice("rows")[1:] == MADE["rows"][1:]).all()


def test_load_file_accepts_the_options_of_open(path):
    assert (readpath.load_file(path, backend="pread", memory="8MiB")["rows"] == MADE["rows"]).all()
    with pytest.raises(TypeError, match="no option `memry`"):
        readpath.load_file(path, memry="8MiB")
