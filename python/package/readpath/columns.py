"""Prefetch of the column chunks of a Parquet file.

A program that reads some columns of a Parquet file reads the footer, and then the chunks of these
columns in each row group. The chunks are far apart, so a readahead policy sees no stream. pyarrow
requests them one after the other, from eight threads in varying order, because access to a Python
file is serialized. The footer contains the offsets of the chunks. When a chunk is read, the same
columns of the following row groups are prefetched. Their number starts at the number of threads,
doubles with each further read near them, and is limited by half of the reader's memory. A program
that does not begin with the first row group gets no prefetch before it reads from a second row group.

A program usually reads the same columns of each row group, also in other files with equal columns.
They are prefetched together when the first of them is read.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from readpath import _native

NEAR_GROUPS = 8
"""Distance in row groups within which pyarrow's threads request chunks at the same time."""

SCHEMAS_MAX = 64
"""Maximum number of Parquet files or schemas of which something is remembered."""

MAGIC = b"PAR1"
END_BYTES = 1 << 16
"""Size of a read that usually has the whole footer: the one of pyarrow."""

TRAILER_BYTES = 8
"""Size of the footer's length field and the magic."""


Together = dict[int, dict[int, int]]
"""Ranges last read in one row group with a range, by the first column of that range.

Each range is stored as its first column with its last column.
"""


class Layout(NamedTuple):
    """Places of the column chunks of a Parquet file, from its footer."""

    paths: list[str]
    """Path of each column, with dots between the names of nested ones."""
    groups: list[list[tuple[int, int]]]
    """Offset and size in bytes of the chunk of each column, by row group.

    A wrong footer has any numbers here.
    """


