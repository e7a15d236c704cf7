"""Map-style datasets over one file: rows of one size, and records of any size.

Both have the methods that torch's DataLoader calls on a dataset. A batch of indices is one submission of
reads: `__getitems__` reads all of its rows in parallel. Processes made by fork or spawn open the file
themselves. They raise OSError (`ESTALE`) if another file has its name then: types, offsets and ranges are
the ones of the first file.
"""

from __future__ import annotations

import ast
import errno
import io
import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from readpath.files import File, PathLike, is_url, open
from readpath.places import Ranges, pairs_of

if TYPE_CHECKING:
    import numpy
    from numpy.typing import DTypeLike

TRIES_MAX = 10
"""Maximum number of openings of a file that changes meanwhile. Chosen."""


class _Version(NamedTuple):
    """Version of a file, for a comparison with the file that a later opening finds."""

    size: int
    machine: str
    """Name of the machine that has opened a local file. Empty for a file by URL."""
    details: tuple[int, ...] | str | None
    """Inode and time of the last change of a local file in nanoseconds, or the version of an object."""

    def agrees(self, other: _Version) -> bool:
        """Returns True if no change is known. On another machine only the sizes are compared."""
        # A copy of the file has another inode and other times there.
        return self == other or self.machine != other.machine and self.size == other.size


class _Samples:
    """Samples of one file by index. The file is opened at the first read of each process."""

    def __init__(self, path: PathLike, count: int, transform: Callable[[Any], Any] | None, options: dict[str, Any]) -> None:
        """`count`: number of samples. `options`: the ones of `readpath.open`."""
        self._path: Any = path if is_url(path) else os.path.abspath(os.fspath(path))
        self._options = options
        self._count = count
        self._transform = transform
        self._file: Any = None
        self._process = 0
        # Version at the first opening, which type, offset and ranges belong to.
        self._version: _Version | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        """Reads one sample. A negative index counts from the end."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """Reads the samples of a batch together, and returns them in the order of the indices.

        Raises IndexError for an index outside the dataset, TypeError for one that is no integer (True and
        False are none here), OSError (`EIO`) if the file has become shorter, OSError (`ESTALE`) if it was
        replaced before this process or a reopening has opened it.
        """
        samples = self._read([self._checked(index) for index in indices])
        return samples if self._transform is None else [self._transform(sample) for sample in samples]

    def __iter__(self) -> Iterator[Any]:
        """Reads all samples in order, 256 at a time."""
        for first in range(0, self._count, 256):
            yield from self.__getitems__(range(first, min(first + 256, self._count)))

    def close(self) -> None:
        """Closes the file of this process. A later read opens it again, unless it has changed."""
        if self._file is not None and self._is_usable():
            self._file.close()
        self._file = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}

    def _read(self, indices: list[int]) -> list[Any]:
        """Reads the samples with these indices, all from 0 to the last one."""
        raise NotImplementedError

    def _opened(self) -> Any:
        """Returns the file of this process, which the first call opens.

        Raises OSError (`ESTALE`) for another version than the one of the first opening.
        """
        if self._file is None or not self._is_usable():
            file = open(self._path, **self._options)
            version = _version_of(file)
            if self._version is not None and not self._version.agrees(version):
                file.close()
                text = "the file was replaced or has changed since these samples were created; create them again"
                raise OSError(errno.ESTALE, text, self._path)
            self._file, self._process, self._version = file, os.getpid(), version
        return self._file

    def _is_usable(self) -> bool:
        """Returns True for a file that this process may read."""
        # In a child of fork a `File` opens itself again, and checks that it finds the same file.
        return isinstance(self._file, File) or self._process == os.getpid()

    def _checked(self, index: int) -> int:
        """Returns the index counted from the start. Raises TypeError or IndexError for an unusable one."""
        # A mask of True and False would select rows 1 and 0. `operator.index` refuses NumPy's.
        if isinstance(index, bool):
            raise TypeError(f"the index {index} is no integer; for a mask give `numpy.flatnonzero(mask)`")
        try:
            given = operator.index(index)
        except TypeError:
            raise TypeError(f"the index {index!r} is no integer") from None
        at = given + self._count if given < 0 else given
        if not 0 <= at < self._count:
            raise IndexError(f"sample {given} of {self._count}")
        return at

    def _shorter(self, end: int) -> OSError:
        return OSError(errno.EIO, f"it ends before byte {end}", self._path)


def _version_of(file: Any) -> _Version:
    """Returns the version of an open file. A local file that has changed since is opened again."""
    if not isinstance(file, File) or is_url(file._path):
        return _Version(file.size, "", getattr(file, "_version", None))
    for _ in range(TRIES_MAX):
        found = os.stat(file._path)
        # False: the file that was opened still has its name, so the details are its own.
        if not file.revalidate():
            break
    # A device number may change when the file system is mounted again, so it is no part.
    return _Version(file.size, os.uname().nodename, (found.st_ino, found.st_mtime_ns))


def _integer(option: str, value: Any) -> int:
    """Returns an option as an integer. Raises TypeError that names the option for another type, such as a float."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{option}: {value!r} is no integer") from None


