"""What is installed: the licences are with it."""

import importlib.metadata

import pytest


def test_the_licences_are_in_the_package():
    files = importlib.metadata.files("readpath")
    if files is None:
        pytest.skip("it is used from its folder, and not installed")
    names = {file.name for file in files if file.parent.name == "licenses"}
    assert names == {"LICENSE-APACHE", "LICENSE-MIT"}
