"""Reads of one remote file through our read path.

The core decides which ranges are fetched, when, and how many at once
(`_native.Planner`); a `fetch` function brings each; what it brings is cached. The
bytes that somebody waits for and those that are read ahead are fetched side by
side, and a read returns as soon as its own are there.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from readpath import _native
from readpath.modelled import memory_bytes
from readpath.places import Offsets, Ranges, buffers_of, offsets_of, pairs_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

Fetch = Callable[[int, int], "Future[bytes]"]
"""Starts to fetch the bytes from one offset up to, and without, another."""

LARGE_BYTES = 1 << 20
"""The bytes of what is awaited and larger are copied on a thread."""

RANGES_MAX = 16_384
"""Reads in one submission; more are handed over in several."""


@dataclass(frozen=True)
class Options:
    """How a remote file is read.

    `memory`: of the cache of one open file, 64 KiB at least; what is being
    fetched comes on top, in the buffers of whoever fetches it. `readahead`: the policy.
    A stream is delivered a window in each latency of the storage; two windows
    and some more should fit into the memory. `request`: the largest range to fetch, whole
    pages. `depth`: how many to fetch at once. `backend`: what carries the requests of a file of this machine,
    as `readpath.ReadPath` names it; others are fetched by their file system. `keep_files`: of how many files what is
    cached stays when they are closed, the last ones, for who opens them again unchanged; each keeps its memory.

    The defaults are for streams of a hundred MiB/s at a latency of 20 ms, and for whatever
    else a program does: `bench/python_peers.py` chose them, by the speed for the memory.
    """

    memory: str | int = "8MiB"
    readahead: str = "adaptive"
    request: str | int = "256KiB"
    depth: int = 64
    backend: str = "auto"
    keep_files: int = 0

    @staticmethod
    def names() -> list[str]:
        """What the options are called."""
        return [field.name for field in fields(Options)]

    @staticmethod
    def names_for_one_file() -> list[str]:
        """Those that say how one file is fetched."""
        return [name for name in Options.names() if name not in ("backend", "keep_files")]


class Reader:
    """Reads one file of a known size; may be used by several threads at once."""

    def __init__(self, fetch: Fetch, file_bytes: int, options: Options = Options()) -> None:
        """A reader with an empty cache.

        Raises ValueError where an option can't be used.
        """
        self.file_bytes = file_bytes
        self._fetch = fetch
        memory, request = memory_bytes(options.memory), memory_bytes(options.request)
        self._planner = _native.Planner(
            file_bytes, memory, options.readahead, request, options.depth
        )
        self.ahead_bytes = memory // 2
        """How much may be fetched ahead without what is read being displaced."""
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[int]] = {}
        self._ended: set[int] = set()
        self._failure: BaseException | None = None
        self._is_closed = False

    def read(self, offset: int, size: int) -> bytes:
        """The bytes from `offset` on; fewer than `size` only at the end of the file."""
        return self._read([(offset, size)], self._planner.take)[0]

    def range_of(self, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`. A cache of fsspec holds this method and not the file, which would keep
        the file alive by a cycle."""
        return self.read(start, end - start)

    def read_into(self, offset: int, buffer: Buffer) -> int:
        """Fills `buffer` from `offset` on; gives how many bytes."""
        size = memoryview(buffer).nbytes
        return self._read([(offset, size)], lambda read: self._planner.take_into(read, buffer))[0]

    def read_many(self, ranges: Ranges) -> list[bytes]:
        """The bytes of each `(offset, size)`, all asked for at once."""
        return self._read_batches(pairs_of(ranges), self._planner.take)

    def read_into_many(self, offsets: Offsets, buffers: Buffer | Iterable[Buffer]) -> list[int]:
        """Fills a buffer from each offset on, or the parts of one; gives how many bytes each."""
        places = offsets_of(offsets)
        views = buffers_of(buffers, len(places))
        ranges = [(offset, view.nbytes) for offset, view in zip(places, views, strict=True)]
        left = iter(views)
        return self._read_batches(ranges, lambda read: self._planner.take_into(read, next(left)))

    def _read_batches(self, ranges: list[tuple[int, int]], take: Callable[[int], T]) -> list[T]:
        batches = range(0, len(ranges), RANGES_MAX)
        parts = (self._read(ranges[at : at + RANGES_MAX], take) for at in batches)
        return [data for part in parts for data in part]

    def advise(self, advice: str) -> None:
        """A hint on how the file will be read, as `posix_fadvise(2)` names them."""
        self._planner.advise(advice, 0, self.file_bytes)
        self._pump()

    def prefetch(self, ranges: Ranges) -> None:
        """Starts to fetch what is absent of each `(offset, size)`, in their order, as far as memory allows.

        It doesn't wait.
        """
        if self._is_closed:
            raise ValueError("read of a closed file")
        for offset, size in pairs_of(ranges):
            if offset < 0 or size < 0:
                raise ValueError(f"offset {offset}, size {size}: give numbers from 0 on")
            self._planner.advise("willneed", offset, size)
        self._pump()

    async def aread(self, offset: int, size: int) -> bytes:
        """As `read`, for asyncio."""
        return (await self.aread_many([(offset, size)]))[0]

    async def aread_many(self, asked: Ranges) -> list[bytes]:
        """As `read_many`, for asyncio."""
        ranges = pairs_of(asked)
        data: list[bytes] = []
        for at in range(0, len(ranges), RANGES_MAX):
            batch = ranges[at : at + RANGES_MAX]
            reads = self._start(batch)
            try:
                for _, size in batch:
                    if (future := self._future(reads[0])) is not None:
                        await asyncio.wrap_future(future)
                    read = reads.popleft()
                    if size > LARGE_BYTES:
                        # An event loop would be held by the copy.
                        data.append(await asyncio.to_thread(self._take, read, self._planner.take))
                    else:
                        data.append(self._take(read, self._planner.take))
            finally:
                self._forget(reads)
        return data

    def counters(self) -> dict[str, int]:
        """What was counted so far: bytes asked for, found, and fetched, and in how many pieces."""
        return self._planner.counters()

    def close(self) -> None:
        """Lets go of whoever waits; what is being fetched is forgotten when it comes."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(ValueError("read of a closed file"))

    def reopen(self, fetch: Fetch) -> None:
        """Goes on where it was closed, with what it has cached; what is absent comes by `fetch`."""
        with self._lock:
            self._fetch, self._failure, self._is_closed = fetch, None, False

    def _read(self, ranges: Sequence[tuple[int, int]], take: Callable[[int], T]) -> list[T]:
        reads = self._start(ranges)
        data: list[T] = []
        try:
            while reads:
                if (future := self._future(reads[0])) is not None:
                    future.result()
                data.append(self._take(reads.popleft(), take))
        finally:
            self._forget(reads)
        return data

    def _start(self, ranges: Sequence[tuple[int, int]]) -> deque[int]:
        if self._is_closed:
            raise ValueError("read of a closed file")
        for offset, size in ranges:
            if offset < 0 or size < 0:
                raise ValueError(f"offset {offset}, size {size}: give numbers from 0 on")
        reads = self._planner.start(list(ranges))
        self._pump()
        return deque(reads)

    def _future(self, read: int) -> Future[int] | None:
        """What to wait for until a read has ended; None when it has."""
        with self._lock:
            if read in self._ended:
                return None
            if self._is_closed:
                raise ValueError("read of a closed file")
            return self._waiting.setdefault(read, Future())

    def _take(self, read: int, take: Callable[[int], T]) -> T:
        with self._lock:
            self._ended.discard(read)
        try:
            return take(read)
        except OSError as error:
            if error.errno != errno.EIO or self._failure is None:
                raise
            # What the storage said tells more than which byte it was said of.
            raise self._failure from error
        finally:
            # Memory is free again, for which other reads may have waited.
            self._pump()

    def _forget(self, reads: deque[int]) -> None:
        """Lets go of the reads that nobody has taken, as after an exception."""
        if reads:
            with self._lock:
                for read in reads:
                    self._ended.discard(read)
                    self._waiting.pop(read, None)
            self._planner.abandon(list(reads))
            self._pump()

    def _pump(self) -> None:
        """Fetches what the core wants, and wakes those whose reads have ended."""
        while True:
            ranges, ended = self._planner.poll()
            if not ranges and not ended:
                return
            with self._lock:
                self._ended.update(ended)
                woken = [self._waiting.pop(read) for read in ended if read in self._waiting]
            for future in woken:
                future.set_result(0)
            for name, start, end in ranges:
                self._begin(name, start, end)

    def _begin(self, name: int, start: int, end: int) -> None:
        try:
            future = self._fetch(start, end)
        except Exception as error:
            self._fail(name, error)
            return
        future.add_done_callback(lambda future: self._came(name, future))

    def _came(self, name: int, future: Future[bytes]) -> None:
        try:
            self._planner.finish(name, bytes(future.result()))
        except BaseException as error:
            self._fail(name, error)
        self._pump()

    def _fail(self, name: int, error: BaseException) -> None:
        self._failure = error
        self._planner.fail(name)


def on_threads(fetch: Callable[[int, int], bytes], threads: ThreadPoolExecutor) -> Fetch:
    """A `fetch` that calls a function that waits, on threads."""
    return lambda start, end: threads.submit(fetch, start, end)
