"""`readpath::…` for asyncio: the file system for `asynchronous=True`.

Its methods are fsspec's: `await fs._cat_file(path, start, end)`, `await fs._cat_ranges(…)`,
`await fs.open_async(path)`. Local files and files on NFS servers are read by the engine. Named
ranges of other files are fetched in parallel without readahead, because the caller knows them in
advance. An opened file is read with readahead windows. Everything runs on the caller's event loop,
and blocking calls run on threads.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from typing import Any

import fsspec
from fsspec.asyn import AbstractAsyncStreamedFile, AsyncFileSystem
from fsspec.config import conf
from fsspec.implementations.local import LocalFileSystem

from readpath.files import File, ReadPath, limit_of, position_after
from readpath.kept import Kept
from readpath.nfs import NfsFileSystem
from readpath.options import FSSPECS_OWN, check_names
from readpath.places import Ranges
from readpath.reader import Options, Reader
from readpath.versions import Version

KEPT_FILES = 64
"""Minimum number of local files that stay open between separate range requests."""

OPEN_FILES_MAX = 128
"""Default number of files that one call reads at once: fsspec's `_DEFAULT_BATCH_SIZE`."""


class AsyncReadpathFileSystem(AsyncFileSystem):
    """A file system for asyncio whose files are read through the read path."""

    protocol = "readpath"
    cachable = True
    _strip_tokenize_options = ("fo",)

    def __init__(
        self,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        fo: str | None = None,
        fs: Any = None,
        asynchronous: bool = True,
        loop: asyncio.AbstractEventLoop | None = None,
        **options: Any,
    ) -> None:
        """As `readpath.filesystem.ReadpathFileSystem`. `loop` is ignored in favour of the caller's loop.

        Raises TypeError for an unknown option.
        """
        check_names(options, {*Options.names(), *FSSPECS_OWN}, "the file system readpath")
        chosen = {name: options.pop(name) for name in Options.names() if name in options}
        super().__init__(asynchronous=asynchronous, loop=loop, **options)
        if fs is None:
            kind = fsspec.get_filesystem_class(target_protocol or "file")
            # Connections belong to one loop, so another loop needs another file system.
            of_a_loop = {"asynchronous": True, "skip_instance_cache": True}
            awaited = of_a_loop if kind.async_impl else {}
            fs = kind(**(target_options or {}), **awaited)
        self.fs = fs
        self._strip_protocol = self._name_below  # type: ignore[method-assign]
        self.options = Options(**chosen)
        self.kept = Kept(self.options)
        self._own: ReadPath | None = None

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        from readpath.filesystem import ReadpathFileSystem

        return ReadpathFileSystem._strip_protocol(path)

    def _name_below(self, path: Any) -> Any:
        """Converts one or more names to the names of the target file system."""
        if isinstance(path, list):
            return [self._name_below(one) for one in path]
        return self.fs._strip_protocol(AsyncReadpathFileSystem._strip_protocol(path))

    async def _below(self, name: str, path: Any, *arguments: Any, **options: Any) -> Any:
        """Calls a method of the target file system, on a thread if it blocks."""
        path = self._strip_protocol(path)
        if self.fs.async_impl:
            return await getattr(self.fs, f"_{name}")(path, *arguments, **options)
        return await asyncio.to_thread(getattr(self.fs, name), path, *arguments, **options)

    async def _info(self, path: str, **options: Any) -> Any:
        return await self._below("info", path, **options)

    async def _ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return await self._below("ls", path, detail=detail, **options)

    async def _exists(self, path: str, **options: Any) -> Any:
        return await self._below("exists", path, **options)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Discards the listings that the target file system has cached: of a folder, or all."""
        self.fs.invalidate_cache(None if path is None else self._strip_protocol(path))

    async def _cp_file(self, path1: str, path2: str, **options: Any) -> Any:
        return await self._below("cp_file", path1, self._strip_protocol(path2), **options)

    async def _pipe_file(self, path: str, value: bytes, **options: Any) -> Any:
        return await self._below("pipe_file", path, value, **options)

    async def _get_file(self, rpath: str, lpath: str, **options: Any) -> Any:
        return await self._below("get_file", rpath, lpath, **options)

    async def _put_file(self, lpath: str, rpath: str, **options: Any) -> Any:
        rpath = self._strip_protocol(rpath)
        if self.fs.async_impl:
            return await self.fs._put_file(lpath, rpath, **options)
        return await asyncio.to_thread(self.fs.put_file, lpath, rpath, **options)

    async def _rm_file(self, path: str, **options: Any) -> Any:
        return await self._below("rm_file", path, **options)

    async def _mkdir(self, path: str, create_parents: bool = True, **options: Any) -> Any:
        return await self._below("mkdir", path, create_parents=create_parents, **options)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> Any:
        return await self._below("makedirs", path, exist_ok=exist_ok)

    async def _rmdir(self, path: str) -> Any:
        return await self._below("rmdir", path)

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> Any:
        """Returns the bytes of a range; negative bounds count from the end, as in a slice."""
        if not self._reads_itself:
            return await self._below("cat_file", path, start=start, end=end, **options)
        file = await self._opened(path)
        try:
            begin, stop, _ = slice(start, end).indices(file.size)
            return await file.areadat(begin, max(0, stop - begin))
        finally:
            file.close()

    async def _cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        batch_size: int | None = None,
        on_error: str = "return",
        **options: Any,
    ) -> Any:
        """Returns the bytes of one range of each path, in order. All ranges of a file are submitted together.

        With `on_error="return"` an exception takes the place of its bytes. `batch_size`: number of
        files that are open at once, -1 for no limit.
        """
        if not self._reads_itself:
            paths = self._strip_protocol(paths)
            if self.fs.async_impl:
                return await self.fs._cat_ranges(
                    paths, starts, ends, max_gap=max_gap, batch_size=batch_size, on_error=on_error, **options
                )
            return await asyncio.to_thread(
                self.fs.cat_ranges, paths, starts, ends, max_gap=max_gap, on_error=on_error, **options
            )
        count = len(paths)
        begins: Sequence[Any] = starts if isinstance(starts, (list, tuple)) else [starts] * count
        stops: Sequence[Any] = ends if isinstance(ends, (list, tuple)) else [ends] * count
        # Indices of the ranges of each file.
        indices_of: dict[str, list[int]] = {}
        for index, path in enumerate(paths):
            indices_of.setdefault(path, []).append(index)
        results: list[Any] = [None] * count
        files_max = batch_size or self.batch_size or _open_files_max()
        turns = asyncio.Semaphore(len(indices_of) if files_max == -1 else files_max)

        async def read(path: str, indices: list[int]) -> None:
            async with turns:
                await read_open(path, indices)

        async def read_open(path: str, indices: list[int]) -> None:
            try:
                file = await self._opened(path)
                try:
                    bounds = [slice(begins[index], stops[index]).indices(file.size) for index in indices]
                    ranges = [(begin, max(0, stop - begin)) for begin, stop, _ in bounds]
                    data: Sequence[Any] = await file.areadat_many(ranges)
                finally:
                    file.close()
            except Exception as error:
                if on_error != "return":
                    raise
                data = [error] * len(indices)
            for index, part in zip(indices, data, strict=True):
                results[index] = part

        await asyncio.gather(*(read(path, indices) for path, indices in indices_of.items()))
        return results

    async def open_async(self, path: str, mode: str = "rb", **options: Any) -> Any:
        """Opens a file whose `read`, `readat` and `readat_many` are awaited.

        Raises OSError for another mode than `rb`, and for a file that its storage returns only whole.
        """
        if mode != "rb":
            raise OSError(30, f"mode {mode!r}: files are opened for reading bytes; give 'rb'", path)  # EROFS
        check_names(options, {"size"}, "a file of readpath")
        if self._reads_itself:
            return AsyncReadpathFile(self, path, await self._opened(path), {})
        path = self._strip_protocol(path)
        details = await self._info(path)
        if details["type"] == "directory":
            raise IsADirectoryError(21, "Is a directory", path)
        if details.get("size") is None or details.get("partial") is False:
            raise OSError(29, "its storage gives no ranges of it; open it below", path)  # ESPIPE
        fetch = Version(self.fs, path, details).fetch_on(asyncio.get_running_loop())
        return AsyncReadpathFile(self, path, self.kept.opened(path, details, fetch), details)

    @property
    def _reads_itself(self) -> bool:
        """True if the engine reads the files, and not the target file system."""
        return isinstance(self.fs, (LocalFileSystem, NfsFileSystem))

    async def _opened(self, path: str) -> File:
        """Opens a file through the engine, on a thread. The first call builds the read path."""
        if self._own is None:
            options = self.options
            self._own = ReadPath(
                options.memory,
                options.readahead,
                depth=options.depth,
                backend=options.backend,
                keep_files=max(KEPT_FILES, options.keep_files),
            )
        return await asyncio.to_thread(self._own.open, self.fs._strip_protocol(self._strip_protocol(path)))


def _open_files_max() -> int:
    """Default number of files open at once: fsspec's `gather_batch_size` of all file systems, if it
    is set; otherwise at most an eighth of the descriptors, as in fsspec.
    """
    if configured := conf.get("gather_batch_size"):
        return int(configured)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES_MAX if limit == resource.RLIM_INFINITY else min(OPEN_FILES_MAX, max(1, limit // 8))


class AsyncReadpathFile(AbstractAsyncStreamedFile):
    """An open file with awaitable reads."""

    def __init__(
        self,
        fs: AsyncReadpathFileSystem,
        path: str,
        source: File | Reader,
        details: dict[str, Any],
    ) -> None:
        """Takes over `source`, which reads the file. `details`: the reply of `info`, empty for a `File`."""
        size = source.size if isinstance(source, File) else source.file_bytes
        super().__init__(fs, path, "rb", cache_type="none", size=size)
        self._source, self._details = source, details
        self.loc: int
        self.closed: bool

    def seek(self, loc: int, whence: int = 0) -> int:
        """Sets and returns the position. Raises OSError for a negative one, as system files do."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        self.loc = position_after(loc, whence, self.loc, self.size, self.path)
        return self.loc

    async def read(self, length: int | None = -1) -> bytes:
        """Returns up to `length` bytes from the position, by default all remaining bytes."""
        left, limit = max(0, self.size - self.loc), limit_of(length)
        data = await self.readat(self.loc, left if limit is None else min(limit, left))
        self.loc += len(data)
        return data

    async def readat(self, offset: int, size: int) -> bytes:
        """Returns the bytes at `offset`, fewer only at the end of the file. The position stays."""
        if isinstance(self._source, File):
            return await self._source.areadat(offset, size)
        return await self._source.aread(offset, size)

    async def readat_many(self, ranges: Ranges) -> list[bytes]:
        """Returns the bytes of each `(offset, size)`, submitted together."""
        if isinstance(self._source, File):
            return await self._source.areadat_many(ranges)
        return await self._source.aread_many(ranges)

    async def close(self) -> None:
        """Closes the file."""
        if isinstance(self._source, File):
            self._source.close()
        elif not self.closed:
            self.fs.kept.closed(self.path, self._details, self._source)
        self.closed = True
