"""Arrays larger than memory, whose page faults are served by readpath and not by the kernel.

Pages touched by the program are brought in, in any thread and library. For an ordinary user this
does not apply to accesses by the *kernel*. A system call on such memory, as in
`os.write(fd, mapping.data)`, `socket.send`, `file.write` or `readinto` of a `Region`, fails with
EFAULT ("Bad address") if a page is absent. It works with the right to serve kernel faults
(CAP_SYS_PTRACE, or the sysctl `vm.unprivileged_userfaultfd=1`). Without it, pass a copy: `copy`, or
`write_to` and `read_from` for large ranges. With NumPy: `numpy.save(file, array.copy())`, or
`mapping.write_to(file, start, stop)` in place of `array.tofile(file)`.
"""

from __future__ import annotations

import errno
import io
import os
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, overload

from readpath import _native
from readpath.files import PathLike, is_url
from readpath.modelled import memory_bytes, size_bytes
from readpath.places import Ranges, pairs_in_turn

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIECE_BYTES = 1 << 20
"""Size in bytes of the pieces copied for the kernel."""


class Writable(Protocol):
    """Object with a file's `write`, which returns the number of bytes written, or None for all.

    A raw file (`io.RawIOBase`) returns None for none, if it would block.
    """

    def write(self, data: Buffer, /) -> int | None: ...


class Readable(Protocol):
    """Object with a file's `readinto`, which returns the number of bytes, 0 at the end.

    It returns None if it would block, as raw files do.
    """

    def readinto(self, buffer: Any, /) -> int | None: ...


class HasFileno(Protocol):
    """Object with a descriptor, for example a socket."""

    def fileno(self) -> int: ...