def _row_bytes_of(dtype: numpy.dtype[Any], shape: tuple[int, ...], offset: int, name: str) -> int:
    """Returns the size of a row in bytes. Raises ValueError for a row that no file can have."""
    if dtype.hasobject:
        raise ValueError(f"{name}: objects have no fixed size; save numbers, or text of one length such as 'U20'")
    if min(shape, default=0) < 0:
        raise ValueError(f"{name}: the shape {shape} of a row has a negative length; give lengths from 1 on")
    if offset < 0:
        raise ValueError(f"{name}: offset={offset}: give a number from 0 on")
    if not (row_bytes := dtype.itemsize * math.prod(shape)):
        raise ValueError(f"{name}: rows of the type {dtype} and shape {shape} have no bytes; check type and shape")
    return row_bytes


class Rows(_Samples):
    """Rows of one type and shape: embeddings, tokens, images of one size, the rows of a `.npy` file.

    - `dtype`, `shape`: type of the numbers, and shape of one row. Both are read from the header of a file
      that ends with `.npy`, whose first axis is the axis of rows.
    - `offset`: first byte of the first row; `count`: number of rows, by default up to the end of the file,
      which then is the end of a row.
    - `transform`: is called with each row, a `numpy.ndarray`.
    - `options`: the options of `readpath.open`.

    Raises ValueError for a file that is too short or whose rows are not adjacent, TypeError for a missing type.
    """

    def __init__(
        self,
        path: PathLike,
        dtype: DTypeLike | None = None,
        shape: int | Sequence[int] = (),
        *,
        offset: int = 0,
        count: int | None = None,
        transform: Callable[[numpy.ndarray[Any, Any]], Any] | None = None,
        **options: Any,
    ) -> None:
        import numpy

        super().__init__(path, 0, transform, options)
        file = self._opened()
        name = os.fsdecode(self._path)
        if dtype is None:
            if not name.endswith(".npy"):
                raise TypeError(f"{name}: give the type and shape of a row, as in Rows(path, 'float32', 768)")
            self._dtype, self._shape, self._offset, self._count = _npy_header(file, name)
            if shape != () or offset or count is not None:
                raise TypeError(f"{name}: its header has the shape and number of the rows")
        else:
            self._dtype = numpy.dtype(dtype)
            lengths = shape if isinstance(shape, Iterable) else (shape,)
            self._shape = tuple(_integer("shape", length) for length in lengths)
            self._offset = _integer("offset", offset)
        self._row_bytes = row_bytes = _row_bytes_of(self._dtype, self._shape, self._offset, name)
        if dtype is not None and count is not None:
            self._count = _integer("count", count)
        elif dtype is not None:
            self._count, rest = divmod(max(0, file.size - self._offset), row_bytes)
            # A rest would hide a wrong type or shape.
            if rest:
                raise ValueError(
                    f"{name}: {rest} bytes are left behind {self._count} rows of {row_bytes} bytes; check type and "
                    f"shape of a row, or give count={self._count}"
                )
        end = self._offset + self._count * row_bytes
        if self._count < 0 or end > file.size:
            raise ValueError(f"{name}: {self._count} rows end at byte {end}, and the file has {file.size}")

    def batch(self, indices: Iterable[int]) -> numpy.ndarray[Any, Any]:
        """Reads rows together into one array, in the order of the indices. `transform` is not called."""
        import numpy

        # NumPy takes a generator for a single object.
        given = numpy.asarray(indices if hasattr(indices, "__getitem__") else list(indices))
        if given.ndim != 1:
            raise ValueError(f"indices of the shape {list(given.shape)}: give them in one row")
        return self._array([self._checked(index) for index in given.tolist()])

    def _array(self, indices: list[int]) -> numpy.ndarray[Any, Any]:
        """Reads the rows with these indices into a new array. Raises OSError if the file has become shorter."""
        import numpy

        rows = numpy.empty((len(indices), *self._shape), self._dtype)
        if not indices:
            return rows
        offsets = [self._offset + index * self._row_bytes for index in indices]
        # `readinto_many` takes bytes: types such as datetime64 are no buffers.
        counts = self._opened().readinto_many(offsets, rows.reshape(-1).view("u1"))
        for offset, count in zip(offsets, counts, strict=True):
            if count < self._row_bytes:
                raise self._shorter(offset + self._row_bytes)
        return rows

    def _read(self, indices: list[int]) -> list[Any]:
        return list(self._array(indices))


