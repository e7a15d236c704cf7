"""Short-lived cache of file details from remote storage.

One open causes several queries: pyarrow asks for the type and for existence, and the read path for
the size. Each would cost a round trip. The cache answers all of them from the first reply, for
about the duration of an open.
"""

from __future__ import annotations

import time
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
        # Files opened for writing, which are never cached.
        self._written: set[str] = set()

    def info(self, path: str) -> dict[str, Any]:
        """Returns the details of a file, perhaps cached. Raises the storage's exceptions."""
        replied_at, details = self._replies.get(path, (0.0, None))
        if details is not None and time.monotonic() - replied_at < KNOWN_SECONDS:
            return dict(details)
        details = self._below.info(path)
        if path not in self._written:
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
        self._replies.clear()

    def exclude_written(self, path: str) -> None:
        """Excludes a file opened for writing from the cache, since the end of its writes is unknown."""
        self._written.add(path)
        self._replies.clear()
