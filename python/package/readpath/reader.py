"""Reads of one remote file through the read path.

The core decides on the ranges to fetch, their time and their number in flight
(`_native.Planner`). A `fetch` function brings each range into the cache. Demand
and prefetched ranges are fetched in parallel, and a read returns as soon as its
own bytes are there.
"""

from __future__ import annotations

import asyncio
import errno
import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from readpath import _native
from readpath.files import OF_THE_HANDLE
from readpath.forks import renew_in_children
from readpath.modelled import memory_bytes, size_bytes
from readpath.places import Offsets, Ranges, buffers_of, exported, offsets_of, pairs_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

Fetch = Callable[[int, int], "Future[bytes]"]
"""Function that starts to fetch the bytes from one offset to another (exclusive)."""

LARGE_BYTES = 1 << 20
"""Size in bytes above which an awaited read is copied on a thread."""

RANGES_MAX = 16_384
"""Maximum number of reads per submission."""

RANGES_DEFAULT = 64
"""Default number of ranges in flight."""


@dataclass(frozen=True)
class Options:
    """Options of a remote file.

    - `memory`: size of the cache per open file, at least 64 KiB. Ranges in flight are extra, in the
      buffers of the file system.
    - `readahead`: the policy. A stream gets one window per latency of the storage, so the memory
      should hold somewhat more than two windows.
    - `request`: maximum size of a range, whole pages. Requests for local files have the sizes of the
      read path.
    - `depth`: maximum number of ranges in flight, or of requests in the storage for local files.
      Default: 64 ranges, and the requests of a `readpath.ReadPath`.
    - `backend`: I/O backend for local files, as in `readpath.ReadPath`. Other files are fetched by
      their file system.
    - `keep_files`: number of closed files whose cached bytes are kept for a later open of the
      unchanged file. Each keeps its memory.

    The defaults suit streams of a hundred MiB/s at a latency of 20 ms, and other access patterns.
    `bench/python_peers.py` chose them by speed per memory.
    """

    memory: str | int = "32MiB"
    readahead: str = "adaptive"
    request: str | int = "1MiB"
    depth: int | None = None
    backend: str = "auto"
    keep_files: int = 0

    @property
    def ranges(self) -> int:
        """Maximum number of ranges in flight."""
        return RANGES_DEFAULT if self.depth is None else self.depth

    def __post_init__(self) -> None:
        """Raises ValueError for an unusable option, TypeError for a number of another type."""
        memory_bytes(self.memory)
        size_bytes(self.request, "request")
        for name, given, least in (("depth", self.ranges, 1), ("keep_files", self.keep_files, 0)):
            if (number := operator.index(given)) < least:
                raise ValueError(f"{name}={number}: give a number from {least} on")
        _native.check_backend(self.backend)

    @staticmethod
    def names() -> list[str]:
        """Returns the names of the options."""
        return [field.name for field in fields(Options)]

    @staticmethod
    def names_for_one_file() -> list[str]:
        """Returns the names of the options for a single file."""
        return [name for name in Options.names() if name not in ("backend", "keep_files")]


