"""Cached bytes of closed files, for a later open."""

from __future__ import annotations

import threading
from typing import Any

from readpath.forks import renew_in_children
from readpath.reader import Fetch, Options, Reader


class Kept:
    """Readers of the most recently closed files, each with its memory.

    A reader belongs to one open file at a time. A second open of an open file gets its own reader.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        # The most recently closed file is last.
        self._readers: dict[str, tuple[Any, Reader]] = {}
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Creates the lock: a thread of the parent may have held it at a fork."""
        self._lock = threading.Lock()

    def opened(self, path: str, details: dict[str, Any], fetch: Fetch) -> Reader:
        """Returns a reader for a file: the kept one, which leaves this object, if the details are unchanged.

        A kept reader with other details is dropped.
        """
        with self._lock:
            known, reader = self._readers.pop(path, (None, None))
        if reader is None or known != details:
            return Reader(fetch, details["size"], self._options)
        reader.reopen(fetch)
        return reader

    def closed(self, path: str, details: dict[str, Any], reader: Reader) -> None:
        """Closes a file's reader and keeps it while it is among the most recent ones."""
        reader.close()
        with self._lock:
            self._readers.pop(path, None)
            self._readers[path] = (details, reader)
            while len(self._readers) > self._options.keep_files:
                self._readers.pop(next(iter(self._readers)))
