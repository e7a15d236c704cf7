"""`Rows` and `Records`: samples of one file by index, in processes too."""

import errno
import multiprocessing
import os
import pickle

import pytest

import readpath
from readpath.records import Records, Rows

numpy = pytest.importorskip("numpy")

TABLE = numpy.arange(1000 * 16, dtype="f4").reshape(1000, 16)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "rows").write_bytes(b"head" + TABLE.tobytes() + b"rest")
    return tmp_path / "rows"


def rows_of(path, **options):
    return Rows(path, "f4", 16, offset=4, **{"count": 1000} | options)


def test_rows_are_those_of_the_array(path):
    rows = rows_of(path)
    assert len(rows) == 1000 and len(rows_of(path, count=7)) == 7
    assert (rows[3] == TABLE[3]).all() and (rows[-1] == TABLE[-1]).all()
    asked = numpy.random.default_rng(1).integers(0, 1000, 300)
    assert (rows.batch(asked) == TABLE[asked]).all()
    assert (numpy.array(rows.__getitems__(asked.tolist())) == TABLE[asked]).all()
    assert (numpy.array(list(rows)) == TABLE).all()
    assert rows.batch([]).shape == (0, 16) and rows.__getitems__([]) == []
    sums = rows_of(path, transform=lambda row: float(row.sum()))
    assert sums[2] == TABLE[2].sum()


def test_integers_of_numpy_are_options_and_floats_are_refused(path):
    expected = numpy.frombuffer(path.read_bytes(), "f4", 17 * 3, 68).reshape(3, 17)
    options = {"offset": numpy.uint8(68), "count": numpy.int64(3)}
    for shape in (17, numpy.int64(17), numpy.array([17]), [17]):
        rows = Rows(path, "f4", shape, **options)
        assert len(rows) == 3 and (rows.batch(range(3)) == expected).all()
    for option, wrong in {"shape": 17.0, "offset": 68.0, "count": 3.0}.items():
        with pytest.raises(TypeError, match=f"{option}: {wrong} is no integer"):
            Rows(path, "f4", **{"shape": 17} | options | {option: wrong})
    with pytest.raises(TypeError, match="shape: 1.5 is no integer"):
        Rows(path, "f4", (17, 1.5), **options)


def test_a_batch_is_one_submission(path, monkeypatch):
    rows = rows_of(path, page_cache="own", memory="1MiB")
    calls = []
    file = rows._opened()

    class Counted:
        def readinto_many(self, offsets, buffers):
            calls.append(len(offsets))
            return file.readinto_many(offsets, buffers)

    monkeypatch.setattr(rows, "_file", Counted())
    rows.__getitems__([5, 900, 3])
    assert calls == [3]


@pytest.mark.parametrize("dtype", ["i8", ">f4", "M8[ns]", "S5", [("a", "u1"), ("b", "<f8")]])
def test_rows_of_npy_files(tmp_path, dtype):
    made = numpy.zeros((50, 3), dtype)
    made.view("u1").reshape(-1)[:] = numpy.arange(made.nbytes) % 251
    for at, array in enumerate((made, made[:, 0].copy(), made.reshape(25, 2, 3))):
        name = tmp_path / f"{at}.npy"
        numpy.save(name, array)
        rows = Rows(name)
        assert len(rows) == len(array)
        for index in (0, 7, len(array) - 1):
            assert rows[index].tobytes() == array[index].tobytes()
            expected = array[index]
            assert (rows[index].dtype, rows[index].shape) == (expected.dtype, expected.shape)


@pytest.mark.parametrize("name", ["é", "日本", "\x85\u200b", "Ã©"])
def test_names_of_fields_of_npy_files_are_those_that_numpy_loads(tmp_path, name):
    """A header of the version 3.0 is UTF-8. Characters that are not printed stand there as escapes."""
    with (tmp_path / "three.npy").open("wb") as file:
        numpy.lib.format.write_array(file, numpy.zeros(3, [(name, "<f4")]), (3, 0))
    expected = numpy.load(tmp_path / "three.npy").dtype
    assert expected.names == (name,)
    assert Rows(tmp_path / "three.npy").batch([0]).dtype == expected


