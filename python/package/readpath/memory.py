"""Arrays larger than memory: their faults are served by us, not by the kernel.

What the program itself touches is brought in for it, in whatever thread and library. What the *kernel*
touches for it is not, for an ordinary user: a system call that is given such memory, as in
`os.write(fd, mapping.data)`, `socket.send`, `file.write` or `readinto` of a `Region`, fails with EFAULT
("Bad address") where a page of it is absent. It works for whoever may serve faults of the kernel
(CAP_SYS_PTRACE, or the sysctl `vm.unprivileged_userfaultfd=1`); everybody can give a copy: `copy`, and
`write_to` and `read_from` for what is large. So with NumPy: `numpy.save(file, array.copy())`, or
`mapping.write_to(file, start, stop)` in place of `array.tofile(file)`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, overload

from readpath import _native
from readpath.files import PathLike
from readpath.modelled import memory_bytes
from readpath.places import Ranges

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIECE_BYTES = 1 << 20
"""What is copied for the kernel at a time."""


class Writable(Protocol):
    """What has `write` as files have: it takes all of a piece, or says how much."""

    def write(self, data: Buffer, /) -> int | None: ...


class Readable(Protocol):
    """What has `readinto` as files have: it gives how many bytes there were, 0 at the end."""

    def readinto(self, buffer: Any, /) -> int | None: ...


class HasFileno(Protocol):
    """What stands for a descriptor: a socket, say."""

    def fileno(self) -> int: ...


class _Memory:
    """What both kinds have in common, beside the buffer that the native one is."""

    @property
    def data(self) -> memoryview:
        """The memory as a buffer. It is one itself, too: `numpy.frombuffer(mapping, …)`, `bytes(mapping)`.

        For the program's own use: where the kernel is to read or fill it, see `copy` and `write_to`.
        """
        return memoryview(self)  # type: ignore[arg-type]

    if TYPE_CHECKING:

        def __len__(self) -> int: ...

        def close(self) -> None: ...

    def copy(self, start: int = 0, stop: int | None = None) -> bytearray:
        """A copy of the bytes from `start` up to, and without, `stop`, which every system call takes.

        As with a slice, negative numbers count from the end. Raises OSError where a file can't be read.
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
        """Writes the bytes from `start` up to, and without, `stop`; gives how many.

        `target`: a descriptor, a file that is open for writing, or a socket. What is written is copied
        before, a piece at a time, since the kernel may not be able to read the memory itself.

        Raises OSError as `os.write` does, or where a file can't be read.
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
                rest = rest[len(rest) if written is None else written :]
        return max(0, end - begin)

    def _bring_in(self, start: int, stop: int) -> None:
        """Brings a range into memory, where that can be done without touching it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        if "://" in (name := os.fsdecode(path)):
            raise ValueError(f"{name}: only files of this machine can be mapped; open it instead")
        budget = memory_bytes(memory)
        mapping = super().__new__(cls, name, budget, readahead, backend, kernel_cache)
        mapping._options = (path, memory, readahead, backend, kernel_cache)
        mapping._memory_bytes = budget
        return mapping

    _options: tuple[Any, ...]
    _memory_bytes: int

    def _bring_in(self, start: int, stop: int) -> None:
        super().load(start, stop - start)

    def advise(self, advice: str, offset: int = 0, size: int | None = None) -> None:
        """A hint about a range: `willneed`, `dontneed`, or for all of it `sequential`, `random`."""
        super().advise(advice, offset, max(0, len(self) - offset) if size is None else size)

    def advise_many(self, advice: str, ranges: Ranges) -> None:
        """As `advise`, about each `(offset, size)`: pairs, or an array of 64-bit integers with two columns."""
        super().advise_many(advice, ranges)

    def load(self, offset: int, size: int) -> None:
        """Brings a range in, in the largest requests, and waits for it.

        Raises IndexError where it is not in the file, OSError where it can't be read.
        """
        super().load(offset, size)

    def pieces(
        self, ranges: Iterable[tuple[int, int]], ahead: str | int | None = None
    ) -> Iterator[memoryview]:
        """Gives the bytes of each `(offset, size)` in this order, and reads those behind it meanwhile.

        `ahead`: how much is asked for in front of the piece that is being used; a quarter of
        the memory unless told otherwise. A piece that is larger comes in whole, as far as there
        is memory. The last pieces stay in memory as long as it lasts; let go of all of them
        before `close`.

        Raises IndexError where a range is not in the file.
        """
        ahead_bytes = self._memory_bytes // 4 if ahead is None else memory_bytes(ahead)
        given: deque[tuple[int, int]] = deque()
        asked_bytes = 0
        data = self.data
        for offset, size in ranges:
            if not 0 <= offset <= offset + size <= len(data):
                raise IndexError(f"bytes {offset} to {offset + size} of a file of {len(data)}")
            while given and asked_bytes + size > ahead_bytes:
                first, length = given.popleft()
                asked_bytes -= length
                yield data[first : first + length]
            super().advise("willneed", offset, size)
            given.append((offset, size))
            asked_bytes += size
        for first, length in given:
            yield data[first : first + length]

    @overload
    def __getitem__(self, part: slice) -> memoryview: ...
    @overload
    def __getitem__(self, part: int) -> int: ...
    def __getitem__(self, part: slice | int) -> memoryview | int:
        """A part of the file, without a copy; or one byte."""
        return self.data[part]

    def __repr__(self) -> str:
        return f"<readpath.Mapping {self._options[0]!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Mapping, self._options


