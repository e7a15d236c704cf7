"""Column chunks of a Parquet file, which are fetched before their reader comes to them.

Who reads some columns of a Parquet file reads its footer, and then of each row group the chunks of these
columns: pieces that lie far apart, in which no policy sees a stream, asked for one after the other, since pyarrow takes
turns at a file of Python's, with eight threads in no certain order. The footer says where they lie. So when the
chunks of a row group are read, those of the same columns in the row groups behind it are fetched as well: of as
many as these threads come for at first, of twice as many whenever another near them is read, and of as many as
half of the reader's memory takes. Who begins with another row group than the first has none fetched until a
second one is read.

Of a row group its reader wants the same columns as of the one that it read before, in this file or in another that has
the same columns: they are fetched when the first of them is read.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from typing import Any

NEAR_GROUPS = 8
"""So far apart in the order of the file are chunks that pyarrow's threads ask for at once."""

MAGIC = b"PAR1"
TRAILER_BYTES = 8
"""The length of the footer and the magic."""


Together = dict[int, dict[int, int]]
"""By the first column of a range: what was read last of one row group with it, by its first column the last one of each range."""


class Columns:
    """Where the column chunks of one file lie, and which were read."""

    def __init__(self, layout: Any, ahead_bytes: int, together: Together | None = None) -> None:
        """`layout`: what `layout_of` says. `ahead_bytes`: how much may be fetched and not read yet. `together`: what is known
        of files that have the same columns, and is learned here for them."""
        self._layout = layout
        self._ahead_bytes = ahead_bytes
        self._together: Together = {} if together is None else together
        self._ranges_of: dict[int, dict[int, int]] = {}
        """What was read of each row group."""
        self._beside: dict[tuple[int, int], int] = {}
        """Row groups and first columns of what was fetched with another range, and not read yet: how many bytes."""
        self._starts = [self._chunk(group, 0)[0] for group in range(self._layout.num_row_groups)]
        # By the first column of a range.
        self._streams: dict[int, _Stream] = {}

    def read(self, offset: int, size: int) -> list[tuple[int, int]] | None:
        """A range is read; gives what should be fetched behind it, each its offset and its size. None where it is
        no range of whole chunks."""
        group = bisect_right(self._starts, offset) - 1
        first = self._column_at(group, offset) if group >= 0 else None
        if first is None or sum(self._chunk(group, first)) > offset + size:
            return None
        last = first
        while (
            last + 1 < self._layout.num_columns
            and sum(self._chunk(group, last + 1)) <= offset + size
        ):
            last += 1
        return self._read_together(group, first, last) + self._behind(group, first, last)

    def _read_together(self, group: int, first: int, last: int) -> list[tuple[int, int]]:
        """What was read with these columns of the row group before, and not of this one yet."""
        self._beside = {
            (near, other): size
            for (near, other), size in self._beside.items()
            if abs(near - group) <= NEAR_GROUPS and (near, other) != (group, first)
        }
        ranges = self._ranges_of.setdefault(group, {})
        before = self._together.get(first, {})
        ranges[first] = last
        # Other files may learn at the same time: what they have is never changed.
        self._together.update(dict.fromkeys(ranges, dict(ranges)))
        found: list[tuple[int, int]] = []
        for other, its_last in sorted(before.items()):
            start, size = self._range(group, other, its_last)
            if other in ranges or self._is_waiting(group, other):
                continue
            if self._waiting_bytes() + size > self._ahead_bytes:
                break
            self._beside[group, other] = size
            found.append((start, size))
        return found

    def _behind(self, group: int, first: int, last: int) -> list[tuple[int, int]]:
        """The same columns of the row groups behind this one."""
        stream = self._streams.get(first)
        if stream is None:
            self._streams[first] = stream = _Stream()
            may_go_on = group == 0
        else:
            may_go_on = any(abs(group - other) <= NEAR_GROUPS for other in stream.read)
            stream.count *= 2
        stream.read.add(group)
        stream.waiting = {
            ahead: size
            for ahead, size in stream.waiting.items()
            if ahead != group and ahead + NEAR_GROUPS > group
        }
        if not may_go_on:
            stream.count = NEAR_GROUPS
            return []
        waiting_bytes = self._waiting_bytes()
        behind: list[tuple[int, int]] = []
        ahead = min(stream.read)
        while len(stream.waiting) < stream.count and (ahead := ahead + 1) < len(self._starts):
            if ahead in stream.read or self._is_waiting(ahead, first):
                continue
            start, bytes_ahead = self._range(ahead, first, last)
            waiting_bytes += bytes_ahead
            if waiting_bytes > self._ahead_bytes:
                break
            stream.waiting[ahead] = bytes_ahead
            behind.append((start, bytes_ahead))
        return behind

    def _is_waiting(self, group: int, first: int) -> bool:
        stream = self._streams.get(first)
        return (group, first) in self._beside or (stream is not None and group in stream.waiting)

    def _waiting_bytes(self) -> int:
        return sum(self._beside.values()) + sum(sum(one.waiting.values()) for one in self._streams.values())

    def _range(self, group: int, first: int, last: int) -> tuple[int, int]:
        """The offset of some columns that lie side by side, and their size."""
        start = self._chunk(group, first)[0]
        return start, sum(self._chunk(group, last)) - start

    def _column_at(self, group: int, offset: int) -> int | None:
        """The column whose chunk begins there; that of a part of a chunk is none."""
        for column in range(self._layout.num_columns):
            if self._chunk(group, column)[0] == offset:
                return column
        return None

    def _chunk(self, group: int, column: int) -> tuple[int, int]:
        """The offset of a column chunk, and its size."""
        chunk = self._layout.row_group(group).column(column)
        start = chunk.data_page_offset
        if chunk.dictionary_page_offset is not None:
            start = min(start, chunk.dictionary_page_offset)
        return start, chunk.total_compressed_size


class _Stream:
    """The chunks of some columns that lie side by side."""

    def __init__(self) -> None:
        self.read: set[int] = set()
        """The row groups of which they were read."""
        self.waiting: dict[int, int] = {}
        """Those of which they were fetched and not read yet, and how many bytes."""
        self.count = NEAR_GROUPS
        """Of how many they may be."""


def layout_of(footer: bytes) -> Any:
    """What the end of a file says, from the footer's first byte on or before, as pyarrow has it."""
    import pyarrow
    import pyarrow.parquet

    return pyarrow.parquet.read_metadata(pyarrow.BufferReader(footer))


def footer_bytes(end: bytes) -> int | None:
    """How long the footer and what is behind it are, where these bytes are the end of a Parquet file that pyarrow
    reads."""
    if end[-4:] != MAGIC or len(end) < TRAILER_BYTES or "pyarrow.parquet" not in sys.modules:
        return None
    return int.from_bytes(end[-TRAILER_BYTES:-4], "little") + TRAILER_BYTES
