"""Files and block devices, read through the read path: io_uring, page cache, readahead."""

from __future__ import annotations

import asyncio
import errno
import io
import operator
import os
import re
import sys
import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, overload

from readpath import _native
from readpath.modelled import memory_bytes, size_bytes
from readpath.options import OLD_NAMES, check_client, check_effects, check_names, present_names
from readpath.places import Ranges, pairs_of

if TYPE_CHECKING:
    from typing_extensions import Buffer, Unpack

    from readpath.filesystem import ReadpathFile

PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]

LARGE_BYTES = 1 << 20
"""Size in bytes above which an awaited read runs on a thread, since its copy would block the event loop."""

AWAITED_MAX = 256
"""Maximum number of awaited reads per call on the event loop. More are submitted together on a thread."""

OFFSET_MAX = (1 << 63) - 1
"""Maximum position in a file of the system."""

PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*")
"""The scheme of a URL: RFC 3986, section 3.1."""

URL_START = re.compile(rf"{PROTOCOL.pattern}://")

QUERY = re.compile(r"[?#]")
"""Characters before a query or a fragment, which the clients of HTTP do not send."""

VERSION = re.compile(r"\?versionid=|#\d+$", re.IGNORECASE)
"""A version of an object in the URLs of s3fs and adlfs, and of gcsfs."""

OF_THE_HANDLE = frozenset({"normal", "sequential", "random"})
"""Hints that apply to all later reads through a file, not to a range."""


