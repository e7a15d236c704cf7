"""`readpath.safetensors`: the interface of the package safetensors, and the hook for its users."""

import io
import os
import pathlib
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


CHILDREN = """
import multiprocessing, subprocess, sys

def opened_by():
    import safetensors
    return safetensors.safe_open.__module__.partition(".")[0]

if __name__ == "__main__":
    for method in ("spawn", "forkserver", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.apply(opened_by))
    command = [sys.executable, "-c", "import program; print(program.opened_by())"]
    print(subprocess.run(command, capture_output=True, text=True).stdout, end="")
    child = "import sys; print(len({'readpath', 'safetensors'} & set(sys.modules)), sys.path[1][-9:])"
    print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout, end="")
"""


def test_processes_that_the_program_starts_have_the_hook(tmp_path):
    (tmp_path / "program.py").write_text(CHILDREN)
    done = run("program.py", cwd=tmp_path)
    assert done.stderr == ""
    # The last child imports neither package, and its search path has no folder of the hook.
    ours = "spawn readpath\nforkserver readpath\nfork readpath\nreadpath\n0 "
    assert done.stdout.startswith(ours) and "_children" not in done.stdout


def test_children_import_the_sitecustomize_of_the_environment_as_well(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import os; os.environ['CUSTOM'] = 'yes'")
    (tmp_path / "program.py").write_text(
        "import subprocess, sys\n"
        "child = 'import os, safetensors; print(os.environ.pop(\"CUSTOM\"), safetensors.safe_open.__module__)'\n"
        "subprocess.run([sys.executable, '-c', child])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = run("program.py", cwd=tmp_path, env=environment)
    assert (done.stdout, done.stderr) == ("yes readpath.safetensors._opened\n", "")
    (site / "sitecustomize.py").write_text("import no_such_module")
    done = run("program.py", cwd=tmp_path, env=environment)
    assert "no_such_module" in done.stderr


def test_child_in_an_environment_without_readpath_says_so(tmp_path):
    folder = tmp_path / "safetensors"
    folder.mkdir()
    (folder / "__init__.py").write_text("safe_open = 1")
    children = pathlib.Path(ours.__file__).parent / "_children"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(children), str(tmp_path)])}
    child = "import safetensors; print(safetensors.safe_open)"
    # Without -S the installed packages would be found; sitecustomize is then imported by hand.
    command = [sys.executable, "-S", "-c", f"import sitecustomize; {child}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout == "1\n" and "reads without readpath: No module named 'readpath'" in done.stderr


def test_program_is_found_on_the_search_path_or_refused(path, tmp_path):
    script = tmp_path / "loader"
    script.write_text(f"#!{sys.executable}\n{PROGRAM}")
    (tmp_path / "binary").write_bytes(b"\x7fELF")
    for file in (script, tmp_path / "binary"):
        file.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = run("loader", path, env=environment)
    assert done.stdout.startswith("readpath 5.0\n") and done.stderr == ""
    for wrong, message in (
        ("binary", f"{tmp_path}/binary is not a Python program"),
        ("no-such-program", "no-such-program: there is no such file, and no such program on PATH"),
        (str(tmp_path / "missing.py"), "missing.py: there is no such file"),
    ):
        done = run(wrong, env=environment)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


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
