"""Calls with odd arguments return and raise as those of a built-in file."""

import asyncio
import errno
import functools
import io
import pickle
from fractions import Fraction

import fsspec
import numpy
import pytest

import readpath

DATA = b"".join(b"a" * length + b"\n" for length in (3, 0, 5, 300, 2)) + b"no newline"


class Index:
    """A number by `__index__` alone."""

    def __index__(self):
        return 4


NUMBERS = [
    0, 4, 5, -1, True, None, Index(), numpy.int64(5), numpy.int64(-3), numpy.uint8(7),
    1.0, numpy.float64(2), Fraction(2), "3", b"3", [], 2**63, -(2**63) - 1, 2**70, -(2**70),
]  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("calls") / "data.txt"
    path.write_bytes(DATA)
    fsspec.filesystem("memory").pipe("/calls.txt", DATA)
    return path


@pytest.fixture(params=["local", "own", "url"])
def opened(path, request):
    with {
        "local": lambda: readpath.open(path),
        "own": lambda: readpath.open(path, memory="1MiB"),
        "url": lambda: readpath.open("memory://calls.txt"),
    }[request.param]() as file:
        yield file


def outcome(call, file):
    """Type and value of the result or type of the exception, and the position after the call."""
    try:
        result = call(file)
    except Exception as error:
        return type(error), getattr(error, "errno", None), file.tell()
    return type(result), result, file.tell()


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
@pytest.mark.parametrize("method", ["read", "readline", "readlines", "seek"])
def test_numbers_of_any_type_are_taken_as_by_a_built_in_file(path, opened, method, number):
    def call(file):
        return getattr(file, method)(number)

    with open(path, "rb", buffering=0) as built_in:
        for position in (0, 2, len(DATA) - 3, len(DATA), len(DATA) + 9):
            assert built_in.seek(position) == opened.seek(position)
            assert outcome(call, opened) == outcome(call, built_in)


@pytest.mark.parametrize("whence", [0, 1, 2, True, numpy.int64(2), 1.0, numpy.float64(0), "0", []])
def test_whence_of_any_type_is_taken_as_by_a_built_in_file(path, opened, whence):
    with open(path, "rb", buffering=0) as built_in:
        for offset in (3, -2, numpy.int64(4), 1.5):
            built_in.seek(5), opened.seek(5)

            def call(file, offset=offset):
                return file.seek(offset, whence)

            assert outcome(call, opened) == outcome(call, built_in)


def test_position_beyond_64_bits_raises_einval_and_keeps_the_position(path, opened):
    with open(path, "rb", buffering=0) as built_in:
        built_in.seek(5), opened.seek(5)
        for whence in (1, 2):

            def call(file, whence=whence):
                return file.seek(2**63 - 1, whence)

            assert outcome(call, opened) == outcome(call, built_in)


def test_readlines_stops_after_the_hint_is_exceeded(path, opened):
    with open(path, "rb", buffering=0) as built_in:
        for hint in range(len(DATA) + 3):
            assert built_in.seek(0) == opened.seek(0)
            assert opened.readlines(hint) == built_in.readlines(hint)
            assert opened.tell() == built_in.tell()


def test_there_are_no_lines_at_the_end(opened):
    opened.seek(0, io.SEEK_END)
    assert opened.readlines() == []
    assert list(opened) == []


def test_write_is_an_unsupported_operation(opened):
    for call in (lambda: opened.write(b"x"), lambda: opened.writelines([b"x"]), opened.truncate):
        with pytest.raises(io.UnsupportedOperation):
            call()


@pytest.mark.parametrize("kind", ["M8[s]", "m8[ms]"])
def test_arrays_of_dates_are_filled(path, opened, kind):
    expected, filled = numpy.zeros(3, kind), numpy.zeros((2, 3), kind)
    with open(path, "rb", buffering=0) as built_in:
        assert built_in.readinto(expected) == 24
    assert opened.readinto(filled[0]) == opened.readinto_at(0, filled[1]) == 24
    assert (filled == expected).all()
    assert opened.readinto_many([0, 0], [filled[0], filled[1]]) == [24, 24]
    assert (filled == expected).all()


@pytest.mark.parametrize("name", ["", b""])
def test_empty_name_raises_the_error_of_built_in_files(name):
    with pytest.raises(FileNotFoundError) as expected:
        open(name, "rb")
    with_options = functools.partial(readpath.open, memory="1MiB")
    for call in (readpath.open, readpath.ReadPath().open, with_options):
        with pytest.raises(FileNotFoundError) as raised:
            call(name)
        assert (raised.value.errno, raised.value.filename) == (expected.value.errno, name)