class ReadPath:
    """A read path: a page cache with its memory, policies, and an I/O backend.

    - `page_cache`: who caches the pages. `kernel`, the default: a read is one system call, and the
      readahead policy advises the kernel. `own`: this path, in its own memory; the default with
      `memory`. `none`: no page stays, and each read is requests to the device.
    - `memory`: size of an own page cache, allocated as it is used. The default depends on the
      machine's free memory, and is given back when other programs need it.
    - `readahead`, `eviction`: policies of an own page cache, by name; default `adaptive`.
    - `scheduler`, default `adaptive`; `depth`: maximum number of requests in the storage, default
      128; `backend`: `aio`, `io_uring`, `threads`, or `auto` for the first suitable one.
      `stats()["backend"]` names it. For the page caches `own` and `none`.
    - `keep_files`: number of closed local files that stay open with their cached pages, the most
      recently opened ones. Each keeps a descriptor, and the disk space of a deleted file.
    - `kernel_cache`: for an own page cache. True, the default, if pages that are resident in the
      kernel are read from there. Otherwise every page is read from the device once.
    - `whole_file_memory`: for the page cache `kernel`. Largest file that a lone random reader may
      have read ahead whole: bytes, or "256MiB". Default: a sixteenth of the available memory, at
      most 512 MiB. 0 means that no file is read whole beyond 64 MiB.

    Options of files by URL (see `readpath.open`):

    - `request`: maximum size of a request, whole pages up to 4 MiB. Default 2 MiB. A longer range is
      fetched by several requests at a time.
    - `retries`: number of retries after a passing error, default 5, within a minute.
    - `storage_options`: options of the client, by the names of the Rust crate object_store:
      `{"aws_region": …}`, `{"google_service_account": …}`, `{"timeout": "10s"}`. The variables
      `AWS_…`, `AZURE_…` and `GOOGLE_…` of the environment have the same names.
    - `disk`, `disk_size`: folder and maximum size of a cache of fetched bytes on a local disk. Several
      processes may share it. A new version of an object never gets bytes of an old one. Default: none.
      A refused folder is an OSError: `ENOTDIR`, `EPERM` for another owner, `EACCES` for an open mode.

    An option without effect is a ValueError, as one for URLs is for a single local file, and
    `backend`, `kernel_cache` or `keep_files` for a single URL.
    """

    NAMES = ("memory", "readahead", "scheduler", "depth", "backend", "keep_files", "kernel_cache", "eviction", "page_cache",
             "whole_file_memory", "request", "retries", "storage_options", "disk", "disk_size")
    """Names of the options, in their order."""

    def __init__(
        self,
        memory: str | int | None = None,
        readahead: str | None = None,
        scheduler: str | None = None,
        depth: int | None = None,
        backend: str | None = None,
        keep_files: int = 0,
        kernel_cache: bool | None = None,
        eviction: str | None = None,
        page_cache: str | None = None,
        whole_file_memory: str | int | None = None,
        request: str | int | None = None,
        retries: int = 5,
        storage_options: Mapping[str, str] | None = None,
        disk: PathLike | None = None,
        disk_size: str | int | None = None,
        **old_names: Any,
    ) -> None:
        """Builds a read path. Raises ValueError for an unusable option, TypeError for an unknown one, and
        OSError if the system lacks a resource: PermissionError for a forbidden backend.
        """
        check_names(old_names.keys() - OLD_NAMES.keys(), self.NAMES, "ReadPath")
        if old_names:
            eviction = present_names({**old_names, "eviction": eviction})["eviction"]
        self._options = (
            memory, readahead, scheduler, depth, backend, keep_files, kernel_cache, eviction, page_cache,
            whole_file_memory, request, retries, storage_options, disk, disk_size
        )
        for option, number in (("depth", depth), ("keep_files", keep_files), ("retries", retries)):
            if isinstance(number, int) and number < 0:
                raise ValueError(f"{option}={number}: give a number from 0 on")
        cache_bytes = None if memory is None else memory_bytes(memory)
        # 0 is a valid limit, but `size_bytes` refuses less than a page.
        whole_file_bytes = None if whole_file_memory is None else 0
        if whole_file_memory not in (None, 0, "0"):
            whole_file_bytes = size_bytes(whole_file_memory, "whole_file_memory")
        self._engine = _native.Engine(
            page_cache, cache_bytes, readahead, scheduler, eviction, depth, backend, keep_files, kernel_cache,
            whole_file_bytes, None if request is None else size_bytes(request, "request"), retries,
            _client_options(storage_options), _disk_tier(disk, disk_size)
        )

    @property
    def memory(self) -> str | int | None:
        """Option `memory`: the size of an own page cache, or None."""
        return self._options[0]

    @property
    def page_cache(self) -> str:
        """Name of the page cache: `kernel`, `own` or `none`."""
        return self._engine.page_cache

    def open(self, path: PathLike) -> File:
        """Opens a file or a block device for reading, or a file of a server by its URL.

        A file on an NFS server, `nfs://HOST[:PORT]/EXPORT/PATH[?rsize=…]`, is read without the kernel
        and without a mount. A URL with `https`, `http`, `s3`, `gs`, `az` or `abfss` names an object. Each
        file by URL has a separate read path with the options of this one.

        Raises the OSError of the kernel or the server: FileNotFoundError,
        IsADirectoryError, PermissionError, …
        """
        if not os.fspath(path):
            raise nameless(path)
        return _opened(path, self)

    def stats(self) -> dict[str, Any]:
        """Returns the counters since the creation and the backend; in a child of fork since the first use."""
        return self._engine.stats()

    def prometheus(self, **labels: str) -> str:
        """Returns the counters in Prometheus' text format, each with these labels."""
        return self._engine.prometheus(list(labels.items()))

    def __repr__(self) -> str:
        # Values of `storage_options` may be credentials.
        shown = [dict.fromkeys(value, "…") if isinstance(value, Mapping) else value for value in self._options]
        options = zip(self.NAMES, shown, strict=True)
        return f"ReadPath({', '.join(f'{name}={value!r}' for name, value in options)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the default path as the default path of the other process, others with their options."""
        return (usual, ()) if self is _usual else (ReadPath, self._options)


class PathOptions(TypedDict, total=False):
    """The options of `ReadPath`, by name."""

    memory: str | int | None
    readahead: str | None
    scheduler: str | None
    depth: int | None
    backend: str | None
    keep_files: int
    kernel_cache: bool | None
    eviction: str | None
    page_cache: str | None
    whole_file_memory: str | int | None
    request: str | int | None
    retries: int
    storage_options: Mapping[str, str] | None
    disk: PathLike | None
    disk_size: str | int | None


CLIENT_SCHEMES = frozenset(_native.client_schemes())
"""Schemes of URLs that this package reads by clients of its own."""


def _client_options(options: Mapping[str, str] | None) -> list[tuple[str, str]]:
    """Returns the options of a client as pairs. Raises TypeError for other values than strings."""
    pairs = list((options or {}).items())
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"storage_options: {name!r}: {value!r}; names and values are strings")
    return pairs


def _disk_tier(folder: PathLike | None, size: str | int | None) -> tuple[str, int] | None:
    """Returns folder and size in bytes of a disk tier. Raises ValueError if only one is given."""
    if (folder is None) != (size is None):
        raise ValueError("disk and disk_size belong together: a folder, and its maximum size as in '10GiB'")
    if folder is None or size is None:
        return None
    return os.path.abspath(os.fsdecode(folder)), size_bytes(size, "disk_size")


