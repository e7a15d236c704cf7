"""The installed package: its licences, and old names that it accepts."""

import importlib.metadata

import pytest

import readpath


def test_the_licences_are_in_the_package():
    files = importlib.metadata.files("readpath")
    if files is None:
        pytest.skip("it is used from its folder, and not installed")
    names = {file.name for file in files if file.parent.name == "licenses"}
    assert names == {"LICENSE-APACHE", "LICENSE-MIT"}


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
