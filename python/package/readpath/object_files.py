"""Objects by URL as files, with the columns of Parquet files prefetched."""

from __future__ import annotations

from collections.abc import Iterable

from readpath import _native
from readpath.columns import ColumnReads, Columns, Layout, Together, together_of
from readpath.files import File, PathLike, ReadPath
from readpath.modelled import memory_bytes

AHEAD_BYTES = 64 << 20
"""Maximum number of prefetched and unread bytes of a Parquet file, without an option `memory`."""

_schemas: dict[tuple[str, ...], Together] = {}


class ObjectFile(File):
    """The object of a URL. Its reads are the ones of `File`, and `read` prefetches columns of Parquet files."""

    def __init__(self, path: PathLike, within: ReadPath) -> None:
        """Prepares the prefetch. The base class's `__new__` opens the object."""
        memory = within.memory
        self._ahead_bytes = AHEAD_BYTES if memory is None else memory_bytes(memory) // 2
        self._column_reads = ColumnReads(self._ahead_bytes)

    def read(self, size: int | None = None) -> bytes:
        """Returns up to `size` bytes from the position, fewer only at the end; all without a size."""
        begin = self.tell()
        left = max(0, self.size - begin)
        self._column_reads.before(self, begin, left if size is None or size < 0 else min(size, left))
        data = super().read(size)
        self._column_reads.after(self, begin + len(data), data)
        return data

    def prefetch_columns(self, names: Iterable[str]) -> None:
        """Starts to fetch columns of a Parquet file, as far as memory allows, without a wait for them.

        A reader that is not asynchronous, such as pyarrow's of a Python file, waits for each column
        otherwise. The name of a struct means all its columns. Raises ValueError for another file, or an
        unknown name.
        """
        self._column_reads.prefetch(self, names)

    def revalidate(self) -> bool:
        """As `File.revalidate`. The columns of another version are not known."""
        has_changed = super().revalidate()
        if has_changed:
            self._column_reads = ColumnReads(self._ahead_bytes)
            # No longer the hint for columns.
            self._advise_policy("normal")
        return has_changed

    def _advise_policy(self, advice: str) -> None:
        # The method of `File` would take it for the hint of the program, which is `_advice`.
        _native.LocalFile.advise(self, advice if advice == "random" else self._advice or "normal")

    def _columns_of(self, layout: Layout) -> Columns:
        return Columns(layout, self._ahead_bytes, together_of(_schemas, layout))
