"""Renewal of locks and threads in a child of fork, which has only the thread that called it."""

from __future__ import annotations

import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol


class Renewable(Protocol):
    """An object with locks or threads."""

    def renew(self) -> None:
        """Replaces the locks and threads. Called in the child before any other code."""


_renewables: weakref.WeakValueDictionary[int, Renewable] = weakref.WeakValueDictionary()


def renew_in_children(one: Renewable) -> None:
    """Renews an object in each child of fork, while it is alive."""
    _renewables[id(one)] = one


def _renew_all() -> None:
    for one in list(_renewables.values()):
        one.renew()


os.register_at_fork(after_in_child=_renew_all)


class FetchThreads(ThreadPoolExecutor):
    """Threads for blocking fetches. They start when they are needed, also in a child of fork."""

    def __init__(self, depth: int) -> None:
        """`depth`: maximum number of threads."""
        super().__init__(depth, "readpath-fetch")
        self._depth = depth
        renew_in_children(self)

    def renew(self) -> None:
        """Forgets the threads and the fetches of the parent."""
        if not self._shutdown:
            super().__init__(self._depth, "readpath-fetch")
