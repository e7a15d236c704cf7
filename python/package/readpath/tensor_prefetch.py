"""Reading ahead of a plan of tensors, in a thread, while the program does something else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator

Range = tuple[int, int]
"""First byte and end of a range of a file."""


def pieces_of(ranges: Iterable[Range], piece_bytes: int) -> Iterator[Range]:
    """Splits ranges at multiples of `piece_bytes`, the size of a device request."""
    for begin, end in ranges:
        while begin < end:
            piece_end = min(end, (begin // piece_bytes + 1) * piece_bytes)
            yield begin, piece_end
            begin = piece_end


class PlannedReads:
    """A plan of byte ranges of one file. A thread requests them in the plan's order.

    Requested bytes of the plan that the program has not loaded yet are limited. At the limit the thread
    waits for loads of the program. It ends after the last range, and with `stop`.
    """

    def __init__(self, ranges: list[Range], piece_bytes: int, ahead_bytes: int) -> None:
        self._unloaded = [(begin, end) for begin, end in ranges if begin < end]
        self._planned = list(self._unloaded)
        self._piece_bytes = piece_bytes
        self._ahead_bytes = ahead_bytes
        self._requested = 0
        self._loaded = 0
        self._is_stopped = False
        self._change = threading.Condition()

    def start(self, request: Callable[[int, int], None], end: Callable[[], None]) -> None:
        """Starts the thread. `request` reads a piece into the page cache, `end` is called at the end."""

        def run() -> None:
            try:
                for first, last in self._next_pieces():
                    request(first, last)
            except OSError:
                # The load of the same bytes reports the error.
                pass
            finally:
                end()

        threading.Thread(target=run, name="readpath-prefetch", daemon=True).start()

    def on_load(self, begin: int, end: int) -> None:
        """Counts the bytes of the plan in a range that the program loads now. Each counts once."""
        with self._change:
            rest: list[Range] = []
            for first, last in self._unloaded:
                common = min(last, end) - max(first, begin)
                if common <= 0:
                    rest.append((first, last))
                    continue
                self._loaded += common
                rest += [part for part in ((first, begin), (end, last)) if part[0] < part[1]]
            self._unloaded = rest
            self._change.notify_all()

    def stop(self) -> None:
        """Ends the thread before its next piece."""
        with self._change:
            self._is_stopped = True
            self._change.notify_all()

    def _next_pieces(self) -> Iterator[Range]:
        for begin, end in pieces_of(self._planned, self._piece_bytes):
            if not self._wait_for_room():
                return
            if self._is_unloaded(begin, end):
                yield begin, end
            self._requested += end - begin

    def _is_unloaded(self, begin: int, end: int) -> bool:
        with self._change:
            return any(first < end and begin < last for first, last in self._unloaded)

    def _wait_for_room(self) -> bool:
        """Waits until a further piece is allowed. Returns false after `stop`."""
        with self._change:
            self._change.wait_for(lambda: self._is_stopped or self._requested - self._loaded < self._ahead_bytes)
            return not self._is_stopped


def request_of(file: int) -> tuple[Callable[[int, int], None], Callable[[], None]]:
    """Returns the request of a piece of a local file, and the end of the requests.

    Both use a descriptor of their own: the program may close the file meanwhile.
    """
    own = os.dup(file)

    def request(begin: int, end: int) -> None:
        os.posix_fadvise(own, begin, end - begin, os.POSIX_FADV_WILLNEED)

    return request, lambda: os.close(own)
