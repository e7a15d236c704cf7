"""`cache_type="readpath"`: the read path as the cache of fsspec's own file objects."""

from __future__ import annotations

import os
from typing import Any

from fsspec.caching import BaseCache, Fetcher, register_cache

from readpath.forks import FetchThreads
from readpath.options import check_names
from readpath.reader import Options, Reader, on_threads


class ReadpathCache(BaseCache):
    """A cache with the core's readahead.

    `cache_options` takes the options of `readpath.reader.Options` for one file. `blocksize`, the
    request size of other caches, is ignored, because the policy chooses the windows. The fetcher is
    called on several threads at once.
    """

    name = "readpath"

    def __init__(self, blocksize: int, fetcher: Fetcher, size: int, **options: Any) -> None:
        """Creates an empty cache of a file of `size` bytes. Raises TypeError for an unknown option."""
        check_names(options, Options.names_for_one_file(), "the cache readpath")
        super().__init__(blocksize, fetcher, size)
        self._options = Options(**options)
        self._open()

    def _open(self) -> None:
        """Creates the threads and the reader, with an empty cache."""
        # A thread sleeps while its range is fetched. Threads start when they are needed.
        self._threads = FetchThreads(self._options.ranges)
        self._reader = Reader(on_threads(self.fetcher, self._threads), self.size, self._options)

    def _fetch(self, start: int | None, end: int | None) -> bytes:
        """Returns the bytes of a range, cut at the end of the file, and updates fsspec's counters."""
        start = start or 0
        end = self.size if end is None else min(end, self.size)
        if start >= end:
            return b""
        data = self._reader.read(start, end - start)
        counters = self._reader.counters()
        self.miss_count = counters["fetches"]
        self.total_requested_bytes = counters["fetched_bytes"]
        return data

    def close(self) -> None:
        """Ends the threads."""
        self._reader.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickling: without threads and cached bytes, which the copy creates again."""
        state = self.__dict__.copy()
        del state["_threads"], state["_reader"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


register_cache(ReadpathCache, clobber=True)
