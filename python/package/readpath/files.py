"""Files and block devices, read through our path: io_uring, our page cache, our readahead."""

from __future__ import annotations

import asyncio
import io
import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from readpath import _native
from readpath.modelled import memory_bytes
from readpath.options import check_names

if TYPE_CHECKING:
    from typing_extensions import Buffer

PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]

OF_THE_HANDLE = frozenset({"normal", "sequential", "random"})
"""The hints that hold for all later reads through a file, not for a range at the moment."""


class ReadPath:
    """A read path of one's own: a page cache with its memory, its laws, and its ring.

    `memory`: of the page cache, taken from the system as it is used. `readahead`,
    `scheduler`, `reclaim`: laws by name. `depth`: the most requests in the storage at once.
    `backend`: `auto`, the first that suits of those that the system gives, or one of `aio`,
    `io_uring` and `threads`.
    """

    NAMES = ("memory", "readahead", "scheduler", "depth", "backend", "reclaim")
    """What the options are called, in their order."""

    def __init__(
        self,
        memory: str | int = "256MiB",
        readahead: str = "adaptive",
        scheduler: str = "adaptive",
        depth: int = 128,
        backend: str = "auto",
        reclaim: str = "adaptive",
    ) -> None:
        """Builds it.

        Raises ValueError where an option can't be used, or there is no ring.
        """
        self._options = (memory, readahead, scheduler, depth, backend, reclaim)
        self._engine = _native.Engine(
            memory_bytes(memory), readahead, scheduler, reclaim, depth, backend
        )

    def open(self, path: PathLike) -> File:
        """Opens a file or a block device for reading, or a file on an NFS server by its URL.

        A server's file, `nfs://HOST[:PORT]/EXPORT/PATH[?rsize=…]`, is read past the kernel, without a
        mount, by a read path of its own with the options of this one.

        Raises the OSError of the kernel's or the server's answer: FileNotFoundError,
        IsADirectoryError, PermissionError, …
        """
        return File(path, self)

    def stats(self) -> dict[str, int]:
        """What was counted since it was built, or, in a child made by fork, since its first use there."""
        return self._engine.stats()

    def __repr__(self) -> str:
        options = zip(self.NAMES, self._options, strict=True)
        return f"ReadPath({', '.join(f'{name}={value!r}' for name, value in options)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (usual, ()) if self is _usual else (ReadPath, self._options)