@pytest.mark.parametrize("version", [b"\2", b"\3", b"\4"])
@pytest.mark.parametrize("header", [
    b"{'descr': '<f4'}", b"[1]", b"\xff\xfe", b"{'descr'", b"{'descr': 7, 'shape': (1,)}",
    b"{'descr': ('<f4',), 'fortran_order': False, 'shape': (1,)}",
])  # fmt: skip
def test_wrong_header_is_an_error_with_the_name(tmp_path, header, version):
    wrong = tmp_path / "wrong.npy"
    wrong.write_bytes(b"\x93NUMPY" + version + b"\0" + len(header).to_bytes(4, "little") + header)
    with pytest.raises(ValueError, match="wrong.npy: no file of NumPy"):
        Rows(wrong)


def test_shape_of_negative_lengths_is_refused(path):
    for shape in ((-1, -10), (-1, 4, -4)):
        with pytest.raises(ValueError, match="shape"):
            Rows(path, "f4", shape)


def test_records_are_the_ranges_of_the_file(path):
    whole = path.read_bytes()
    pairs = [(4, 64), (0, 4), (1000, 0), (63_000, 900)]
    for ranges in (pairs, numpy.array(pairs), numpy.array(pairs, ">u4")):
        records = Records(path, ranges)
        assert len(records) == 4
        expected = [whole[offset : offset + size] for offset, size in pairs]
        assert list(records) == expected
        assert records.__getitems__([3, 0, 0]) == [expected[3], expected[0], expected[0]]
    assert Records(path, pairs, transform=len)[3] == 900


def test_samples_outside_the_file_are_errors(path, tmp_path):
    rows, records = rows_of(path), Records(path, [(64_000, 8), (64_000, 9)])
    for wrong in (1000, -1001):
        with pytest.raises(IndexError, match=str(wrong)):
            rows[wrong]
    assert len(records[0]) == 8
    with pytest.raises(OSError, match="ends before byte 64009"):
        records[1]
    with pytest.raises(ValueError, match="file has"):
        rows_of(path, count=1001)
    with pytest.raises(ValueError, match="from 0 on"):
        Records(path, [(0, -1)])
    with pytest.raises(TypeError, match="type and shape"):
        Rows(path)
    with pytest.raises(ValueError, match="shape"):
        Rows(path, "f4", 0)
    (tmp_path / "x.npy").write_bytes(b"no array")
    with pytest.raises(ValueError, match="no file of NumPy"):
        Rows(tmp_path / "x.npy")
    numpy.save(tmp_path / "columns.npy", numpy.asfortranarray(TABLE))
    with pytest.raises(ValueError, match="adjacent"):
        Rows(tmp_path / "columns.npy")
    with pytest.raises(FileNotFoundError):
        Records(tmp_path / "none", [])


def test_indices_are_integers_of_any_type(path):
    rows, records = rows_of(path), Records(path, [(4, 64), (68, 64)])
    for index in (numpy.int8(-1), numpy.uint64(999), numpy.array(-1)):
        assert (rows[index] == TABLE[999]).all()
    assert (rows.batch(numpy.array([-1, 3], "i1")) == TABLE[[-1, 3]]).all()
    assert records[numpy.int8(-1)] == TABLE[1].tobytes()
    # Each of these would select a row that NumPy does not: a fraction, or True as row 1.
    for wrong in (1.0, 1.5, numpy.float32(2), numpy.True_, slice(0, 2), "1", None):
        for samples in (rows, records):
            with pytest.raises(TypeError, match="integer"):
                samples[wrong]
    for wrong in ([0, 1.5], numpy.array([0.0, 1.0]), numpy.array([True, False]), [True, False]):
        with pytest.raises(TypeError, match="integer"):
            rows.batch(wrong)
        with pytest.raises(TypeError, match="integer"):
            records.__getitems__(wrong)
    with pytest.raises(ValueError, match="shape"):
        rows.batch([[1, 2], [3, 4]])
    assert (rows.batch(index for index in (5, 999)) == TABLE[[5, 999]]).all()


@pytest.mark.parametrize(
    ("saved", "problem", "remedy"),
    [
        (numpy.array([{}, "x"], dtype=object), "no fixed size", "save numbers"),
        (numpy.zeros((5, 0)), "no bytes", "check type and shape"),
        (numpy.asfortranarray(TABLE), "by columns", "numpy.ascontiguousarray"),
        (numpy.float32(7), "no rows", "with an axis"),
    ],
)
def test_unusable_arrays_are_refused_by_their_reason(tmp_path, saved, problem, remedy):
    numpy.save(tmp_path / "saved.npy", saved)
    with pytest.raises(ValueError, match=f"saved.npy: .*{problem}.*{remedy}"):
        Rows(tmp_path / "saved.npy")


