"""The interface of readahead policies written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from readpath._native import Ask, Limits, Pages


class LawLike(Protocol):
    """The methods of a policy, as described in `Policy`. Each opened file has a policy of its own."""

    def read(self, ask: Ask, pages: Pages, /) -> None: ...

    def fault(self, page: int, ask: Ask, pages: Pages, /) -> None: ...

    def advise(self, advice: str, /) -> None: ...


PolicyMaker = Callable[[Limits], LawLike]
"""Makes the policy of a file that is opened: a class, as a rule."""


class Policy:
    """A readahead policy: it watches the reads of one open file.

    A policy adds to `pages` the pages that should be read beyond the request. Absent
    pages of the request are read in any case, whole and in as few requests as the
    device takes: a policy can't split a request.

    Rows name a policy by its attribute `name`, or else by the name of its class.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def read(self, ask: Ask, pages: Pages) -> None:
        """Handles a read: adds the pages to read now to `pages`."""

    def fault(self, page: int, ask: Ask, pages: Pages) -> None:
        """Handles a memory-mapped access to `page`, cached or not."""

    def advise(self, advice: str) -> None:
        """Handles a hint of the program: `normal`, `sequential`, `random`, `willneed` or `dontneed`."""


def policy_name(policy: str | PolicyMaker) -> str:
    """Returns the name of a policy in rows: of a Python one its attribute `name`, or else its class's name."""
    if isinstance(policy, str):
        return policy
    return str(getattr(policy, "name", None) or getattr(policy, "__name__", type(policy).__name__))
