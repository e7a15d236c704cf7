"""`readpath::…`: any fsspec file system, read through the read path.

`readpath::s3://bucket/key`, `readpath::https://…` and `readpath:///local/path` open like
any other fsspec URL, so pandas, pyarrow, xarray, Dask and Ray can use them unchanged.
readpath provides the readahead windows, the parallel fetches and the cache. All other
calls are forwarded to the target file system.
"""

from __future__ import annotations

import errno
import io
import os
import weakref
from collections.abc import Iterable
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import fsspec
from fsspec.core import has_magic
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

import readpath.cache  # registers cache_type="readpath"
from readpath.asynchronous import AsyncReadpathFileSystem
from readpath.columns import ColumnReads, Columns, Layout, Together, keep_newest, together_of
from readpath.details import Details
from readpath.files import ReadPath, keep_with, limit_of, lines_of, position_after
from readpath.forks import FetchThreads
from readpath.kept import Kept
from readpath.nfs import NfsFileSystem
from readpath.options import FSSPECS_OWN, check_names
from readpath.places import Offsets, Ranges
from readpath.reader import Fetch, Options, Reader
from readpath.versions import Version, forget_listings, is_same_version

if TYPE_CHECKING:
    from typing_extensions import Buffer

PASSED_ON = frozenset(
    {
        "cat_file", "cat_ranges", "checksum", "cp_file", "created", "du", "exists", "expand_path",
        "find", "get_file", "glob", "info", "invalidate_cache", "isdir", "isfile", "ls", "lexists",
        "makedirs", "mkdir", "modified", "mv", "pipe_file", "put_file", "rm", "rm_file", "rmdir",
        "sign", "size", "sizes", "touch", "ukey", "unstrip_protocol", "walk",
    }
)  # fmt: skip
"""Methods forwarded to the target file system: all except opening a file."""

CHANGES = frozenset(
    {
        "cp_file", "invalidate_cache", "makedirs", "mkdir", "mv", "pipe_file", "put_file", "rm", "rm_file", "rmdir",
        "touch",
    }
)  # fmt: skip
"""Forwarded methods that change files."""


PREFIXES = ("readpath::", "readpath://")
"""Prefixes before the path of the target file system."""

LINE_BYTES = 1 << 16
"""Size in bytes of the pieces in which a newline is searched."""

PARTS = frozenset({"parts", "parquet"})
"""Caches of fsspec that already contain the bytes, so readahead is not needed."""

OF_ONE_FILE = frozenset({"autocommit", "block_size", "cache_options", "cache_type", "size"})
"""Options that fsspec passes to every file. readpath ignores them."""


class _OneForAllFiles(type(ChainedFileSystem)):  # type: ignore[misc]
    """Creates one file system for all files of a storage.

    fsspec caches file systems by their options for the lifetime of the process. The file that was
    named first must not be among these options, at any depth of the chain.
    """

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        """Returns the file system with these options, of the class for asyncio if `asynchronous` is true."""
        if nested := options.get("target_options"):
            shared = _without_file(options.get("target_protocol"), nested)
            options["target_options"] = shared
        if options.pop("asynchronous", False):
            return AsyncReadpathFileSystem(*arguments, **options)
        return super().__call__(*arguments, **options)