FSSPEC_TOO = frozenset({"memory", "readahead", "request", "depth", "backend", "keep_files"})
"""Options of files by URL that a file through fsspec has too."""


def _is_for_client(name: str, options: Mapping[str, Any]) -> bool:
    """Returns True for the URL of one object, with options that the package's own clients have."""
    return is_one_object(name) and options.keys() <= {*ReadPath.NAMES, *OLD_NAMES}


def is_one_object(name: str) -> bool:
    """Returns True for a URL of the own clients: no chain, query or version. Keys of stores may have `?`, `#`, `::`."""
    scheme, _, rest = name.partition("://")
    not_sent = QUERY if scheme in ("http", "https") else VERSION
    is_chain = any(URL_START.match(part) or _is_protocol(part) for part in rest.split("::")[1:])
    return scheme in CLIENT_SCHEMES and not not_sent.search(rest) and not is_chain


def is_url(path_or_url: PathLike) -> bool:
    """Returns True for a URL or a chain of fsspec: `zip://part::https://…`, `simplecache::/folder/file`.

    A local path may contain any characters: `/folder/a::b`, `a::b`. A path object is always a path.
    """
    if isinstance(path_or_url, os.PathLike):
        return False
    first, *rest = os.fsdecode(path_or_url).split("::")
    if URL_START.match(first):
        return True
    return bool(rest) and _is_protocol(first)


def _is_protocol(name: str) -> bool:
    """Returns True for the name of a protocol that fsspec knows."""
    if not PROTOCOL.fullmatch(name):
        return False
    try:
        from fsspec import available_protocols
    except ImportError:
        return False
    return name in available_protocols()


def position_after(offset: int, whence: int, current: int, size: int, name: Any) -> int:
    """Returns the position after a seek in a file of `size` bytes, from the `current` position.

    The exceptions are the ones of built-in files: TypeError for another type than an integer,
    OverflowError beyond 64 bits, ValueError for another `whence` than 0, 1 or 2, OSError for a
    position before the start or beyond `OFFSET_MAX`.
    """
    base, moved = operator.index(whence), operator.index(offset)
    if base not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
        raise ValueError(f"whence is {whence}; give 0, 1 or 2")
    check_bits(moved)
    # `base` is 0, 1 or 2, an index of the three bases.
    position = (0, current, size)[base] + moved
    if position < 0:
        raise OSError(errno.EINVAL, f"a seek to {position}, before the start of the file", name)
    if position > OFFSET_MAX:
        raise OSError(errno.EINVAL, f"a seek to {position}, beyond any file", name)
    return position


def limit_of(count: int | None) -> int | None:
    """Returns a number of bytes, or None for none: None or a negative number.

    Raises TypeError for another type than an integer, OverflowError beyond 64 bits.
    """
    if count is None:
        return None
    limit = operator.index(count)
    check_bits(limit)
    return limit if limit >= 0 else None


def check_bits(number: int) -> None:
    """Raises OverflowError for a number that is no offset of the system: beyond 64 bits, signed."""
    if not -OFFSET_MAX - 1 <= number <= OFFSET_MAX:
        raise OverflowError(f"{number} has more than 64 bits")


def lines_of(file: Iterable[bytes], hint: int | None) -> list[bytes]:
    """Returns the lines of a file. A positive `hint` stops after more than that number of bytes."""
    lines: list[bytes] = []
    left = limit_of(hint) or OFFSET_MAX
    for line in file:
        lines.append(line)
        if (left := left - len(line)) < 0:
            break
    return lines


def nameless(name: PathLike) -> FileNotFoundError:
    """Returns the error for an empty name, as for system files."""
    return FileNotFoundError(errno.ENOENT, "an empty name; give the path of a file", name)


def keep_with(file: Any, others: Any) -> None:
    """Keeps other objects alive during the lifetime of a file."""
    try:
        file._readpath_keeps = others
    except AttributeError:
        # An object of another library without room for attributes. The finalizer's call of `id`
        # has no effect, but its argument lives as long as the file. `others` must not refer to the
        # file.
        weakref.finalize(file, id, others).atexit = False


if TYPE_CHECKING:
    _Raw = io.RawIOBase
else:
    # `register` makes it a subclass: an object of the C class has no space for this file's data.
    _Raw = object


