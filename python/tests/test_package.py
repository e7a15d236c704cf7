"""The installed package: its licences, its command, its build, and old names that it accepts."""

import importlib.metadata
import importlib.util
import pathlib
import subprocess
import sys

import pytest

import readpath


def test_the_licences_are_in_the_package():
    files = importlib.metadata.files("readpath")
    if files is None:
        pytest.skip("it is used from its folder, and not installed")
    names = {file.name for file in files if file.parent.name == "licenses"}
    assert names == {"LICENSE-APACHE", "LICENSE-MIT"}


def test_the_command_is_installed_with_the_package():
    files = importlib.metadata.files("readpath")
    if files is None:
        pytest.skip("it is used from its folder, and not installed")
    (command,) = (file.locate() for file in files if file.name == "readpath" and file.parent.name == "bin")
    version = subprocess.run([command, "--version"], check=True, capture_output=True, text=True).stdout
    assert version == f"readpath {readpath.__version__}\n"
    assert pathlib.Path(command).resolve().parent == pathlib.Path(sys.executable).parent


def build_backend():
    """The build backend of this checkout."""
    pytest.importorskip("maturin")
    path = pathlib.Path(__file__).parent.parent / "build_backend" / "readpath_build.py"
    spec = importlib.util.spec_from_file_location("readpath_build", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_missing_command_ends_the_build_with_its_name(monkeypatch, tmp_path):
    backend = build_backend()
    monkeypatch.setenv("READPATH_COMMAND", str(tmp_path / "none"))
    with pytest.raises(RuntimeError, match="READPATH_COMMAND=.*none: there is no such file"):
        backend.build_wheel(str(tmp_path))
    with pytest.raises(RuntimeError, match="no source distribution"):
        backend.build_sdist(str(tmp_path))


def test_old_names_work_for_one_release_with_a_warning(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"abc")
    for old, new in (("Law", "Policy"), ("NamedLaw", "NamedPolicy"), ("laws", "policies")):
        with pytest.warns(DeprecationWarning, match=f"readpath.{old} is now readpath.{new}"):
            assert getattr(readpath, old) is getattr(readpath, new)
    with pytest.warns(DeprecationWarning, match="reclaim is now eviction"):
        within = readpath.ReadPath(memory="1MiB", reclaim="lru")
    assert "eviction='lru'" in repr(within)
    with pytest.warns(DeprecationWarning), readpath.open(path, memory="1MiB", reclaim="arc") as file:
        assert file.read() == b"abc"
    with pytest.raises(TypeError, match="give eviction alone"), pytest.warns(DeprecationWarning):
        readpath.ReadPath(memory="1MiB", reclaim="lru", eviction="arc")
    with pytest.raises(TypeError, match="ReadPath has no option `evicton`; did you mean `eviction`"):
        readpath.ReadPath(memory="1MiB", evicton="arc")
