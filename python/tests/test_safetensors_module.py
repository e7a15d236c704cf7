"""`readpath.safetensors`: the interface of the package safetensors, and the hook for its users."""

import io
import pickle
import subprocess
import sys

import pytest

numpy = pytest.importorskip("numpy")
oracle = pytest.importorskip("safetensors")
import safetensors.numpy as original  # noqa: E402

import readpath.safetensors as ours  # noqa: E402
import readpath.safetensors.numpy as module  # noqa: E402

MADE = {"rows": numpy.arange(12, dtype="f4").reshape(3, 4), "number": numpy.array(5.0)}


@pytest.fixture
def path(tmp_path):
    original.save_file(MADE, tmp_path / "weights", {"by": "test"})
    return tmp_path / "weights"


def test_module_has_the_public_names_of_the_original():
    for theirs, replaced in ((oracle, ours), (original, module)):
        public = {
            name
            for name, value in vars(theirs).items()
            if not name.startswith("__") and not isinstance(value, type(oracle))
        }
        assert public - set(vars(replaced)) - {"_safetensors_rust"} == set()


def test_functions_read_by_readpath_and_write_as_the_original(path, tmp_path):
    assert module.load_file.__globals__["safe_open"] is ours.safe_open
    assert original.load_file.__globals__["safe_open"] is oracle.safe_open
    module.save_file(MADE, tmp_path / "saved", {"by": "test"})
    assert (tmp_path / "saved").read_bytes() == path.read_bytes()
    for loaded in (
        module.load_file(path),
        module.load_file(path, backend="pread"),
        module.load(path.read_bytes()),
    ):
        assert loaded.keys() == MADE.keys()
        assert all((loaded[name] == MADE[name]).all() for name in MADE)


class Slow(io.RawIOBase):
    """A file object without a descriptor whose reads return at most 7 bytes."""

    def __init__(self, data):
        self.inner = io.BytesIO(data)

    def seek(self, *where):
        return self.inner.seek(*where)

    def read(self, size=-1):
        return self.inner.read(min(size, 7))


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_open_files_are_read_and_left_open(path, backend):
    with open(path) as text, open(path, "rb") as binary:
        for given in (text, binary, io.BytesIO(path.read_bytes()), Slow(path.read_bytes())):
            with ours._safe_open_handle(given, framework="np", backend=backend) as file:
                assert file.metadata() == {"by": "test"}
                assert (file.get_slice("rows")[1:, 2] == MADE["rows"][1:, 2]).all()
                assert (file.get_tensor("number") == 5).all()
            assert not given.closed


def test_pickling_is_refused_as_by_the_original(path):
    for opened in (oracle.safe_open(path, "np"), ours.safe_open(path, "np")):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(opened)


def test_other_frameworks_are_the_originals(path):
    for name in ("paddle", "flax", "unknown"):
        outcomes = []
        for package in (oracle, ours):
            try:
                outcomes.append(type(package.safe_open(path, name)))
            except Exception as error:
                outcomes.append((type(error), str(error)))
        assert outcomes[0] == outcomes[1]


PROGRAM = """
import sys
from safetensors import safe_open
from safetensors.numpy import load_file
import safetensors
with safe_open(sys.argv[1], "np") as file:
    print(type(file).__module__.split(".")[0], float(file.get_tensor("number")))
print(load_file.__globals__["safe_open"].__module__.split(".")[0], len(load_file(sys.argv[1])))
print(__name__, sys.argv[0] == __file__)
"""


def run(*arguments, **options):
    command = [sys.executable, "-m", "readpath.safetensors", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_command_runs_programs_and_modules_with_the_hook(path, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    expected = "readpath 5.0\nreadpath 2\n__main__ True\n"
    for program in ([tmp_path / "program.py"], ["-m", "program"]):
        done = run(*program, path, cwd=tmp_path)
        assert (done.stdout, done.stderr) == (expected, "")
    for wrong, message in (
        ([], "usage"),
        (["-m"], "name of a module"),
        (["--fast"], "unknown option"),
    ):
        done = run(*wrong)
        assert done.returncode == 2 and message in done.stderr and not done.stdout


def test_hook_replaces_imported_names_and_is_undone(path):
    program = """
import safetensors, safetensors.numpy, readpath.safetensors as ours
from safetensors import safe_open
first = safe_open
ours.install(), ours.install()
assert safe_open is ours.safe_open is safetensors.safe_open is safetensors.numpy.safe_open
ours.uninstall()
assert safe_open is first is safetensors.safe_open is safetensors.numpy.safe_open
assert ours.safe_open is not first
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
