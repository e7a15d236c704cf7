"""Files and block devices, read through our path: io_uring, our page cache, our readahead."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import re
import sys
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, overload

from readpath import _native
from readpath.modelled import memory_bytes
from readpath.options import check_names
from readpath.places import Ranges, pairs_of

if TYPE_CHECKING:
    from typing_extensions import Buffer, Unpack

    from readpath.filesystem import ReadpathFile

PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]

LARGE_BYTES = 1 << 20
"""What is awaited and larger is read on a thread: an event loop would be held by the copy of its bytes."""

AWAITED_MAX = 256
"""As many awaited reads of one call go on side by side on the event loop; more are handed over on a thread."""

PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*")
"""The scheme of a URL: RFC 3986, section 3.1."""

URL_START = re.compile(rf"{PROTOCOL.pattern}://")

OF_THE_HANDLE = frozenset({"normal", "sequential", "random"})
"""The hints that hold for all later reads through a file, not for a range at the moment."""


class ReadPath:
    """A read path of one's own: a page cache with its memory, its policies, and its ring.

    With nothing named the kernel keeps the pages: reads come through its cache, and the readahead policy has it advised
    of what they will need. With a memory, a policy, a depth or a backend, this path has pages of its own.

    `memory`: of the page cache, taken from the system as it is used; unless it is named it goes by what
    the machine has to spare, and is given back when others need it. `readahead`,
    `scheduler`, `eviction`: policies by name. `depth`: the most requests in the storage at once.
    `backend`: `auto`, the first that suits of those that the system gives (`stats()["backend"]` says
    which), or one of `aio`, `io_uring` and `threads`. `keep_files`: how many files stay open after they are
    closed, the last ones that were opened, so that what is cached of them is there when they are opened again;
    each keeps a descriptor, and the space of a file that is deleted meanwhile. `kernel_cache`: whether
    the kernel may keep the pages, and what it holds of a file is taken from there; else all of it is read from its device once.
    """

    NAMES = ("memory", "readahead", "scheduler", "depth", "backend", "keep_files", "kernel_cache", "eviction")
    """What the options are called, in their order."""

    def __init__(
        self,
        memory: str | int | None = None,
        readahead: str = "adaptive",
        scheduler: str = "adaptive",
        depth: int = 128,
        backend: str = "auto",
        keep_files: int = 0,
        kernel_cache: bool = True,
        eviction: str = "adaptive",
    ) -> None:
        """Builds it.

        Raises ValueError where an option can't be used, and OSError where the system doesn't give what it
        names: PermissionError for a backend that is forbidden here.
        """
        self._options = (
            memory, readahead, scheduler, depth, backend, keep_files, kernel_cache, eviction
        )
        budget = None if memory is None else memory_bytes(memory)
        self._engine = _native.Engine(
            budget, readahead, scheduler, eviction, depth, backend, keep_files, kernel_cache
        )

    def open(self, path: PathLike) -> File:
        """Opens a file or a block device for reading, or a file on an NFS server by its URL.

        A server's file, `nfs://HOST[:PORT]/EXPORT/PATH[?rsize=…]`, is read past the kernel, without a
        mount, by a read path of its own with the options of this one.

        Raises the OSError of the kernel's or the server's answer: FileNotFoundError,
        IsADirectoryError, PermissionError, …
        """
        return File(path, self)

    def stats(self) -> dict[str, Any]:
        """What was counted since it was built, and by what `backend` bytes are carried; or, in a child made by fork, since its first use there."""
        return self._engine.stats()

    def prometheus(self, **labels: str) -> str:
        """What was counted, in Prometheus' text format, each number with these labels."""
        return self._engine.prometheus(list(labels.items()))

    def __repr__(self) -> str:
        options = zip(self.NAMES, self._options, strict=True)
        return f"ReadPath({', '.join(f'{name}={value!r}' for name, value in options)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (usual, ()) if self is _usual else (ReadPath, self._options)


class PathOptions(TypedDict, total=False):
    """The options of `ReadPath`, by name."""

    memory: str | int | None
    readahead: str
    scheduler: str
    depth: int
    backend: str
    keep_files: int
    kernel_cache: bool
    eviction: str


def is_url(path_or_url: PathLike) -> bool:
    """Whether a name is a URL, or a chain of fsspec: `zip://part::https://…`, `simplecache::/folder/file`.

    A path of this machine may have any characters: `/folder/a::b`, `a::b`. A path object is always a path.
    """
    if isinstance(path_or_url, os.PathLike):
        return False
    first, *rest = os.fsdecode(path_or_url).split("::")
    if URL_START.match(first):
        return True
    if not rest or not PROTOCOL.fullmatch(first):
        return False
    try:
        from fsspec import available_protocols
    except ImportError:
        return False
    return first in available_protocols()


def before_the_start(position: int, name: Any) -> OSError:
    """The error of a seek to a negative position, as files of the system have it."""
    return OSError(errno.EINVAL, f"a seek to {position}, before the start of the file", name)


def keep_with(file: Any, others: Any) -> None:
    """Keeps other objects for as long as a file lives."""
    try:
        file._readpath_keeps = others
    except AttributeError:
        # An object of another library without room for attributes. `others` must not refer to it.
        weakref.finalize(file, id, others).atexit = False


if TYPE_CHECKING:
    _Raw = io.RawIOBase
else:
    # It is one by `register`: an object of C's own class has no room for a file of ours.
    _Raw = object