# (A type checker reports a layout conflict between the two bases.)
class File(_native.LocalFile, _Raw):  # type: ignore[misc, unused-ignore]
    """A file open for reading.

    It has the methods of `io.FileIO`, and positional reads: `readat`, `readat_many`, and `areadat` in
    asyncio. Positional reads may run on any number of threads. In a child of fork, for example a
    worker of a data loader, the file is opened again at its first use. If another file has its name
    then, or another version of an object its URL, reads raise OSError (`errno.ESTALE`) there until
    `revalidate`.

    If another process changes the file, each byte of a read is one that the file had at some time
    since it was opened. Cached bytes are old, other bytes are current, and one read may contain both.
    The length stays as at the open. `revalidate` continues with the current file.
    """

    mode = "rb"
    _advice: str | None = None

    def readall(self) -> bytes:
        """Returns all bytes from the position."""
        return self.read()

    def readlines(self, hint: int | None = -1, /) -> list[bytes]:
        """Returns the lines from the position, until more bytes than a positive `hint`."""
        return lines_of(self, hint)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Sets and returns the position."""
        position = position_after(offset, whence, self.tell(), self.size, self.name)
        self._set(position)
        return position

    async def areadat(self, offset: int, size: int) -> bytes:
        """As `readat`, for asyncio."""
        offset, size = operator.index(offset), operator.index(size)
        if min(size, self.size - offset) > LARGE_BYTES:
            return await asyncio.to_thread(self.readat, offset, size)
        loop = asyncio.get_running_loop()
        is_poll_due = asyncio.Event()

        def wake() -> None:
            # Called on a thread of the engine, perhaps after the end of the loop.
            if not loop.is_closed():
                loop.call_soon_threadsafe(is_poll_due.set)

        read = self._start(offset, size)
        while (data := read.poll(wake)) is None:
            await is_poll_due.wait()
            is_poll_due.clear()
        return data

    async def areadat_many(self, ranges: Ranges) -> list[bytes]:
        """As `readat_many`, for asyncio."""
        pairs = pairs_of(ranges)
        if len(pairs) > AWAITED_MAX:
            return await asyncio.to_thread(self.readat_many, pairs)
        return list(await asyncio.gather(*(self.areadat(*one) for one in pairs)))

    def advise(self, advice: str) -> None:
        """Gives a hint on the reads of this file, by its name in `posix_fadvise(2)`."""
        super().advise(advice)
        if advice in OF_THE_HANDLE:
            self._advice = advice

    def write(self, data: Buffer, /) -> int:
        """Raises UnsupportedOperation: the file is open for reading only."""
        self._false_if_open()
        raise io.UnsupportedOperation("not open for writing")

    def writelines(self, lines: Iterable[Buffer], /) -> None:
        """Raises UnsupportedOperation if there are any: the file is open for reading only."""
        self._false_if_open()
        for line in lines:
            self.write(line)

    def truncate(self, size: int | None = None, /) -> int:
        """Raises UnsupportedOperation: the file is open for reading only."""
        self._false_if_open()
        raise io.UnsupportedOperation("truncate")

    def flush(self) -> None:
        """Does nothing: there is nothing to be written."""
        self._false_if_open()

    def fileno(self) -> int:
        """Raises UnsupportedOperation, since reads of the descriptor would bypass the cache."""
        self._false_if_open()
        raise io.UnsupportedOperation("fileno")

    def isatty(self) -> bool:
        """Returns False: it is no terminal."""
        return self._false_if_open()

    def readable(self) -> bool:
        """Returns True."""
        return not self._false_if_open()

    def seekable(self) -> bool:
        """Returns True: the position can be set."""
        return not self._false_if_open()

    def writable(self) -> bool:
        """Returns False."""
        return self._false_if_open()

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

    def _false_if_open(self) -> bool:
        """Returns False. Raises ValueError if the file is closed, as the methods of system files do."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the name, the read path, the position and the last hint. Raises ValueError if closed."""
        return _reopened, (self.name, self._path, self._within, self.tell(), self._advice)


io.RawIOBase.register(File)


def _opened(name: PathLike, within: ReadPath) -> File:
    """Opens a file of any name: an `ObjectFile` for the URL of an object."""
    if isinstance(name, (str, bytes)) and os.fsdecode(name).partition("://")[0] in CLIENT_SCHEMES:
        from readpath.object_files import ObjectFile

        return ObjectFile(name, within)
    return File(name, within)


