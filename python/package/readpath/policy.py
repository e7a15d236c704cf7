"""What a readahead policy written in Python looks like."""

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

    A policy adds to `pages` what should be read beyond the request. Whatever it
    leaves absent of the request is read all the same, whole and in as few
    requests as the device takes: a policy can't split what was asked.

    In rows a policy goes by its attribute `name`, or else the name of its class.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def read(self, ask: Ask, pages: Pages) -> None:
        """A read came."""

    def fault(self, page: int, ask: Ask, pages: Pages) -> None:
        """A memory-mapped access touched `page`, cached or not."""

    def advise(self, advice: str) -> None:
        """The program gave a hint: `normal`, `sequential`, `random`, `willneed` or `dontneed`."""


def policy_name(policy: str | PolicyMaker) -> str:
    """What a policy is called in rows."""
    if isinstance(policy, str):
        return policy
    return str(getattr(policy, "name", None) or getattr(policy, "__name__", type(policy).__name__))
