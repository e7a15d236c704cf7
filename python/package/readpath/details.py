"""What a storage far away has just said of its files.

Who opens a file asks for it again and again: pyarrow what it is, whether it is a file, and then we how long it is, each by
a round trip. One of them does, for as long as such an opening takes.
"""

from __future__ import annotations

import time
from typing import Any

KNOWN_SECONDS = 0.1
"""An answer holds for so long at the most, and for one opening: the questions of one follow at once."""

KNOWN_MAX = 64
"""Of so many files the answers are kept."""


class Details:
    """The answers of one file system, each a dictionary as `info` of fsspec gives it."""

    def __init__(self, below: Any) -> None:
        self._below = below
        self._said: dict[str, tuple[float, dict[str, Any]]] = {}
        self._written: set[str] = set()

    def info(self, path: str) -> dict[str, Any]:
        """What the storage says of a file, or has just said. Raises what it raises."""
        at, details = self._said.get(path, (0.0, None))
        if details is not None and time.monotonic() - at < KNOWN_SECONDS:
            return dict(details)
        details = self._below.info(path)
        if path not in self._written:
            self._said[path] = (time.monotonic(), details)
        while len(self._said) > KNOWN_MAX:
            self._said.pop(next(iter(self._said)), None)
        return dict(details)

    def is_file(self, path: str) -> bool:
        """Whether there is a file of that name; as in fsspec no error is told."""
        try:
            return bool(self.info(path)["type"] == "file")
        except Exception:
            return False

    def of_opening(self, path: str) -> dict[str, Any]:
        """As `info`, for who opens the file: who opens it again asks again."""
        details = self.info(path)
        self._said.pop(path, None)
        return details

    def forget(self) -> None:
        """Something has been changed through this file system."""
        self._said.clear()

    def is_written(self, path: str) -> None:
        """A file is opened for writing: nobody knows when it is done."""
        self._written.add(path)
        self._said.clear()