def _reopened(
    name: str | bytes,
    path: str,
    within: ReadPath,
    position: int,
    advice: str | None,
) -> File:
    """Opens a file in the process it was sent to, at the same position and with its hint."""
    file = within.open(path)
    file.name = name
    file.seek(position)
    if advice is not None:
        file.advise(advice)
    return file


_usual: ReadPath | None = None


def usual() -> ReadPath:
    """Returns the default read path of `open`: one per process, built at its first use."""
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
    """Opens a file, a block device, or a URL for reading.

    A path or `nfs://HOST[:PORT]/EXPORT/PATH` returns a `File`. The options are the arguments of `ReadPath`, and
    create a separate read path for this file, which closes with it: `keep_files` is a ValueError.

    A URL with `https`, `http`, `s3`, `gs`, `az` or `abfss` returns a `File` too, of one version of the object:
    an object that changes while it is read is an OSError with `errno.ESTALE`. `client="fsspec"` opens it
    through fsspec. So do `http` URLs with a query (presigned ones), and options that only fsspec has. An object
    without ETag and time of modification, on a server without byte ranges, or with an escape in the path of its
    `http` URL that the client would change, such as `%2F`, is opened through fsspec too. Options that fsspec has
    not are an OSError with `errno.EOPNOTSUPP` then. `keep_files` needs `client="fsspec"`.
    Behind the bucket, the text of a URL is the object's key, without escapes: `s3://bucket/a%20b` has a percent
    sign in its key.

    Any other URL known to fsspec returns a `readpath.filesystem.ReadpathFile`. The options are the fields of
    `readpath.reader.Options`, and options of the target storage under its protocol's name:
    `s3={"anon": True}`. A file without random access (a compressed file) is returned as opened by fsspec.

    Where io_uring and AIO are forbidden, threads read the files. Raises the OSError of the storage,
    TypeError for an unknown option, ValueError for an unusable option or a mode other than `rb`.
    """
    if mode != "rb":
        raise ValueError(f"mode {mode!r}: files are opened for reading bytes; give 'rb'")
    name = path_or_url if isinstance(path_or_url, str) else os.fsdecode(path_or_url)
    scheme = name.partition("://")[0] if is_url(path_or_url) else ""
    check_client(client := options.pop("client", None), scheme, CLIENT_SCHEMES)
    # True if the package's own client opens the URL, and not fsspec.
    is_own = scheme in CLIENT_SCHEMES and (client == "readpath" or client is None and _is_for_client(name, options))
    if scheme and scheme != "nfs" and not is_own:
        from readpath.urls import check_options, open_url

        check_options(name, options)
        opened: ReadpathFile = open_url(name, options)
        return opened
    if not name:
        raise nameless(path_or_url)
    if not options and not is_own:
        return File(path_or_url, usual())
    present = present_names(options)
    check_names(present, ReadPath.NAMES, "readpath.open of a file")
    check_effects(present, scheme, is_own)
    # Only an own page cache can hold an object, so that its options apply.
    implied = {"page_cache": "own"} if is_own and present else {}
    path = ReadPath(**implied | present) if present else usual()
    try:
        return _opened(path_or_url, path)
    except OSError as error:
        # An object without a version, or a server without byte ranges: fsspec reads these too.
        if client is not None or not is_own or error.errno != errno.EOPNOTSUPP:
            raise
        return _by_fsspec(name, present, error)


def _by_fsspec(name: str, options: dict[str, Any], refusal: OSError) -> ReadpathFile:
    """Opens a URL through fsspec, after the `refusal` of the package's own client. Raises it without fsspec.

    Raises OSError (`EOPNOTSUPP`) for options that a file through fsspec has not.
    """
    try:
        from readpath.urls import open_url
    except ImportError:
        raise refusal from None
    given = {option: value for option, value in options.items() if value is not None}
    if lost := sorted(given.keys() - FSSPEC_TOO):
        raise OSError(
            errno.EOPNOTSUPP,
            f"{refusal.strerror}; fsspec, which reads such a file, has no option {', '.join(lost)}: leave it out",
            refusal.filename,
        ) from refusal
    scheme = name.partition("://")[0]
    if scheme in ("http", "https"):
        # The URL that the refused client has requested, as it stands. fsspec would decode some
        # escapes, and keep dot segments and backslashes.
        name, given[scheme] = _native.parsed_url(name), {"encoded": True}
    try:
        opened: ReadpathFile = open_url(name, given)
    except ImportError:
        # fsspec lacks the file system of this scheme, such as s3fs.
        raise refusal from None
    return opened