def _without_file(protocol: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a file system in a chain, without the name of its file."""
    kind = fsspec.get_filesystem_class(protocol or "file")
    shared = {name: value for name, value in options.items() if name not in kind._strip_tokenize_options}
    # Only a file system over a file, such as an archive, has another one below it.
    if len(shared) < len(options) and (nested := shared.get("target_options")):
        shared["target_options"] = _without_file(shared.get("target_protocol"), nested)
    return shared


_paths: weakref.WeakValueDictionary[tuple[Any, ...], ReadPath] = weakref.WeakValueDictionary()


def _path_of(options: Options) -> ReadPath:
    """Returns the read path of local files, shared by all file systems with equal options."""
    key = (options.memory, options.readahead, options.depth, options.backend, options.keep_files)
    if (path := _paths.get(key)) is None:
        path = _paths[key] = ReadPath(
            options.memory,
            options.readahead,
            depth=options.depth,
            backend=options.backend,
            keep_files=options.keep_files,
        )
    return path


class ReadpathFileSystem(ChainedFileSystem, metaclass=_OneForAllFiles):
    """A file system whose files are read through the read path.

    With `asynchronous=True` it is a `readpath.asynchronous.AsyncReadpathFileSystem`.
    """

    protocol = "readpath"
    cachable = True
    _strip_tokenize_options = ("fo",)

    def __init__(
        self,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        fo: str | None = None,
        fs: Any = None,
        memory: str | int = Options.memory,
        readahead: str = Options.readahead,
        request: str | int = Options.request,
        depth: int | None = Options.depth,
        backend: str = Options.backend,
        keep_files: int = Options.keep_files,
        **kwargs: Any,
    ) -> None:
        """Creates it over the file system `fs`, or the one named by `target_protocol` and `target_options`.

        `memory`, `readahead`, `request`, `depth`, `backend`, `keep_files`: see `readpath.reader.Options`.
        Raises TypeError for an unknown option.
        """
        known = {"target_protocol", "target_options", "fo", "fs", *Options.names(), *FSSPECS_OWN}
        check_names(
            kwargs,
            known,
            "the file system readpath",
            "Options of the storage below go under its protocol's name: s3={…}, say",
        )
        super().__init__(**kwargs)
        if fs is None:
            fs = fsspec.filesystem(target_protocol or "file", **(target_options or {}))
        self.fs = fs
        # Listings contain the names of the target file system, without prefix and protocol.
        self._strip_protocol = self._name_below  # type: ignore[method-assign]
        self.options = Options(memory, readahead, request, depth, backend, keep_files)
        self.kept = Kept(self.options)
        self._layouts: dict[str, tuple[dict[str, Any], Layout]] = {}
        self._together: dict[tuple[str, ...], Together] = {}
        self._known = Details(fs)

    def _name_below(self, path: Any) -> Any:
        """Converts one or more names to the names of the target file system."""
        if isinstance(path, list):
            return [self._name_below(one) for one in path]
        return self.fs._strip_protocol(ReadpathFileSystem._strip_protocol(path))

    @classmethod
    def _stripped(cls, one: Any) -> Any:
        """Removes the prefix from a path or a list of paths. Other arguments stay unchanged."""
        if isinstance(one, os.PathLike):
            one = os.fspath(one)
        if isinstance(one, list):
            return [cls._stripped(each) for each in one]
        return cls._strip_protocol(one) if isinstance(one, str) and one.startswith(PREFIXES) else one

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **options: Any) -> Any:
        """Returns the bytes of a file, or a dictionary for several files, a pattern or a folder.

        `options` are passed to `cat_file`, for example `start` and `end`.
        """
        names = self._strip_protocol(path)
        if isinstance(names, str) and not recursive and not has_magic(names):
            return self.cat_file(names, **options)
        paths = self.fs.expand_path(names, recursive=recursive)
        if self.fs.async_impl and not self.fs.asynchronous:
            # All at once.
            found = self.fs.cat(paths, on_error=on_error, **options)
            return found if isinstance(found, dict) else {paths[0]: found}
        several: dict[str, Any] = {}
        for one in paths:
            try:
                several[one] = self.cat_file(one, **options)
            except Exception as error:
                if on_error == "raise":
                    raise
                if on_error == "return":
                    several[one] = error
        return several

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Removes the prefixes `readpath` from a path, or from each of a list."""
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = fsspec.utils.stringify_path(path)
        for prefix in PREFIXES:
            path = path.removeprefix(prefix)
        return path

    def __getattribute__(self, name: str) -> Any:
        """Returns a forwarded method as a function that removes the prefix `readpath` from paths first.

        The function takes the arguments of the method by place and by name. Without any, the path is the root.
        Queries of details without options are answered from the cache of `Details`. A change clears it.
        """
        if name not in PASSED_ON:
            return super().__getattribute__(name)
        below = getattr(self.fs, name)
        cached_queries = {"info": self._known.info, "isfile": self._known.is_file}
        cached_query = None if self._reads_itself else cached_queries.get(name)

        def forwarded(*arguments: Any, **options: Any) -> Any:
            if not (arguments or options) and name != "invalidate_cache":
                arguments = ("",)
            if cached_query is not None and not arguments and options.keys() == {"path"}:
                arguments, options = (options["path"],), {}
            first, others = arguments[:1], arguments[1:]
            paths = [ReadpathFileSystem._strip_protocol(path) for path in first]
            if cached_query is not None and paths and not (others or options):
                return cached_query(self._name_below(paths[0]))
            if name in CHANGES:
                self._known.forget()
            rest = [ReadpathFileSystem._stripped(one) for one in others]
            named = {option: ReadpathFileSystem._stripped(one) for option, one in options.items()}
            return below(*paths, *rest, **named)

        return forwarded

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        """Opens a file: through the engine, through a `Reader`, or as the target file system opens it."""
        if mode != "rb":
            return self._open_below(path, mode, **kwargs)
        check_names(
            kwargs, OF_ONE_FILE, "a file of readpath", "Memory and policies go to the file system"
        )
        # fsspec's block cache replaces the file's cache, so the file must be of fsspec's class.
        is_for_a_cache = kwargs.get("cache_type") == "none"
        if kwargs.get("cache_type") in PARTS:
            return self._open_below(path, mode, **kwargs)
        if self._reads_itself and not is_for_a_cache:
            return self.own.open(self.fs._strip_protocol(path))
        try:
            details = self._known.take_for_opening(path)
        except FileNotFoundError:
            # fsspec's caches over http search a listing. They can open files that it lacks.
            return self._open_below(path, mode, **kwargs)
        if details["type"] == "directory":
            raise IsADirectoryError(path)
        if details.get("size") is None or details.get("partial") is False:
            # Without random access there is no readahead.
            return self._open_below(path, mode, **kwargs)
        return ReadpathFile(self, path, size=details["size"], details=details)

    def _open_below(self, path: str, mode: str, **kwargs: Any) -> Any:
        """Opens a file of the target file system and keeps this object alive with it, as archives need."""
        def open_below() -> Any:
            return self.fs.open(path, mode, **kwargs)

        file = open_below() if mode == "rb" else self._known.open_for_writing(path, open_below)
        keep_with(file, self)
        return file

    def fetch(self, path: str, details: dict[str, Any]) -> Fetch:
        """Returns the function that starts to fetch a range of the version that `details` describe."""
        return Version(self.fs, path, details).fetch(lambda: self.threads)

    def keep_layout(self, path: str, details: dict[str, Any], layout: Layout) -> None:
        """Caches the footer of a Parquet file. A scan opens the file again and then needs no footer read."""
        self._layouts[path] = (details, layout)
        keep_newest(self._layouts)

    def layout(self, path: str, details: dict[str, Any]) -> Layout | None:
        """Returns the cached footer of a file if the file is unchanged."""
        kept, layout = self._layouts.get(path, (None, None))
        return layout if kept == details else None

    def columns(self, layout: Layout, ahead_bytes: int) -> Columns:
        """Returns the column state of a file. It shares knowledge with files of equal columns."""
        return Columns(layout, ahead_bytes, together_of(self._together, layout))

    @property
    def _reads_itself(self) -> bool:
        """True if the engine reads the files, and not the target file system."""
        return isinstance(self.fs, (LocalFileSystem, NfsFileSystem))

    @cached_property
    def own(self) -> ReadPath:
        """Read path of local files and of files on NFS servers."""
        return _path_of(self.options)

    @cached_property
    def threads(self) -> FetchThreads:
        """Threads for fetches from a blocking file system. They start when they are needed."""
        return FetchThreads(self.options.ranges)


class ReadpathFile(AbstractBufferedFile):
    """A file open for reading. Several threads may use it, except for its position."""

    def __init__(
        self, fs: ReadpathFileSystem, path: str, size: int, details: dict[str, Any]
    ) -> None:
        """Opens the version of the file that `details`, the reply of `info`, describe. `size`: its length."""
        super().__init__(fs, path, "rb", cache_type="none", size=size)
        self.loc: int
        self._details = details
        # Offset and bytes of the last block in which `readuntil` searched.
        self._block = (0, b"")
        self.reader = fs.kept.opened(path, details, fs.fetch(path, details))
        self.cache.fetcher = self.reader.range_of
        layout = fs.layout(path, details)
        columns = None if layout is None else fs.columns(layout, self.reader.ahead_bytes)
        self._column_reads = ColumnReads(self.reader.ahead_bytes, columns)

    def __enter__(self) -> Self:
        """Returns the file itself. Raises ValueError if it is closed."""
        self._check_open()
        return self

    def __iter__(self) -> Self:
        """Returns the file itself, which yields its lines. Raises ValueError if it is closed."""
        self._check_open()
        return self

    def tell(self) -> int:
        """Returns the position."""
        self._check_open()
        return self.loc

    def write(self, data: Buffer) -> int:
        """Raises UnsupportedOperation: the file is open for reading only."""
        self._check_open()
        raise io.UnsupportedOperation("not open for writing")

    def seek(self, loc: int, whence: int = 0) -> int:
        """Sets and returns the position. Raises OSError for a negative one, as system files do."""
        self._check_open()
        self.loc = position_after(loc, whence, self.loc, self.size, self.path)
        return self.loc

    def read(self, length: int | None = -1) -> bytes:
        """Returns up to `length` bytes from the position, by default all remaining bytes."""
        self._check_open()
        left, limit = max(0, self.size - self.loc), limit_of(length)
        length = left if limit is None else min(limit, left)
        if length == 0:
            return b""
        begin = self.loc
        self._column_reads.before(self, begin, length)
        data = self.reader.read(begin, length)
        self._column_reads.after(self, begin + len(data), data)
        self.loc = begin + len(data)
        return data

    def _advise_policy(self, advice: str) -> None:
        self.reader.advise_policy(advice)

    def _columns_of(self, layout: Layout) -> Columns:
        self.fs.keep_layout(self.path, self._details, layout)
        columns: Columns = self.fs.columns(layout, self.reader.ahead_bytes)
        return columns

    def readinto(self, buffer: Buffer) -> int:
        """Fills `buffer` from the position and returns the number of bytes."""
        self._check_open()
        count = self.reader.read_into(self.loc, buffer)
        self.loc += count
        return count

    def readline(self, size: int | None = -1) -> bytes:
        """Returns the bytes from the position to the next newline, inclusive; at most `size` if given."""
        return self._until(b"\n", LINE_BYTES, limit_of(size))

    def readlines(self, hint: int | None = -1) -> list[bytes]:
        """Returns the lines from the position, until more bytes than a positive `hint`."""
        self._check_open()
        return lines_of(self, hint)

    def readuntil(self, char: bytes = b"\n", blocks: int | None = None) -> bytes:
        """Returns the bytes from the position to `char`, inclusive, or to the end, read `blocks` bytes at a time."""
        return self._until(char, blocks or LINE_BYTES, None)

    def _until(self, char: bytes, block_bytes: int, limit: int | None) -> bytes:
        """Returns the bytes to `char`, at most `limit`. The position changes at the return."""
        self._check_open()
        begin: int = self.loc
        position = begin
        # Bytes from `begin` on without the whole of `char`.
        found = bytearray()
        while limit is None or len(found) < limit:
            start, block = self._block
            skip = position - start
            # The position lies outside the last block: read the block at the position.
            if not 0 <= skip < len(block):
                skip, block = 0, self.reader.read(position, block_bytes)
                self._block = (position, block)
            if not block:
                break
            end = len(block) if limit is None else min(len(block), skip + limit - len(found))
            # The match may span two blocks: the search begins shortly before the new one.
            search_from = max(0, len(found) - len(char) + 1)
            is_first_block = not found
            # Without a copy into `found`, which most lines do not need.
            if is_first_block and (at := block.find(char, skip, end)) >= 0:
                self.loc = begin + at + len(char) - skip
                return block[skip : at + len(char)]
            found += block[skip:end]
            if not is_first_block and (at := found.find(char, search_from)) >= 0:
                del found[at + len(char) :]
                break
            position = begin + len(found)
        self.loc = begin + len(found)
        return bytes(found)

    def readat(self, offset: int, size: int) -> bytes:
        """Returns the bytes at `offset`, fewer only at the end of the file. The position stays."""
        return self.reader.read(offset, size)

    def readat_many(self, ranges: Ranges) -> list[bytes]:
        """Returns the bytes of each `(offset, size)`, submitted together: pairs, or an array with two columns."""
        return self.reader.read_many(ranges)

    def readinto_many(self, offsets: Offsets, buffers: Buffer | Iterable[Buffer]) -> list[int]:
        """Fills a buffer from each offset, submitted together. Returns the number of bytes of each.

        `buffers`: one writable buffer per offset, or one buffer that is split into equal parts, like an
        array of rows. A part is filled partially only at the end of the file.
        """
        return self.reader.read_into_many(offsets, buffers)

    async def areadat(self, offset: int, size: int) -> bytes:
        """As `readat`, for asyncio."""
        return await self.reader.aread(offset, size)

    async def areadat_many(self, ranges: Ranges) -> list[bytes]:
        """As `readat_many`, for asyncio."""
        return await self.reader.aread_many(ranges)

    def readinto_at(self, offset: int, buffer: Buffer) -> int:
        """Fills a writable buffer from `offset` and returns the number of bytes. The position stays."""
        self._check_open()
        return self.reader.read_into(offset, buffer)

    def prefetch(self, offset: int, size: int) -> None:
        """Starts to fetch a range that will be needed, as far as memory allows, without a wait."""
        self.reader.prefetch([(offset, size)])

    def prefetch_many(self, ranges: Ranges) -> None:
        """As `prefetch`, of each `(offset, size)`."""
        self.reader.prefetch(ranges)

    def prefetch_columns(self, names: Iterable[str]) -> None:
        """As `prefetch_columns` of a file by URL: starts to fetch columns of a Parquet file."""
        self._column_reads.prefetch(self, names)

    def advise(self, advice: str) -> None:
        """Gives a hint on the reads of this file, by its name in `posix_fadvise(2)`."""
        self.reader.advise(advice)

    def stats(self) -> dict[str, int]:
        """Returns the counters of this file: bytes read, bytes found cached, fetched bytes and fetches.

        With `keep_files` they include earlier opens.
        """
        counted = self.reader.counters()
        return {
            "bytes": counted["asked_bytes"],
            "cached_bytes": counted["hit_bytes"],
            "fetched_bytes": counted["fetched_bytes"],
            "fetches": counted["fetches"],
        }

    def revalidate(self) -> bool:
        """Checks for a change of the file since it was opened or last checked.

        After a change the current version is read, with its length. The check compares the details
        from the storage: the length, and a tag or time if available. Raises OSError if the storage
        no longer has the file, or gives no ranges of it. The open file stays usable then.
        """
        self._check_open()
        below = self.fs.fs
        forget_listings(below, self.path)
        details = below.info(self.path)
        if is_same_version(details, self._details):
            return False
        if details["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, "it is a directory now", self.path)
        if details.get("size") is None or details.get("partial") is False:
            text = "its storage gives no ranges of the current version; open it again"
            raise OSError(errno.ESPIPE, text, self.path)
        stale, fetch = self.reader, self.fs.fetch(self.path, details)
        reader = Reader(fetch, details["size"], self.fs.options)
        reader.advise(stale.advice)
        self.reader, self._details, self.size = reader, details, details["size"]
        self._block, self._column_reads = (0, b""), ColumnReads(self.reader.ahead_bytes)
        self.cache.fetcher, self.cache.size = self.reader.range_of, self.size
        stale.close()
        return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        """Pickles the name, the options and the position. Raises ValueError if closed."""
        self._check_open()
        return super().__reduce__()

    def close(self) -> None:
        """Closes the file and drops its cache unless `keep_files` keeps it. Waiting reads get a ValueError."""
        if hasattr(self, "reader") and not self.closed:
            self.fs.kept.closed(self.path, self._details, self.reader)
        super().close()

    def _fetch_range(self, start: int, end: int) -> bytes:
        """Returns the bytes of a range, for the methods of fsspec's file class."""
        return self.reader.read(start, end - start)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