def map(
    path: PathLike,
    memory: str | int = "256MiB",
    readahead: str = "adaptive",
    backend: str = "auto",
    kernel_cache: bool = True,
) -> Mapping:
    """A file as memory, as `mmap` gives it, with reads decided by a policy of ours.

    `memory`: the most that pages of the file may take, 256 KiB at least (less is raised to that); those
    beyond it are given up and read again. `readahead`: the policy, `adaptive` unless told otherwise. `backend`: `auto`
    (the first that suits of those that the system gives), `aio`, `io_uring` or `threads`. `kernel_cache`:
    whether a file that the kernel's cache holds whole is mapped by the kernel, without a second copy.

    The file must not change meanwhile. To touch bytes that can't be read is a bus
    error, as it is with `mmap`; `load` and `copy` raise OSError in its place.

    An ordinary user's system calls can't read it: `os.write(fd, mapping.data)`, `socket.send(…)` and
    the like fail with EFAULT ("Bad address"). Give them `mapping.copy(start, stop)`, or use
    `mapping.write_to(fd, start, stop)`.

    In a child made by `fork` arrays over it go on, by the kernel's own mapping of the file; `stats`
    doesn't. Where the system has no userfaultfd, or forbids it, and where its cache holds the file, the kernel
    maps it: `mapping.mode` is `kernel` then, and `mapping.fallback` says why. Raises OSError where the file can't be opened.
    """
    return Mapping(path, memory, readahead, backend, kernel_cache)


def _from_descriptor(descriptor: int) -> Callable[[memoryview], int]:
    return lambda piece: os.readv(descriptor, [piece])


def _to_descriptor(descriptor: int) -> Callable[[Buffer], int]:
    return lambda data: os.write(descriptor, data)


class Region(_native.PagedMemory, _Memory):
    """Writable memory of `size` zero bytes, most of them in a file or on a device.

    `memory`: the most that it may take of this machine's; `swap`: a folder for a
    file without a name, on a disk and not in memory as /tmp may be, or a block device; `swapin`:
    the policy of what is brought in with a fault, `adaptive` unless told otherwise. Its data is
    gone with it.

    An ordinary user's system calls can't read or fill it: `os.write(fd, region.data)`,
    `file.readinto(region.data)` and the like fail with EFAULT ("Bad address") where a page is absent.
    Give them `region.copy(start, stop)`, use `region.write_to(fd, start, stop)`, and fill it by
    `region.read_from(file, start, stop)`.

    A child made by `fork` doesn't have it: its methods raise ValueError there, and to touch arrays
    over it ends the child. Have a child that needs such memory make its own.

    Raises OSError where there is no room, or where the system has no userfaultfd.
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
            cls, memory_bytes(size), memory_bytes(memory), os.fsdecode(swap), swapin, backend
        )

    def read_from(
        self, source: int | Readable | HasFileno, start: int = 0, stop: int | None = None
    ) -> int:
        """Fills the bytes from `start` up to, and without, `stop`; gives how many: fewer where the source ends.

        `source`: a descriptor, a file that is open for reading bytes, or a socket. What is read is copied, a
        piece at a time, since the kernel may not be able to fill the memory itself.

        Raises OSError as `os.read` does.
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
        while at < end and (count := fill(piece[: end - at])):
            with self.data as data:
                data[at : at + count] = piece[:count]
            at += count
        return at - begin

    def __repr__(self) -> str:
        return f"<readpath.Region {'closed' if self.closed else f'of {len(self)} bytes'}>"
