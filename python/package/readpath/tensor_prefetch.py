"""Reading ahead of a plan of tensors, in a thread, while the program does something else."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from readpath.forks import renew_in_children

Range = tuple[int, int]
"""First byte and end of a range of a file."""

Request = Callable[[int, int], None]
"""Reads a range of a file into the page cache."""


class PlannedRange(NamedTuple):
    """A range of one of the files of a plan."""

    file: int
    """Index of the file."""
    begin: int
    end: int
    """End of the range, exclusive."""


def pieces_of(ranges: Iterable[Range], piece_bytes: int) -> Iterator[Range]:
    """Splits ranges at multiples of `piece_bytes`, the size of a device request."""
    for begin, end in ranges:
        while begin < end:
            piece_end = min(end, (begin // piece_bytes + 1) * piece_bytes)
            yield begin, piece_end
            begin = piece_end


class Segment(NamedTuple):
    """Unloaded bytes of a file, between boundaries of the plan's ranges."""

    begin: int
    end: int
    """End of the bytes, exclusive."""
    range_count: int
    """Number of ranges of the plan that contain them."""


class Unloaded:
    """The bytes of a file that are planned and not loaded: disjoint segments in order.

    A load costs a binary search, and a step per segment that it overlaps.
    """

    def __init__(self, ranges: Iterable[Range]) -> None:
        """Takes the ranges of a plan in one file. They may overlap: each then counts its own bytes."""
        # Change of the number of ranges at each boundary.
        changes: dict[int, int] = {}
        for begin, end in ranges:
            changes[begin] = changes.get(begin, 0) + 1
            changes[end] = changes.get(end, 0) - 1
        boundaries = sorted(changes)
        self._segments: list[Segment] = []
        count = 0
        for begin, end in zip(boundaries, boundaries[1:], strict=False):
            count += changes[begin]
            if count > 0:
                self._segments.append(Segment(begin, end, count))

    def remove(self, begin: int, end: int) -> int:
        """Removes a range. Returns its number of bytes, each counted once per range of the plan."""
        first, last = self._overlapped(begin, end)
        removed = 0
        rest: list[Segment] = []
        for one in self._segments[first:last]:
            removed += (min(one.end, end) - max(one.begin, begin)) * one.range_count
            parts = ((one.begin, begin), (end, one.end))
            rest += [Segment(*part, one.range_count) for part in parts if part[0] < part[1]]
        self._segments[first:last] = rest
        return removed

    def overlaps(self, begin: int, end: int) -> bool:
        """True if any byte of a range is planned and not loaded."""
        first, last = self._overlapped(begin, end)
        return first < last

    def _overlapped(self, begin: int, end: int) -> tuple[int, int]:
        """First index and end of the segments that have bytes of a range; equal if there are none."""
        if begin >= end:
            return 0, 0
        first = last = bisect_right(self._segments, begin, key=lambda one: one.end)
        while last < len(self._segments) and self._segments[last].begin < end:
            last += 1
        return first, last


class PlannedReads:
    """A plan of byte ranges of several files. A thread requests them in the plan's order.

    Requested bytes of the plan that the program has not loaded yet are limited, over all files. At the limit the
    thread waits for loads of the program. It ends after the last range, and with `stop`.
    """

    def __init__(self, ranges: Sequence[PlannedRange], piece_bytes: Sequence[int], ahead_bytes: int) -> None:
        """`piece_bytes`: size of the device requests of each file."""
        self._planned = [planned for planned in ranges if planned.begin < planned.end]
        of_file: list[list[Range]] = [[] for _ in piece_bytes]
        for file, begin, end in self._planned:
            of_file[file].append((begin, end))
        self.files = {file for file, _, _ in self._planned}
        """Indices of the files with planned bytes."""
        # By file.
        self._unloaded = [Unloaded(in_file) for in_file in of_file]
        self._piece_bytes = piece_bytes
        self._ahead_bytes = ahead_bytes
        self._requested = 0
        self._loaded = 0
        self._is_stopped = False
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Creates the lock: a thread of the parent may have held it at a fork."""
        self._change = threading.Condition()

    def start(self, requests: Sequence[Request | None], end: Callable[[], None]) -> None:
        """Starts the thread. `requests`: the request of each file, `end` is called at the end.

        Ranges of a file without a request count, and are not requested.
        """

        def run() -> None:
            try:
                for file, first, last in self._next_pieces():
                    if (request := requests[file]) is not None:
                        request(first, last)
            except OSError:
                # The load of the same bytes reports the error.
                pass
            finally:
                end()

        try:
            threading.Thread(target=run, name="readpath-prefetch", daemon=True).start()
        except RuntimeError:
            # No thread was started, so no other one calls it.
            end()
            raise

    def first_ranges(self) -> list[PlannedRange]:
        """Returns the first ranges of the plan, up to the limit in bytes."""
        found: list[PlannedRange] = []
        left = self._ahead_bytes
        for file, begin, end in self._planned:
            if left <= 0:
                break
            found.append(PlannedRange(file, begin, min(end, begin + left)))
            left -= end - begin
        return found

    def on_load(self, file: int, begin: int, end: int) -> None:
        """Counts the bytes of the plan in a range that the program loads now. Each counts once."""
        with self._change:
            self._loaded += self._unloaded[file].remove(begin, end)
            self._change.notify_all()

    def stop(self) -> None:
        """Ends the thread before its next piece."""
        with self._change:
            self._is_stopped = True
            self._change.notify_all()

    def _next_pieces(self) -> Iterator[PlannedRange]:
        """Yields the pieces to request, each when the limit allows it. Pieces that were loaded are left out."""
        for planned in self._planned:
            for begin, end in pieces_of([(planned.begin, planned.end)], self._piece_bytes[planned.file]):
                if not self._wait_for_room():
                    return
                if self._is_unloaded(planned.file, begin, end):
                    yield PlannedRange(planned.file, begin, end)
                # A loaded piece counts as requested too, since it counts as loaded.
                self._requested += end - begin

    def _is_unloaded(self, file: int, begin: int, end: int) -> bool:
        with self._change:
            return self._unloaded[file].overlaps(begin, end)

    def _wait_for_room(self) -> bool:
        """Waits until a further piece is allowed. Returns false after `stop`."""
        with self._change:
            self._change.wait_for(lambda: self._is_stopped or self._requested - self._loaded < self._ahead_bytes)
            return not self._is_stopped


def requests_of(files: Iterable[int | None]) -> tuple[list[Request | None], Callable[[], None]]:
    """Returns the request of a piece of each local file, by its descriptor, and the end of the requests.

    They use descriptors of their own: the program may close the files meanwhile.
    """
    own: list[int] = []

    def end() -> None:
        """Closes the descriptors. A second call, also on another thread, has no effect."""
        while True:
            try:
                descriptor = own.pop()
            except IndexError:
                return
            os.close(descriptor)

    def request_of(file: int) -> Request:
        own.append(copy := os.dup(file))
        return lambda begin, end: os.posix_fadvise(copy, begin, end - begin, os.POSIX_FADV_WILLNEED)

    try:
        return [None if file is None else request_of(file) for file in files], end
    except BaseException:
        end()
        raise