@pytest.mark.parametrize(
    "call",
    [
        lambda file: file.readat_many([]),
        lambda file: file.readinto_many([], []),
        lambda file: file.prefetch_many([]),
        lambda file: file.advise("random"),
        lambda file: asyncio.run(file.areadat(0, 0)),
        pickle.dumps,
    ],
)
def test_closed_file_refuses_calls_without_bytes(opened, call):
    opened.close()
    with pytest.raises(ValueError, match="closed file"):
        call(opened)


CLOSED_CALLS = ["tell", "read", "readline", "readlines", "write", "flush", "__enter__", "__iter__"]


@pytest.mark.parametrize("method", CLOSED_CALLS)
def test_closed_file_raises_value_error(opened, method):
    opened.close()
    arguments = [b"x"] if method == "write" else []
    with pytest.raises(ValueError, match="closed file"):
        getattr(opened, method)(*arguments)


def test_queries_of_a_closed_local_file_raise_value_error(path):
    file = readpath.open(path)
    file.close()
    built_in = open(path, "rb", buffering=0)
    built_in.close()
    for method in ("writable", "readable", "seekable", "isatty", "fileno", "truncate"):
        for one in (built_in, file):
            with pytest.raises(ValueError, match="closed file"):
                getattr(one, method)()


def test_name_is_the_given_one(path, tmp_path):
    odd = bytes(tmp_path) + b"/\xff\xfe"
    with open(odd, "wb") as file:
        file.write(DATA)
    for name in (str(path), bytes(path), path, odd):
        with open(name, "rb") as built_in, readpath.open(name) as file, readpath.open(
            name, memory="1MiB"
        ) as own:
            assert type(file.name) is type(own.name) is type(built_in.name)
            assert file.name == own.name == built_in.name


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_awaited_file_takes_the_numbers_of_a_built_in_file(path, number):
    async def of(system, name):
        file = await system.open_async(name)
        results = []
        for call in (lambda: file.seek(number), lambda: file.read(number)):
            file.seek(2)
            try:
                result = call()
                result = result if isinstance(result, int) else await result
                results.append((type(result), result, file.loc))
            except Exception as error:
                results.append((type(error), file.loc))
        await file.close()
        return results

    with open(path, "rb", buffering=0) as built_in:
        expected = []
        for call in (lambda: built_in.seek(number), lambda: built_in.read(number)):
            built_in.seek(2)
            try:
                result = call()
                expected.append((type(result), result, built_in.tell()))
            except Exception as error:
                expected.append((type(error), built_in.tell()))
    for below, name in (("file", str(path)), ("memory", "/calls.txt")):
        system = fsspec.filesystem("readpath", target_protocol=below, asynchronous=True)
        assert asyncio.run(of(system, name)) == expected


@pytest.mark.parametrize("number", [1.0, numpy.float64(2), Fraction(2), "3", None], ids=repr)
def test_positional_reads_refuse_other_types_than_integers(opened, number):
    with pytest.raises(TypeError):
        opened.seek(number)
    for ranges in ([(number, 3)], [(0, number)]):
        for call in (opened.readat_many, opened.prefetch_many):
            with pytest.raises(TypeError):
                call(ranges)
        for call in (opened.areadat_many, lambda ranges: opened.areadat(*ranges[0])):
            with pytest.raises(TypeError):
                asyncio.run(call(ranges))
    with pytest.raises(TypeError):
        opened.readinto_many([number], [bytearray(3)])


def test_positional_reads_take_integers_of_any_type(opened):
    for number in (4, Index(), numpy.uint8(4), numpy.int64(4)):
        assert opened.readat_many([(number, number)]) == [DATA[4:8]]
        assert asyncio.run(opened.areadat_many([(number, number)])) == [DATA[4:8]]
        assert asyncio.run(opened.areadat(number, number)) == DATA[4:8]


def test_closed_awaited_file_refuses_a_seek(path):
    async def run():
        system = fsspec.filesystem("readpath", target_protocol="memory", asynchronous=True)
        file = await system.open_async("/calls.txt")
        await file.close()
        with pytest.raises(ValueError, match="closed file"):
            file.seek(0)

    asyncio.run(run())


def test_entry_of_a_file_is_no_folder():
    for open_ in (open, readpath.open):
        with pytest.raises(NotADirectoryError) as raised:
            open_(f"{__file__}/entry")
        assert raised.value.errno == errno.ENOTDIR
