"""Results of a type checker on programs that use the package."""

import subprocess
import sys

import pytest

import readpath

PROGRAM = """
import io
from pathlib import Path
from typing import BinaryIO
import readpath

def raw(stream: io.RawIOBase) -> None: ...
def binary(stream: BinaryIO) -> None: ...

reveal_type(readpath.open(Path("a"), memory="1MiB", eviction="lru"))
with readpath.open("a") as either:
    reveal_type(either.readat(0, 1))
with readpath.open(Path("a")) as file:
    reveal_type(file.read())
    reveal_type(file.readinto_many([1], bytearray(1)))
    raw(file)
    binary(io.BufferedReader(file))
mapping = readpath.map("x", memory=1, readahead="none", backend="auto")
reveal_type(mapping[1:2])
bytes(mapping)
"""

REVEALED = ["readpath.files.File", "bytes", "bytes", "list[int]", "memoryview"]

WRONG = ['readpath.map("x", memry=1)', 'readpath.open(Path("a"), memry=1)', 'readpath.open("a", "w")']


def checked(tmp_path, program):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "program.py"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)


def test_opened_and_mapped_objects_have_the_expected_types(tmp_path):
    done = checked(tmp_path, PROGRAM)
    assert done.returncode == 0, done.stdout
    revealed = [line for line in done.stdout.splitlines() if "Revealed type" in line]
    assert len(revealed) == len(REVEALED)
    assert all(f'"{kind}' in line or f".{kind}" in line for kind, line in zip(REVEALED, revealed))


def test_type_checker_finds_misspelt_names(tmp_path):
    done = checked(tmp_path, "\n".join(["from pathlib import Path", "import readpath", *WRONG]))
    assert all(f"program.py:{nth}: error" in done.stdout for nth in (3, 4, 5)), done.stdout


def test_every_option_of_a_path_has_a_type():
    from readpath.files import PathOptions

    assert set(PathOptions.__annotations__) == set(readpath.ReadPath.NAMES)


def test_read_methods_have_docstrings():
    for method in ("read", "readat", "readinto", "readinto_at", "readat_many", "readline"):
        assert len(getattr(readpath.File, method).__doc__) > 40