class Columns:
    """Column chunks of one file, and the state of their reads."""

    def __init__(self, layout: Layout, ahead_bytes: int, together: Together | None = None) -> None:
        """Creates the state of one file.

        `layout`: result of `layout_of`. `ahead_bytes`: maximum of prefetched and unread bytes.
        `together`: columns read together, shared with other files of equal columns.
        """
        self._layout = layout
        self._ahead_bytes = ahead_bytes
        self._together: Together = {} if together is None else together
        self._ranges_of: dict[int, dict[int, int]] = {}
        """Ranges read in each row group."""
        self._prefetched_together: dict[tuple[int, int], int] = {}
        """Unread ranges prefetched with another range: bytes by row group and first column."""
        self._starts = [chunks[0][0] for chunks in layout.groups]
        # By the first column of a range.
        self._streams: dict[int, _Stream] = {}
        self._groups_read: set[int] = set()
        """Row groups of which any chunk was read."""
        self._last_group = 0
        """Row group of the latest read."""

    def read(self, offset: int, size: int) -> list[tuple[int, int]] | None:
        """Records a read. Returns the ranges to prefetch, each as offset and size.

        Returns None unless the read begins with a whole chunk. Whole chunks that follow it in the read count
        as read with it; a part of a chunk at the end does not.
        """
        # The sum of a chunk's offset and size is its end.
        group = bisect_right(self._starts, offset) - 1
        first = self._column_at(group, offset) if group >= 0 else None
        if first is None or sum(self._chunk(group, first)) > offset + size:
            return None
        last = first
        while (
            last + 1 < len(self._layout.paths)
            and sum(self._chunk(group, last + 1)) <= offset + size
        ):
            last += 1
        return self._read_together(group, first, last) + self._behind(group, first, last)

    def expect(self, names: Iterable[str]) -> list[tuple[int, int]]:
        """Returns the ranges of these columns in the next row groups, each as offset and size.

        The first row group is the latest one that was read. The ranges are limited to `ahead_bytes`;
        reads prefetch the rest. The name of a group of columns, such as a struct, means all of them.
        Raises ValueError for an unknown name.
        """
        ranges = self._ranges_of_names(names)
        found: list[tuple[int, int]] = []
        waiting_bytes = self._waiting_bytes()
        for group in range(self._last_group, len(self._starts)):
            for first, last in ranges:
                stream = self._streams.setdefault(first, _Stream())
                stream.last, stream.has_prefetched = last, True
                if group in stream.read or self._is_waiting(group, first):
                    continue
                begin, size = self._range(group, first, last)
                waiting_bytes += size
                if waiting_bytes > self._ahead_bytes:
                    return found
                stream.waiting[group] = size
                found.append((begin, size))
        return found

    def _ranges_of_names(self, names: Iterable[str]) -> list[tuple[int, int]]:
        """Returns the first and last column of each range of adjacent columns with these names."""
        paths = self._layout.paths
        wanted: set[int] = set()
        for name in names:
            found = {column for column, path in enumerate(paths) if path == name or path.startswith(f"{name}.")}
            if not found:
                raise ValueError(f"there is no column {name!r}; there are {', '.join(map(repr, paths))}")
            wanted |= found
        firsts = sorted(column for column in wanted if column - 1 not in wanted)
        lasts = sorted(column for column in wanted if column + 1 not in wanted)
        return list(zip(firsts, lasts, strict=True))

    def _read_together(self, group: int, first: int, last: int) -> list[tuple[int, int]]:
        """Records the read. Returns the ranges to prefetch with it, each as offset and size.

        These are the columns read with the column `first` in the row group before, as far as they are
        unread and not prefetched in this one and `ahead_bytes` permits.
        """
        # Ranges of distant row groups, which the program has left, no longer count as waiting.
        self._prefetched_together = {
            (near, other): size
            for (near, other), size in self._prefetched_together.items()
            if abs(near - group) <= NEAR_GROUPS and (near, other) != (group, first)
        }
        ranges = self._ranges_of.setdefault(group, {})
        before = self._together.get(first, {})
        ranges[first] = last
        # Other threads may hold these dictionaries, so they are replaced and never changed.
        self._together.update(dict.fromkeys(ranges, dict(ranges)))
        found: list[tuple[int, int]] = []
        for other, its_last in sorted(before.items()):
            start, size = self._range(group, other, its_last)
            if other in ranges or self._is_waiting(group, other):
                continue
            if self._waiting_bytes() + size > self._ahead_bytes:
                break
            self._prefetched_together[group, other] = size
            found.append((start, size))
        return found

    def _behind(self, group: int, first: int, last: int) -> list[tuple[int, int]]:
        """Records the read. Returns ranges of near row groups to prefetch, each as offset and size.

        These are the same columns, and each range of columns that was read before it was known that the
        program reads several row groups. Empty for a read outside the first row group, unless it
        continues reads in other row groups.
        """
        around = range(group - NEAR_GROUPS, group + NEAR_GROUPS + 1)
        near = {other for other in around if other != group and other in self._groups_read}
        self._groups_read.add(group)
        self._last_group = group
        self._leave_groups()
        stream = self._streams.get(first)
        if stream is None:
            self._streams[first] = stream = _Stream()
        else:
            stream.count *= 2
        stream.last = last
        stream.read.add(group)
        stream.waiting.pop(group, None)
        if group != 0 and not near:
            stream.count = NEAR_GROUPS
            return []
        start = min(near, default=group)
        ranges = self._fill(first, stream, start)
        for other_first, other in self._streams.items():
            if not other.has_prefetched:
                ranges += self._fill(other_first, other, start)
        return ranges

    def _fill(self, first: int, stream: _Stream, start: int) -> list[tuple[int, int]]:
        """Returns the unread ranges of a stream from row group `start` on, which then wait for their read.

        At most `stream.count` row groups wait, and at most `ahead_bytes` bytes of the whole file.
        """
        stream.has_prefetched = True
        waiting_bytes = self._waiting_bytes()
        ranges: list[tuple[int, int]] = []
        for ahead in range(start, len(self._starts)):
            if len(stream.waiting) >= stream.count:
                break
            if ahead in stream.read or self._is_waiting(ahead, first):
                continue
            begin, size = self._range(ahead, first, stream.last)
            waiting_bytes += size
            if waiting_bytes > self._ahead_bytes:
                break
            stream.waiting[ahead] = size
            ranges.append((begin, size))
        return ranges

    def _leave_groups(self) -> None:
        """Forgets the prefetched chunks of row groups that the program has left: they no longer wait."""
        for stream in self._streams.values():
            if any(ahead + NEAR_GROUPS <= self._last_group for ahead in stream.waiting):
                stream.waiting = {
                    ahead: size
                    for ahead, size in stream.waiting.items()
                    if ahead + NEAR_GROUPS > self._last_group
                }

    def _is_waiting(self, group: int, first: int) -> bool:
        """True if the range that begins with column `first` is prefetched and unread."""
        stream = self._streams.get(first)
        return (group, first) in self._prefetched_together or (stream is not None and group in stream.waiting)

    def _waiting_bytes(self) -> int:
        """Number of prefetched and unread bytes of the file."""
        in_streams = sum(sum(stream.waiting.values()) for stream in self._streams.values())
        return sum(self._prefetched_together.values()) + in_streams

    def _range(self, group: int, first: int, last: int) -> tuple[int, int]:
        """Offset and size of the adjacent columns from `first` to `last` (inclusive)."""
        start = self._chunk(group, first)[0]
        return start, sum(self._chunk(group, last)) - start

    def _column_at(self, group: int, offset: int) -> int | None:
        """The column whose chunk begins at `offset`, or None."""
        for column, (start, _) in enumerate(self._layout.groups[group]):
            if start == offset:
                return column
        return None

    def _chunk(self, group: int, column: int) -> tuple[int, int]:
        """Offset and size of a column chunk, which begins with its dictionary page if it has one."""
        return self._layout.groups[group][column]


