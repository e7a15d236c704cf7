"""Without io_uring and userfaultfd files are still readable, and the backend in use is reported."""

import random

import pytest

import readpath
from forbidden import AIO, RING, run_without

SIZE = 1_000_003


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("forbidden") / "data.bin"
    path.write_bytes(random.Random(9).randbytes(SIZE))
    return path


@pytest.mark.parametrize(("calls", "backend"), [(RING, "aio"), ([*RING, *AIO], "threads")])
def test_denied_system_calls_leave_files_usable_and_reported(path, calls, backend):
    told = run_without(
        calls,
        f"""
import asyncio, random, readpath
expected = random.Random(9).randbytes({SIZE})
with readpath.open({str(path)!r}, page_cache="own", kernel_cache=False) as file:
    assert file.read() == expected
    assert asyncio.run(file.areadat(5, 5)) == expected[5:10]
    assert file.readat_many([(7, 7), (500_000, 9)]) == [expected[7:14], expected[500_000:500_009]]
    print(file.path_stats()["backend"])
with readpath.map({str(path)!r}, memory="512KiB", kernel_cache=False) as mapping:
    assert bytes(mapping) == expected and mapping.copy(9, 99) == expected[9:99]
    mapping.load(0, 5_000)
    mapping.advise("dontneed")
    print(mapping.mode, mapping.fallback)
    print(mapping.stats()["faults"])
""",
    ).splitlines()
    assert backend in told[0]
    assert told[1].startswith("kernel ") and "seccomp" in told[1]
    assert told[2] == "0"


def test_denied_io_uring_raises_the_same_exception_everywhere(path):
    run_without(
        RING,
        f"""
import readpath, tempfile
uses = [
    lambda: readpath.ReadPath(page_cache="own", backend="io_uring"),
    lambda: readpath.open({str(path)!r}, page_cache="own", backend="io_uring"),
]
for use in uses:
    try:
        use()
    except PermissionError as error:
        assert error.errno == 1 and "io_uring" in str(error), error
    else:
        raise AssertionError("it is forbidden")
try:
    readpath.Region("1MiB", swap=tempfile.gettempdir())
except OSError as error:
    assert "userfaultfd" in str(error), error
else:
    raise AssertionError("it is forbidden")
""",
    )


def test_invalid_options_raise_value_error_everywhere(path):
    for use in (
        lambda: readpath.open(path, page_cache="own", readahead="psychic"),
        lambda: readpath.map(path, readahead="psychic"),
        lambda: readpath.open(path, page_cache="own", backend="magic"),
        lambda: readpath.map(path, backend="magic"),
        lambda: readpath.ReadPath(page_cache="own", depth=1 << 40),
    ):
        with pytest.raises(ValueError):
            use()