# (To a type checker both have a layout of their own.)
class File(_native.LocalFile, _Raw):  # type: ignore[misc, unused-ignore]
    """A file that is open for reading.

    In a child made by fork, as the workers of a data loader are, it is opened again when it is first used.
    As `io.FileIO`, and at any place by `readat`, `readat_many`, and
    `areadat` in asyncio. Reads at a place may come from any number of threads.

    Another process may change the file meanwhile. Each byte of a read is one that the file had at some time since it was
    opened. Cached bytes are as they were, other bytes as they are now, perhaps both in one read. The length stays as it
    was at the opening. `revalidate` continues with the file as it is now.
    """

    mode = "rb"
    _advice: str | None = None

    def readall(self) -> bytes:
        """All bytes from the position on."""
        return self.read()

    def readlines(self, hint: int | None = -1, /) -> list[bytes]:
        """The lines from the position on; no more of them, if `hint` is positive, once they have so many bytes."""
        lines: list[bytes] = []
        left = hint if hint is not None and hint > 0 else sys.maxsize
        for line in self:
            lines.append(line)
            if (left := left - len(line)) <= 0:
                break
        return lines

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Sets the position; gives it."""
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self.size}
        if whence not in bases:
            raise ValueError(f"whence is {whence}; give 0, 1 or 2")
        if (position := bases[whence] + offset) < 0:
            raise before_the_start(position, self.name)
        self._set(position)
        return position

    async def areadat(self, offset: int, size: int) -> bytes:
        """As `readat`, for asyncio."""
        if min(size, self.size - offset) > LARGE_BYTES:
            return await asyncio.to_thread(self.readat, offset, size)
        loop = asyncio.get_running_loop()
        came = asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(came.set)

        read = self._start(offset, size)
        while (data := read.poll(wake)) is None:
            await came.wait()
            came.clear()
        return data

    async def areadat_many(self, ranges: Ranges) -> list[bytes]:
        """As `readat_many`, for asyncio."""
        pairs = pairs_of(ranges)
        if len(pairs) > AWAITED_MAX:
            return await asyncio.to_thread(self.readat_many, pairs)
        return list(await asyncio.gather(*(self.areadat(*one) for one in pairs)))

    def advise(self, advice: str) -> None:
        """A hint on how this file will be read, as `posix_fadvise(2)` names them."""
        super().advise(advice)
        if advice in OF_THE_HANDLE:
            self._advice = advice

    def write(self, data: Buffer, /) -> int:
        """Raises UnsupportedOperation: it is open for reading."""
        raise io.UnsupportedOperation("not open for writing")

    def writelines(self, lines: Iterable[Buffer], /) -> None:
        """Raises UnsupportedOperation if there are any: it is open for reading."""
        self._is_closed()
        for line in lines:
            self.write(line)

    def truncate(self, size: int | None = None, /) -> int:
        """Raises UnsupportedOperation: it is open for reading."""
        raise io.UnsupportedOperation("truncate")

    def flush(self) -> None:
        """Does nothing: there is nothing to be written."""
        self._is_closed()

    def fileno(self) -> int:
        """Raises UnsupportedOperation: what has its descriptor would go past what is cached."""
        raise io.UnsupportedOperation("fileno")

    def isatty(self) -> bool:
        """Whether it is a terminal: no."""
        return self._is_closed()

    def readable(self) -> bool:
        """Whether it can be read: yes."""
        return not self._is_closed()

    def seekable(self) -> bool:
        """Whether it has a position that can be set: yes."""
        return not self._is_closed()

    def writable(self) -> bool:
        """Whether it can be written: no."""
        return False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " closed" if self.closed else f" of {self.size} bytes"
        return f"<readpath.File {self.name!r}{state}>"

    def _is_closed(self) -> bool:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        place = (self.tell(), self._advice)
        return _reopened, (self.name, self._path, self._within, *place)


io.RawIOBase.register(File)


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


@overload
def open(
    path_or_url: os.PathLike[str] | os.PathLike[bytes],
    mode: Literal["rb"] = "rb",
    **options: Unpack[PathOptions],
) -> File: ...
@overload
def open(
    path_or_url: str | bytes, mode: Literal["rb"] = "rb", **options: Any
) -> File | ReadpathFile: ...
def open(path_or_url: PathLike, mode: str = "rb", **options: Any) -> File | ReadpathFile:
    """Opens a file, a block device, or anything that fsspec knows, for reading.

    A path gives a `File`, and so does `nfs://HOST[:PORT]/EXPORT/PATH`; options are those of `ReadPath`, and make one for this
    file alone. A URL such as `https://…` or `s3://…` gives a
    `readpath.filesystem.ReadpathFile` (needs fsspec); options are those of
    `readpath.reader.Options`, and those of the storage below it under its protocol's name:
    `s3={"anon": True}`. What can't be read at any place (a compressed file) is given as fsspec opens it.

    Where io_uring or AIO is forbidden, files are read by threads. Raises the OSError of the storage's answer,
    TypeError where an option is not known, ValueError where it can't be used, or the mode is not `rb`.
    """
    if mode != "rb":
        raise ValueError(f"mode {mode!r}: files are opened for reading bytes; give 'rb'")
    name = path_or_url if isinstance(path_or_url, str) else os.fsdecode(path_or_url)
    if is_url(path_or_url) and not name.startswith("nfs://"):
        from readpath.urls import open_url

        opened: ReadpathFile = open_url(name, options)
        return opened
    if not options:
        return File(name, usual())
    check_names(options, ReadPath.NAMES, "readpath.open of a file")
    return File(name, ReadPath(**options))