class _Stream:
    """Chunks of adjacent columns in all row groups."""

    def __init__(self) -> None:
        """Creates the state of a stream without reads."""
        self.read: set[int] = set()
        """Row groups whose chunks were read."""
        self.waiting: dict[int, int] = {}
        """Bytes of prefetched and unread chunks by row group."""
        self.count = NEAR_GROUPS
        """Maximum number of row groups in `waiting`."""
        self.last = 0
        """Last column of the latest read."""
        self.has_prefetched = False
        """True after a prefetch for this stream."""


class ColumnFile(Protocol):
    """A file whose reads prefetch column chunks."""

    @property
    def size(self) -> int: ...

    def readat(self, offset: int, size: int, /) -> bytes: ...

    def prefetch_many(self, ranges: Any, /) -> None: ...

    def _advise_policy(self, advice: str) -> None:
        """Gives a hint to the readahead policy: `random`, or `normal` for the hint of the program."""

    def _columns_of(self, layout: Layout) -> Columns:
        """Returns the state of the reads of a file with this layout."""


class ColumnReads:
    """Prefetches the column chunks of one file, around each of its reads.

    The file is an argument of the methods: a reference to it would be a cycle.
    """

    def __init__(self, ahead_bytes: int, columns: Columns | None = None) -> None:
        """`ahead_bytes`: maximum size of a footer. `columns`: state of a file with a known footer."""
        self._ahead_bytes = ahead_bytes
        self._columns = columns
        self._is_of_columns = False

    def before(self, file: ColumnFile, begin: int, length: int) -> None:
        """Prefetches the column chunks that are expected after this read of a Parquet file.

        While the program reads whole chunks, the readahead policy is off.
        """
        if self._columns is None:
            return
        expected = self._columns.read(begin, length)
        if (is_chunk := expected is not None) != self._is_of_columns:
            # The bytes after a whole chunk belong to another column.
            self._is_of_columns = is_chunk
            file._advise_policy("random" if is_chunk else "normal")
        if planned := _within(file, expected or []):
            # The demand range comes first.
            file.prefetch_many([(begin, length), *planned])

    def prefetch(self, file: ColumnFile, names: Iterable[str]) -> None:
        """Starts to fetch columns of a Parquet file. Reads its footer first, unless it was read.

        Raises ValueError for another file, or an unknown name.
        """
        if self._columns is None:
            begin = max(0, file.size - END_BYTES)
            self._parse_footer(file, file.readat(begin, file.size - begin))
        if self._columns is None:
            raise ValueError("the file is no Parquet file, so its columns cannot be prefetched")
        file.prefetch_many(_within(file, self._columns.expect(names)))

    def after(self, file: ColumnFile, end: int, data: bytes) -> None:
        """Reads the column offsets from the footer if the read bytes, up to `end`, end a Parquet file.

        Only if the program uses pyarrow, whose order of reads is known. The program has its bytes: a footer
        that cannot be read or parsed is no error of this read.
        """
        if self._columns is not None or end != file.size or "pyarrow.parquet" not in sys.modules:
            return
        try:
            self._parse_footer(file, data)
        except (OSError, ValueError):
            # A program that needs the footer reads it itself, and gets the error.
            pass

    def _parse_footer(self, file: ColumnFile, data: bytes) -> None:
        """Reads the column offsets from the footer if `data`, the end of the file, ends a Parquet file.

        Raises ValueError for a wrong footer, and the OSError of the storage.
        """
        footer = footer_bytes(data)
        if footer is None or footer > min(file.size, self._ahead_bytes):
            return
        if footer > len(data):
            # The program reads the footer next.
            data = file.readat(file.size - footer, footer)
        self._columns = file._columns_of(layout_of(data[-footer:]))


def _within(file: ColumnFile, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the ranges that lie in the file: a wrong footer may plan others."""
    return [(begin, size) for begin, size in ranges if 0 <= begin and 0 <= size <= file.size - begin]


def together_of(schemas: dict[tuple[str, ...], Together], layout: Layout) -> Together:
    """Returns the columns read together in files with the columns of `layout`, from the known schemas."""
    together = schemas.setdefault(tuple(layout.paths), {})
    keep_newest(schemas)
    return together


def keep_newest(kept: dict[Any, Any]) -> None:
    """Removes the oldest entries beyond `SCHEMAS_MAX`."""
    while len(kept) > SCHEMAS_MAX:
        kept.pop(next(iter(kept)), None)


def layout_of(footer: bytes) -> Layout:
    """Parses the end of a Parquet file, from the first byte of its footer.

    pyarrow ends the process for some wrong footers, so it has no part in this. Raises ValueError for a
    wrong footer, and for one without columns.
    """
    return Layout(*_native.parquet_columns(footer))


def footer_bytes(end: bytes) -> int | None:
    """Size of the footer with its trailer if these bytes end a Parquet file, else None."""
    if end[-4:] != MAGIC or len(end) < TRAILER_BYTES:
        return None
    return int.from_bytes(end[-TRAILER_BYTES:-4], "little") + TRAILER_BYTES
