"""Arrays larger than memory: their faults are served by us, not by the kernel."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from readpath import _native
from readpath.files import PathLike
from readpath.modelled import memory_bytes


class _Memory:
    """What both kinds have in common: a buffer that is closed at the end."""

    _memory: _native.MappedFile | _native.PagedMemory

    @property
    def data(self) -> memoryview:
        """The memory as a buffer, for `numpy.frombuffer(mapping.data, …)`."""
        return memoryview(self._memory)

    def __len__(self) -> int:
        return len(self._memory)

    def stats(self) -> dict[str, int]:
        """What was counted since it was made: faults, bytes moved, bytes in memory."""
        return self._memory.stats()

    def close(self) -> None:
        """Gives the memory back. Raises BufferError while arrays look into it."""
        self._memory.close()

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


class Mapping(_Memory):
    """A file as read-only memory; see `map`."""

    def __init__(
        self,
        path: PathLike,
        memory: str | int = "256MiB",
        readahead: str = "runs",
        backend: str = "auto",
    ) -> None:
        if "://" in (name := os.fsdecode(path)):
            raise ValueError(f"{name}: only files of this machine can be mapped; open it instead")
        self._options = (path, memory, readahead, backend)
        self._memory_bytes = memory_bytes(memory)
        self._memory: _native.MappedFile = _native.MappedFile(
            name, self._memory_bytes, readahead, backend
        )

    def advise(self, advice: str, offset: int = 0, size: int | None = None) -> None:
        """A hint about a range: `willneed`, `dontneed`, or for all of it `sequential`, `random`."""
        self._memory.advise(advice, offset, max(0, len(self) - offset) if size is None else size)

    def load(self, offset: int, size: int) -> None:
        """Brings a range in, in the largest requests, and waits for it.

        Raises IndexError where it is not in the file, OSError where it can't be read.
        """
        self._memory.load(offset, size)

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
            self._memory.advise("willneed", offset, size)
            given.append((offset, size))
            asked_bytes += size
        for first, length in given:
            yield data[first : first + length]

    def __getitem__(self, part: slice) -> memoryview:
        """A part of the file, without a copy."""
        return self.data[part]

    def __repr__(self) -> str:
        return f"<readpath.Mapping {self._options[0]!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Mapping, self._options


def map(path: PathLike, **options: Any) -> Mapping:
    """A file as memory, as `mmap` gives it, with reads decided by a law of ours.

    `memory`: the most that pages of the file may take; those beyond it are given up
    and read again. `readahead`: the law, `runs` unless told otherwise. `backend`: `auto`
    (the first that suits of those that the system gives), `aio`, `io_uring` or `threads`.

    The file must not change meanwhile. To touch bytes that can't be read is a bus
    error, as it is with `mmap`; `load` raises OSError in its place. In a child made by
    `fork` arrays over it go on, by the kernel's own mapping of the file; `stats` doesn't. Raises OSError where it can't be opened, or where the
    system has no userfaultfd.
    """
    return Mapping(path, **options)


class Region(_Memory):
    """Writable memory of `size` zero bytes, most of them in a file or on a device.

    `memory`: the most that it may take of this machine's; `swap`: a folder for a
    file without a name, on a disk and not in memory as /tmp may be, or a block device; `swapin`:
    the law of what is brought in with a fault, `adaptive` unless told otherwise. Its data is
    gone with it. A child made by `fork` doesn't have it: to touch arrays over it there is a
    segmentation fault.

    Raises OSError where there is no room, or where the system has no userfaultfd.
    """

    def __init__(
        self,
        size: str | int,
        memory: str | int = "256MiB",
        swap: PathLike = "/var/tmp",
        swapin: str = "adaptive",
        backend: str = "auto",
    ) -> None:
        self._memory: _native.PagedMemory = _native.PagedMemory(
            memory_bytes(size), memory_bytes(memory), os.fsdecode(swap), swapin, backend
        )

    def check(self) -> None:
        """Raises OSError if a touch of the memory has met an error."""
        self._memory.check()
