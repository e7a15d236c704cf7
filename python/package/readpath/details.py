"""Short-lived cache of file details from remote storage.

One open causes several queries: pyarrow asks for the type and for existence, and the read path for
the size. Each would cost a round trip. The cache answers all of them from the first reply, for
about the duration of an open.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable
from typing import Any

KNOWN_SECONDS = 0.1
"""Lifetime of a reply in seconds. It also ends with the open, whose queries follow at once."""

KNOWN_MAX = 64
"""Maximum number of files with a cached reply."""


class Details:
    """Cached replies of one file system, each a dictionary as returned by fsspec's `info`."""

    def __init__(self, below: Any) -> None:
        self._below = below
        # Time and content of each reply, the oldest first.
        self._replies: dict[str, tuple[float, dict[str, Any]]] = {}
        # Names of the files opened for writing, which are never cached, by the number of the open.
        self._written: dict[int, str] = {}
        self._open_numbers = itertools.count()
        # Number of changes. A reply of a query during which it grows may be out of date.
        self._changes = 0

    def info(self, path: str) -> dict[str, Any]:
        """Returns the details of a file, perhaps cached. Raises the storage's exceptions."""
        replied_at, details = self._replies.get(path, (0.0, None))
        if details is not None and time.monotonic() - replied_at < KNOWN_SECONDS:
            return dict(details)
        changes = self._changes
        details = self._below.info(path)
        if changes == self._changes and not self._is_written(path):
            self._replies[path] = (time.monotonic(), details)
        while len(self._replies) > KNOWN_MAX:
            self._replies.pop(next(iter(self._replies)), None)
        return dict(details)

    def is_file(self, path: str) -> bool:
        """Returns True if the file exists. As in fsspec, an error means False."""
        try:
            return bool(self.info(path)["type"] == "file")
        except Exception:
            return False

    def take_for_opening(self, path: str) -> dict[str, Any]:
        """As `info`, and removes the reply, so that the next open queries again."""
        details = self.info(path)
        self._replies.pop(path, None)
        return details

    def forget(self) -> None:
        """Clears the cache after a change through this file system."""
        self._changes += 1
        self._replies.clear()

    def open_for_writing(self, path: str, open_below: Callable[[], Any]) -> Any:
        """Opens a file by a call of `open_below`, and excludes it from the cache.

        The end of its writes is unknown, so it stays excluded as long as its file object exists.
        """
        number = next(self._open_numbers)
        self._written[number] = path
        self._changes += 1
        self._replies.clear()
        try:
            file = open_below()
        except BaseException:
            self._written.pop(number)
            raise
        weakref.finalize(file, self._written.pop, number).atexit = False
        return file

    def _is_written(self, path: str) -> bool:
        """True if the file is open for writing."""
        # A copy, since other threads open files.
        return path in list(self._written.values())