class Records(_Samples):
    """Records of any size: `ranges` are the offset and size of each in the file.

    - `ranges`: pairs, or an array of integers with two columns.
    - `transform`: is called with the bytes of each record, and decodes them.
    - `options`: the options of `readpath.open`.
    """

    def __init__(
        self,
        path: PathLike,
        ranges: Ranges,
        *,
        transform: Callable[[bytes], Any] | None = None,
        **options: Any,
    ) -> None:
        self._ranges = pairs_of(ranges)
        if any(min(pair) < 0 for pair in self._ranges):
            raise ValueError("ranges: give offsets and sizes from 0 on")
        super().__init__(path, len(self._ranges), transform, options)
        self._opened()

    def _read(self, indices: list[int]) -> list[Any]:
        ranges = [self._ranges[index] for index in indices]
        records: list[bytes] = self._opened().readat_many(ranges)
        for (offset, size), record in zip(ranges, records, strict=True):
            if len(record) < size:
                raise self._shorter(offset + size)
        return records


def _npy_header(file: Any, name: str) -> tuple[Any, tuple[int, ...], int, int]:
    """Returns the type and shape of a row, the offset of the first row and the number of rows.

    Raises ValueError for a file that is not in the format, or whose rows are not adjacent.
    """
    import tokenize

    from numpy.lib import format as npy

    # The header is text, padded to a multiple of 64 bytes: 64 KiB are far more than any needs.
    start = io.BytesIO(file.readat(0, 1 << 16))
    try:
        version = npy.read_magic(start)
        readers: dict[Any, Callable[[io.BytesIO], Any]] = {
            (1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0, (3, 0): _npy_header_3
        }  # fmt: skip
        if version not in readers:
            raise ValueError(f"its version is {version}; known are {', '.join(map(str, readers))}")
        shape, is_by_columns, dtype = readers[version](start)
    # NumPy looks for integers of Python 2 in a wrong header, by tokens.
    except (ValueError, IndexError, MemoryError, RecursionError, tokenize.TokenError) as error:
        raise ValueError(f"{name}: no file of NumPy: {error}") from None
    if not shape:
        raise ValueError(f"{name}: a single number has no rows; save an array with an axis")
    if is_by_columns and len(shape) > 1:
        raise ValueError(
            f"{name}: the array was saved by columns, so its rows are not adjacent; save numpy.ascontiguousarray(array)"
        )
    return dtype, tuple(shape[1:]), start.tell(), shape[0]


def _npy_header_3(start: io.BytesIO) -> tuple[tuple[int, ...], bool, Any]:
    """Reads a header of the version 3.0, which is UTF-8, as `read_array_header_2_0` reads one in Latin-1.

    Raises ValueError for a wrong header.
    """
    from numpy.lib import format as npy

    size = int.from_bytes(start.read(4), "little")
    text = start.read(size)
    if len(text) < size:
        raise ValueError(f"its header has {len(text)} bytes instead of {size}")
    try:
        header = ast.literal_eval(text.decode())
        shape, is_by_columns = tuple(map(operator.index, header["shape"])), header["fortran_order"]
        dtype = npy.descr_to_dtype(header["descr"])
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise ValueError(f"its header is wrong: {error}") from None
    return shape, bool(is_by_columns), dtype