class File(io.RawIOBase):
    """A file that is open for reading.

    In a child made by fork, as the workers of a data loader are, it is opened again when it is first used.
    As `io.FileIO`, and at any place by `readat`, `readat_many`, and
    `areadat` in asyncio. Reads at a place may come from any number of threads.
    """

    readinto: Callable[[Buffer], int]
    read: Callable[..., bytes]
    readat: Callable[[int, int], bytes]
    readinto_at: Callable[[int, Buffer], int]
    prefetch: Callable[[int, int], None]

    def __init__(self, path: PathLike, within: ReadPath) -> None:
        self.name: str | bytes = os.fspath(path)
        self.mode = "rb"
        self._within = within
        self._advice: str | None = None
        self._file = file = within._engine.open(os.fsdecode(path))
        # Straight to the native methods: a cached read takes less than a Python call.
        self.readinto = file.readinto
        self.read = file.read
        self.readat = file.readat
        self.readinto_at = file.readinto_at
        self.prefetch = file.prefetch
        self.tell = file.tell  # type: ignore[method-assign]

    @property
    def size(self) -> int:
        """The length in bytes, when it was opened."""
        return self._file.size

    def readall(self) -> bytes:
        """All bytes from the position on."""
        return self._file.read()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Sets the position; gives it."""
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._file.tell(), io.SEEK_END: self.size}
        if whence not in bases:
            raise ValueError(f"whence is {whence}; give 0, 1 or 2")
        if (position := bases[whence] + offset) < 0:
            raise ValueError(f"a seek to {position}, in front of the file")
        self._file.set(position)
        return position

    def readat_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each `(offset, size)`, all in one submission."""
        return self._file.readat_many(list(ranges))

    async def areadat(self, offset: int, size: int) -> bytes:
        """As `readat`, for asyncio."""
        loop = asyncio.get_running_loop()
        came = asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(came.set)

        read = self._file.start(offset, size)
        while (data := read.poll(wake)) is None:
            await came.wait()
            came.clear()
        return data

    async def areadat_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """As `readat_many`, for asyncio."""
        return list(await asyncio.gather(*(self.areadat(*one) for one in ranges)))

    def advise(self, advice: str) -> None:
        """A hint on how this file will be read, as `posix_fadvise(2)` names them."""
        self._file.advise(advice)
        if advice in OF_THE_HANDLE:
            self._advice = advice

    def stats(self) -> dict[str, int]:
        """What was read through this file, and how much of it was there when the read came."""
        read, cached = self._file.stats()
        return {"bytes": read, "cached_bytes": cached}

    def path_stats(self) -> dict[str, int]:
        """What its read path has counted: for all the files that it has, as `ReadPath.stats`."""
        return self._file.path_stats()

    def write(self, data: Buffer, /) -> int:
        """Raises UnsupportedOperation: it is open for reading."""
        raise io.UnsupportedOperation("not open for writing")

    def readable(self) -> bool:
        """Whether it can be read: yes."""
        return not self._is_closed()

    def seekable(self) -> bool:
        """Whether it has a position that can be set: yes."""
        return not self._is_closed()

    def close(self) -> None:
        """Closes it; reads under way on other threads end first."""
        if hasattr(self, "_file"):
            self._file.close()
        super().close()

    def __del__(self) -> None:
        """Leaves it to the native file, which goes with the last who has it.

        `open(path).read` alone has the native file; that of the base class would close it.
        """

    def __repr__(self) -> str:
        state = " closed" if self.closed else f" of {self.size} bytes"
        return f"<readpath.File {self.name!r}{state}>"

    def _is_closed(self) -> bool:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        place = (self.tell(), self._advice)
        return _reopened, (self.name, self._file.path, self._within, *place)


def _reopened(
    name: str | bytes,
    path: str,
    within: ReadPath,
    position: int,
    advice: str | None,
) -> File:
    """Where a file is sent to another process: the same one at the same place, with its hint."""
    file = within.open(path)
    file.name = name
    file.seek(position)
    if advice is not None:
        file.advise(advice)
    return file


_usual: ReadPath | None = None


def usual() -> ReadPath:
    """The read path that `open` takes by itself: one for the whole process, built when first used."""
    global _usual
    if _usual is None:
        _usual = ReadPath()
    return _usual


# A ring belongs to the process that built it.
os.register_at_fork(after_in_child=_native.forked)


def open(path_or_url: PathLike, mode: str = "rb", **options: Any) -> Any:
    """Opens a file, a block device, or anything that fsspec knows, for reading.

    A path gives a `File`, and so does `nfs://HOST[:PORT]/EXPORT/PATH`; options are those of `ReadPath`, and make one for this
    file alone. A URL such as `https://…` or `s3://…` gives a
    `readpath.filesystem.ReadpathFile` (needs fsspec); options are those of
    `readpath.reader.Options`, and those of the storage below it under its protocol's name:
    `s3={"anon": True}`.

    Raises the OSError of the storage's answer, TypeError where an option is not known, ValueError
    where it can't be used, or the mode is not `rb`.
    """
    if mode != "rb":
        raise ValueError(f"mode {mode!r}: files are opened for reading bytes; give 'rb'")
    name = os.fsdecode(path_or_url)
    if ("://" in name or "::" in name) and not name.startswith("nfs://"):
        import fsspec

        url = name if name.startswith("readpath:") else f"readpath::{name}"
        opened = fsspec.open(url, **options)
        file = opened.open()
        # What it is opened by stays as long as the file does.
        weakref.finalize(file, id, opened).atexit = False
        return file
    check_names(options, ReadPath.NAMES, "readpath.open of a file")
    return (ReadPath(**options) if options else usual()).open(name)
