"""What is cached of files that were closed, for who opens them again."""

from __future__ import annotations

import threading
from typing import Any

from readpath.reader import Fetch, Options, Reader


class Kept:
    """The readers of the files that were closed last, each with the memory that it has.

    A reader belongs to one open file at a time: who opens a file that is open already has one of its own.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        # From one that was closed last.
        self._readers: dict[str, tuple[Any, Reader]] = {}
        self._lock = threading.Lock()

    def opened(self, path: str, details: dict[str, Any], fetch: Fetch) -> Reader:
        """A reader of a file: the one that it had, if its storage says of it what it said then."""
        with self._lock:
            known, reader = self._readers.pop(path, (None, None))
        if reader is None or known != details:
            return Reader(fetch, details["size"], self._options)
        reader.reopen(fetch)
        return reader

    def closed(self, path: str, details: dict[str, Any], reader: Reader) -> None:
        """The file is closed; its reader is kept as long as it is among the last."""
        reader.close()
        with self._lock:
            self._readers.pop(path, None)
            self._readers[path] = (details, reader)
            while len(self._readers) > self._options.keep_files:
                self._readers.pop(next(iter(self._readers)))