class Reader:
    """Reads one file of a known size, on any number of threads."""

    def __init__(self, fetch: Fetch, file_bytes: int, options: Options = Options()) -> None:
        """Creates a reader with an empty cache.

        Raises ValueError for an unusable option.
        """
        self.file_bytes = file_bytes
        self._fetch = fetch
        self._options = options
        self.ahead_bytes = memory_bytes(options.memory) // 2
        """Maximum number of prefetched bytes that do not displace the current reads."""
        self._is_closed = False
        self.advice = "normal"
        """Last hint of the program on the whole file."""
        # Last hint to the readahead policy.
        self._policy_advice = "normal"
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Creates an empty cache. In a child of fork no thread ends the reads of the parent."""
        options = self._options
        self._planner = _native.Planner(
            self.file_bytes,
            memory_bytes(options.memory),
            options.readahead,
            size_bytes(options.request, "request"),
            options.ranges,
        )
        self._planner.advise(self._policy_advice, 0, self.file_bytes)
        self._lock = threading.Lock()
        # Futures of the reads for which a thread or task waits, by the planner's number.
        self._waiting: dict[int, Future[int]] = {}
        # Reads that have ended and were not taken yet.
        self._ended: set[int] = set()
        # Last exception of any fetch, for all reads that fail.
        self._failure: BaseException | None = None

    def read(self, offset: int, size: int) -> bytes:
        """Returns the bytes at `offset`, fewer than `size` only at the end of the file.

        Raises ValueError for negative numbers and after `close`, and the exception of the storage.
        """
        return self._read([(offset, size)], self._planner.take)[0]

    def range_of(self, start: int, end: int) -> bytes:
        """Returns the bytes from `start` to `end` (exclusive).

        fsspec's cache refers to this method instead of the file, which would be a reference cycle.
        """
        return self.read(start, end - start)

    def read_into(self, offset: int, buffer: Buffer) -> int:
        """Fills `buffer` from `offset` and returns the number of bytes."""
        buffer = exported(buffer)
        size = memoryview(buffer).nbytes
        return self._read([(offset, size)], lambda read: self._planner.take_into(read, buffer))[0]

    def read_many(self, ranges: Ranges) -> list[bytes]:
        """Returns the bytes of each `(offset, size)`, submitted together."""
        return self._read_batches(pairs_of(ranges), self._planner.take)

    def read_into_many(self, offsets: Offsets, buffers: Buffer | Iterable[Buffer]) -> list[int]:
        """Fills a buffer per offset, or the parts of one buffer. Returns the number of bytes of each."""
        places = offsets_of(offsets)
        views = buffers_of(buffers, len(places))
        ranges = [(offset, view.nbytes) for offset, view in zip(places, views, strict=True)]
        # Reads are taken in their order, so the next buffer belongs to the next read.
        remaining = iter(views)
        return self._read_batches(ranges, lambda read: self._planner.take_into(read, next(remaining)))

    def _read_batches(self, ranges: list[tuple[int, int]], take: Callable[[int], T]) -> list[T]:
        """Reads the ranges like `_read`, at most `RANGES_MAX` at a time."""
        self._check_open()
        batches = range(0, len(ranges), RANGES_MAX)
        parts = (self._read(ranges[at : at + RANGES_MAX], take) for at in batches)
        return [data for part in parts for data in part]

    def advise(self, advice: str) -> None:
        """Gives a hint on the reads of the file, by its name in `posix_fadvise(2)`."""
        self._check_open()
        self._planner.advise(advice, 0, self.file_bytes)
        if advice in OF_THE_HANDLE:
            self.advice = self._policy_advice = advice
        self._pump()

    def advise_policy(self, advice: str) -> None:
        """Gives a hint to the readahead policy: `random`, or `normal` for the hint of the program."""
        self._check_open()
        self._policy_advice = self.advice if advice == "normal" else advice
        self._planner.advise(self._policy_advice, 0, self.file_bytes)

    def prefetch(self, ranges: Ranges) -> None:
        """Starts to fetch what is absent of each `(offset, size)`, in their order, as far as memory allows.

        It doesn't wait.
        """
        self._check_open()
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
        self._check_open()
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
                        # The copy would block the event loop.
                        data.append(await asyncio.to_thread(self._take, read, self._planner.take))
                    else:
                        data.append(self._take(read, self._planner.take))
            finally:
                self._forget(reads)
        return data

    def counters(self) -> dict[str, int]:
        """Returns the counters: requested, cached and fetched bytes, and the number of fetches."""
        return self._planner.counters()

    def close(self) -> None:
        """Fails the waiting reads. Ranges in flight are dropped when they arrive."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(ValueError("read of a closed file"))

    def reopen(self, fetch: Fetch) -> None:
        """Opens the reader again with its cached bytes, without hints. Absent bytes come from `fetch`."""
        with self._lock:
            self._fetch, self._failure, self._is_closed = fetch, None, False
        self.advise("normal")

    def _read(self, ranges: Sequence[tuple[int, int]], take: Callable[[int], T]) -> list[T]:
        """Reads the ranges, submitted together, and waits. Returns the result of `take` for each, in order."""
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

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("read of a closed file")

    def _start(self, ranges: Sequence[tuple[int, int]]) -> deque[int]:
        """Starts a read of each range. Returns the planner's numbers of the reads, in order."""
        self._check_open()
        for offset, size in ranges:
            if offset < 0 or size < 0:
                raise ValueError(f"offset {offset}, size {size}: give numbers from 0 on")
        reads = self._planner.start(list(ranges))
        self._pump()
        return deque(reads)

    def _future(self, read: int) -> Future[int] | None:
        """Returns the future of a read, or None if the read has ended."""
        with self._lock:
            if read in self._ended:
                return None
            if self._is_closed:
                raise ValueError("read of a closed file")
            if (future := self._waiting.get(read)) is None:
                future = self._waiting[read] = Future()
                # A running future refuses the cancel of an awaited read. `_pump` and `close` may
                # then set the result of each future that they take from `_waiting`.
                future.set_running_or_notify_cancel()
            return future

    def _take(self, read: int, take: Callable[[int], T]) -> T:
        """Returns the result of an ended read. Raises the storage's exception for a failed fetch."""
        with self._lock:
            self._ended.discard(read)
        try:
            return take(read)
        except OSError as error:
            if error.errno != errno.EIO or self._failure is None:
                raise
            # The storage's exception says more than the planner's EIO. After several failures it
            # may be of another range.
            raise self._failure from error
        finally:
            # Other reads may wait for the memory that is free now.
            self._pump()

    def _forget(self, reads: deque[int]) -> None:
        """Abandons the reads that were not taken, for example after an exception."""
        if reads:
            with self._lock:
                for read in reads:
                    self._ended.discard(read)
                    self._waiting.pop(read, None)
            self._planner.abandon(list(reads))
            self._pump()

    def _pump(self) -> None:
        """Starts the fetches chosen by the core, and wakes the waiters of ended reads."""
        while True:
            ranges, ended = self._planner.poll()
            if not ranges and not ended:
                return
            with self._lock:
                self._ended.update(ended)
                woken = [self._waiting.pop(read) for read in ended if read in self._waiting]
            for future in woken:
                # The result only wakes the waiter, which takes the bytes itself.
                future.set_result(0)
            for number, start, end in ranges:
                self._start_fetch(number, start, end)

    def _start_fetch(self, number: int, start: int, end: int) -> None:
        """Starts to fetch the planner's range with this number. A refused fetch fails the range."""
        try:
            future = self._fetch(start, end)
        except Exception as error:
            self._fail(number, error)
            return
        future.add_done_callback(lambda future: self._on_fetched(number, future))

    def _on_fetched(self, number: int, future: Future[bytes]) -> None:
        """Passes the bytes of a range to the planner, or fails the range, and starts further fetches."""
        try:
            self._planner.finish(number, bytes(future.result()))
        except BaseException as error:
            self._fail(number, error)
        self._pump()

    def _fail(self, number: int, error: BaseException) -> None:
        """Fails a range, and keeps the exception for the reads that need it."""
        self._failure = error
        self._planner.fail(number)


def on_threads(fetch: Callable[[int, int], bytes], threads: ThreadPoolExecutor) -> Fetch:
    """Returns a `fetch` that calls a blocking function on threads."""
    return lambda start, end: threads.submit(fetch, start, end)