def test_a_part_of_a_row_at_the_end_is_refused(path):
    # 64,004 bytes behind the head are 1,000 rows of 64 bytes, and 4 bytes.
    with pytest.raises(ValueError, match="4 bytes are left behind 1000 rows of 64 bytes.*count=1000"):
        rows_of(path, count=None)
    with pytest.raises(ValueError, match="offset=-4"):
        Rows(path, "f4", 16, offset=-4)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_open_the_file_themselves(path, method):
    rows = rows_of(path)
    assert rows[0].sum() == TABLE[0].sum()
    batches = [list(range(at, at + 50)) for at in range(0, 1000, 50)]
    with multiprocessing.get_context(method).Pool(2) as pool:
        read = pool.map_async(rows.__getitems__, batches).get(60)
    assert (numpy.array(read).reshape(TABLE.shape) == TABLE).all()
    again = pickle.loads(pickle.dumps(rows))
    assert (again[5] == TABLE[5]).all()


def test_closed_samples_are_opened_again(path):
    rows = rows_of(path)
    rows.close(), rows.close()
    assert (rows[1] == TABLE[1]).all()


def test_torch_loads_batches(path):
    torch = pytest.importorskip("torch")
    order = numpy.random.default_rng(2).permutation(1000).tolist()
    loader = torch.utils.data.DataLoader(rows_of(path), batch_size=100, sampler=order, num_workers=2)
    assert torch.equal(torch.cat(list(loader)), torch.from_numpy(TABLE[order]))


def test_urls_have_rows(path):
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe("/rows", path.read_bytes())
    rows = rows_of("memory://rows")
    assert (rows.batch([999, 0]) == TABLE[[999, 0]]).all()
    assert readpath.Rows is Rows and readpath.Records is Records


def errno_in_child(work):
    """Returns the error number of `work` in a child of fork, 0 for a normal end."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
        finally:
            os._exit(255)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_child_refuses_a_replaced_file(tmp_path, is_closed):
    """Another file has rows of 40 numbers instead of 4. As for a `File`, ESTALE is the answer, not its bytes."""
    table = numpy.arange(40, dtype="i4").reshape(10, 4)
    numpy.save(tmp_path / "rows.npy", table)
    rows, records = Rows(tmp_path / "rows.npy"), Records(tmp_path / "rows.npy", [(128, 16)])
    assert (rows[3] == table[3]).all() and records[0] == table[0].tobytes()
    saved = [pickle.dumps(samples) for samples in (rows, records)]
    numpy.save(tmp_path / "other.npy", numpy.arange(400, dtype="i4").reshape(10, 40) + 1000)
    (tmp_path / "other.npy").rename(tmp_path / "rows.npy")
    for samples in (rows, records):
        if is_closed:
            samples.close()
            with pytest.raises(OSError, match="replaced") as raised:
                samples[0]
            assert raised.value.errno == errno.ESTALE
        else:
            # The open file of this process is still the first one.
            assert bytes(samples[0]) == table[0].tobytes()
        assert errno_in_child(lambda samples=samples: samples[0]) == errno.ESTALE
    for one in saved:
        with pytest.raises(OSError, match="create them again") as raised:
            pickle.loads(one)[0]
        assert raised.value.errno == errno.ESTALE and raised.value.filename == str(tmp_path / "rows.npy")


def test_a_file_rewritten_in_place_is_not_opened_again(path):
    rows = rows_of(path)
    saved = pickle.dumps(rows)
    rows.close()
    path.write_bytes(b"head" + (TABLE + 1).tobytes() + b"rest")
    os.utime(path, (1, 1))
    for samples in (rows, pickle.loads(saved)):
        with pytest.raises(OSError, match="has changed") as raised:
            samples[0]
        assert raised.value.errno == errno.ESTALE
    assert (rows_of(path)[0] == TABLE[0] + 1).all()


def test_pickled_samples_open_a_copy_on_another_machine(path, monkeypatch):
    """Device, inode and times of a copy differ, and its size does not."""
    saved = pickle.dumps(rows_of(path))
    os.utime(path, (1, 1))
    name = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((name[0], "another", *name[2:])))
    assert (pickle.loads(saved)[7] == TABLE[7]).all()
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(OSError, match="has changed"):
        pickle.loads(saved)[7]
