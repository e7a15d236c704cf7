"""What a readahead law written in Python looks like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from readpath._native import Ask, Limits, Pages


class LawLike(Protocol):
    """The methods of a law; each opened file has a law of its own."""

    def read(self, ask: Ask, pages: Pages, /) -> None: ...

    def fault(self, page: int, ask: Ask, pages: Pages, /) -> None: ...

    def advise(self, advice: str, /) -> None: ...


LawMaker = Callable[[Limits], LawLike]
"""Makes the law of a file that is opened: a class, as a rule."""


class Law:
    """A readahead law: it watches the reads of one open file.

    A law adds to `pages` what should be read beyond the request. Whatever it
    leaves absent of the request is read all the same, whole and in as few
    requests as the device takes: a law can't split what was asked.

    In rows a law goes by its attribute `name`, or else the name of its class.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def read(self, ask: Ask, pages: Pages) -> None:
        """A read came."""

    def fault(self, page: int, ask: Ask, pages: Pages) -> None:
        """A memory-mapped access touched `page`, cached or not."""

    def advise(self, advice: str) -> None:
        """The program gave a hint: `normal`, `sequential`, `random`, `willneed` or `dontneed`."""


def law_name(law: str | LawMaker) -> str:
    """What a law is called in rows."""
    if isinstance(law, str):
        return law
    return str(getattr(law, "name", None) or getattr(law, "__name__", type(law).__name__))