class _Memory:
    """Methods common to `Mapping` and `Region`. The native base class exports the buffer."""

    @property
    def data(self) -> memoryview:
        """The memory as a buffer. The object itself is one too: `numpy.frombuffer(mapping, …)`, `bytes(mapping)`.

        Use `copy` and `write_to` for memory that the kernel reads or fills.
        """
        return memoryview(self)  # type: ignore[arg-type]

    if TYPE_CHECKING:

        def __len__(self) -> int: ...

        def close(self) -> None: ...

    def copy(self, start: int = 0, stop: int | None = None) -> bytearray:
        """Returns a copy of the bytes from `start` to `stop` (exclusive), usable in every system call.

        As with a slice, negative numbers count from the end. Raises OSError if a file cannot be read.
        """
        begin, end, _ = slice(start, stop).indices(len(self))
        whole = bytearray(max(0, end - begin))
        for at in range(begin, end, PIECE_BYTES):
            piece_end = min(at + PIECE_BYTES, end)
            self._bring_in(at, piece_end)
            with self.data as data, data[at:piece_end] as piece:
                whole[at - begin : piece_end - begin] = piece
        return whole

    def write_to(
        self, target: int | Writable | HasFileno, start: int = 0, stop: int | None = None
    ) -> int:
        """Writes the bytes from `start` to `stop` (exclusive) and returns their number.

        `target`: a descriptor, a file open for writing, or a socket. The bytes are copied first, in
        pieces, since the kernel may be unable to read the memory itself.

        Raises OSError as `os.write` does, BlockingIOError if a raw file would block, or OSError if a
        file cannot be read.
        """
        write: Callable[[Buffer], int | None]
        if isinstance(target, int):
            write = _to_descriptor(target)
        elif hasattr(target, "write"):
            write = target.write
        else:
            write = _to_descriptor(target.fileno())
        begin, end, _ = slice(start, stop).indices(len(self))
        for at in range(begin, end, PIECE_BYTES):
            rest = memoryview(self.copy(at, min(at + PIECE_BYTES, end)))
            while rest:
                written = write(rest)
                if written is None and isinstance(target, io.RawIOBase):
                    raise would_block()
                rest = rest[len(rest) if written is None else written :]
        return max(0, end - begin)

    def _bring_in(self, start: int, stop: int) -> None:
        """Brings a range into memory before it is copied. No effect for a `Region`: the copy touches it."""

    def __enter__(self) -> Self:
        len(self)  # Raises ValueError if it is closed, as files do.
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Releases the memory, unless an error ends the block."""
        # After an error it stays open: the traceback may hold arrays, and then `close` would raise
        # BufferError.
        if error is None:
            self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, trace)


class Mapping(_native.MappedFile, _Memory):
    """A file as read-only memory; see `map`.

    It is a buffer: `numpy.asarray(mapping)`, `bytes(mapping)` and `memoryview(mapping)` see the file's bytes.
    """

    def __new__(
        cls,
        path: PathLike,
        memory: str | int = "256MiB",
        readahead: str = "adaptive",
        backend: str = "auto",
        kernel_cache: bool = True,
    ) -> Self:
        """Maps a file, as `map` does. Raises ValueError for a URL."""
        name = os.fsdecode(path)
        if is_url(path):
            raise ValueError(f"{name}: only files of this machine can be mapped; open it instead")
        budget = memory_bytes(memory)
        mapping = super().__new__(cls, name, budget, readahead, backend, kernel_cache)
        mapping._options = (path, memory, readahead, backend, kernel_cache)
        mapping._memory_bytes = budget
        return mapping

    _options: tuple[Any, ...]
    _memory_bytes: int

    def _bring_in(self, start: int, stop: int) -> None:
        """Loads a range. Raises OSError if it cannot be read; a touch would be a bus error."""
        super().load(start, stop - start)

    def advise(self, advice: str, offset: int = 0, size: int | None = None) -> None:
        """Gives a hint about a range: `willneed`, `dontneed`, or for the whole file `sequential`, `random`."""
        super().advise(advice, offset, max(0, len(self) - offset) if size is None else size)

    def advise_many(self, advice: str, ranges: Ranges) -> None:
        """As `advise`, about each `(offset, size)`: pairs, or an array of integers with two columns."""
        super().advise_many(advice, ranges)

    def load(self, offset: int, size: int) -> None:
        """Loads a range with requests of the largest size, and waits for it.

        Raises IndexError for a range outside the file, OSError if it cannot be read.
        """
        super().load(offset, size)

    def pieces(
        self, ranges: Ranges, ahead: str | int | None = None
    ) -> Iterator[memoryview]:
        """Yields the bytes of each `(offset, size)` in this order, and prefetches the following ones.

        `ranges`: pairs, also from a generator, or an array of integers with two columns.
        `ahead`: number of bytes prefetched before the current piece, by default a quarter of the
        memory. A larger piece is prefetched whole, as far as memory allows. The last pieces stay in
        memory while it suffices. Release all pieces before `close`.

        Raises IndexError for a range outside the file.
        """
        ahead_bytes = self._memory_bytes // 4 if ahead is None else size_bytes(ahead, "ahead")
        # Prefetched pieces that are not yielded yet, and their bytes.
        prefetched: deque[tuple[int, int]] = deque()
        prefetched_bytes = 0
        data = self.data
        for offset, size in pairs_in_turn(ranges):
            if not 0 <= offset <= offset + size <= len(data):
                raise IndexError(f"bytes {offset} to {offset + size} of a file of {len(data)}")
            while prefetched and prefetched_bytes + size > ahead_bytes:
                first, length = prefetched.popleft()
                prefetched_bytes -= length
                yield data[first : first + length]
            super().advise("willneed", offset, size)
            prefetched.append((offset, size))
            prefetched_bytes += size
        for first, length in prefetched:
            yield data[first : first + length]

    @overload
    def __getitem__(self, part: slice) -> memoryview: ...
    @overload
    def __getitem__(self, part: int) -> int: ...
    def __getitem__(self, part: slice | int) -> memoryview | int:
        """Returns a part of the file without a copy, or one byte."""
        return self.data[part]

    def __repr__(self) -> str:
        return f"<readpath.Mapping {self._options[0]!r}{' closed' if self.closed else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Mapping, self._options


def map(
    path: PathLike,
    memory: str | int = "256MiB",
    readahead: str = "adaptive",
    backend: str = "auto",
    kernel_cache: bool = True,
) -> Mapping:
    """Maps a file as memory, like `mmap`, with a readahead policy of readpath.

    `memory`: maximum memory for pages of the file, at least 256 KiB (smaller values are raised). Pages
    beyond it are evicted and read again. `readahead`: the policy, by default `adaptive`. `backend`:
    `aio`, `io_uring`, `threads`, or `auto` for the first suitable one. `kernel_cache`: True if the
    kernel maps a file that is entirely in its page cache, which avoids a second copy.

    The file must not change. An access to unreadable bytes is a bus error, as with `mmap`; `load` and
    `copy` raise OSError instead.

    An ordinary user's system calls can't read it: `os.write(fd, mapping.data)`, `socket.send(…)` and
    the like fail with EFAULT ("Bad address"). Give them `mapping.copy(start, stop)`, or use
    `mapping.write_to(fd, start, stop)`.

    In a child of `fork` arrays over it stay usable through the kernel's mapping of the file, but
    `stats` does not. The kernel maps the file if userfaultfd is missing or forbidden, or if the kernel
    page cache holds the file. With default options it also maps a file that it reads in no slower than
    a served mapping does. Then `mapping.mode` is `kernel`, and `mapping.fallback` gives the reason.
    `memory` has no effect then, and `stats` stays 0. Raises OSError if the file cannot be opened.
    """
    return Mapping(path, memory, readahead, backend, kernel_cache)


def would_block() -> BlockingIOError:
    """Returns the error of a file that is not ready."""
    return BlockingIOError(errno.EAGAIN, "the file is not ready; wait for it, or make it blocking")


def _from_descriptor(descriptor: int) -> Callable[[memoryview], int]:
    """Returns a function that reads from a descriptor into a buffer, and returns the number of bytes."""
    return lambda piece: os.readv(descriptor, [piece])


def _to_descriptor(descriptor: int) -> Callable[[Buffer], int]:
    """Returns a function that writes a buffer to a descriptor, and returns the number of bytes written."""
    return lambda data: os.write(descriptor, data)


class Region(_native.PagedMemory, _Memory):
    """Writable memory of `size` zero bytes, paged to a file or a device.

    `memory`: maximum of resident memory. `swap`: a folder on a disk for an unnamed file (/tmp may be
    in memory), or a block device. `swapin`: the policy of the pages brought in with a fault, by
    default `adaptive`. The data is lost when the object is closed.

    An ordinary user's system calls can't read or fill it: `os.write(fd, region.data)`,
    `file.readinto(region.data)` and the like fail with EFAULT ("Bad address") where a page is absent.
    Give them `region.copy(start, stop)`, use `region.write_to(fd, start, stop)`, and fill it by
    `region.read_from(file, start, stop)`.

    A child of `fork` does not have it: methods raise ValueError, and an access to arrays over it ends
    the child. A child that needs such memory must create its own.

    Raises OSError without enough space, or without userfaultfd.
    """

    def __new__(
        cls,
        size: str | int,
        memory: str | int = "256MiB",
        swap: PathLike = "/var/tmp",
        swapin: str = "adaptive",
        backend: str = "auto",
    ) -> Self:
        return super().__new__(
            cls, size_bytes(size, "size"), memory_bytes(memory), os.fsdecode(swap), swapin, backend
        )

    def read_from(
        self, source: int | Readable | HasFileno, start: int = 0, stop: int | None = None
    ) -> int:
        """Fills the bytes from `start` to `stop` (exclusive). Returns their number, fewer if the source ends.

        `source`: a descriptor, a file open for reading bytes, or a socket. The bytes are copied in
        pieces, since the kernel may be unable to fill the memory itself.

        Raises OSError as `os.read` does, BlockingIOError if a raw file would block.
        """
        fill: Callable[[memoryview], int | None]
        if isinstance(source, int):
            fill = _from_descriptor(source)
        elif hasattr(source, "readinto"):
            fill = source.readinto
        else:
            fill = _from_descriptor(source.fileno())
        begin, end, _ = slice(start, stop).indices(len(self))
        piece = memoryview(bytearray(min(PIECE_BYTES, max(0, end - begin))))
        at = begin
        while at < end and (count := fill(piece[: end - at])) != 0:
            if count is None:
                raise would_block()
            with self.data as data:
                data[at : at + count] = piece[:count]
            at += count
        return at - begin

    def __repr__(self) -> str:
        return f"<readpath.Region {'closed' if self.closed else f'of {len(self)} bytes'}>"
