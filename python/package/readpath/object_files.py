"""Objects by URL as files, with the columns of Parquet files prefetched."""

from __future__ import annotations

from readpath import _native
from readpath.columns import Columns, Together, footer_bytes, layout_of
from readpath.files import File, PathLike, ReadPath
from readpath.modelled import memory_bytes

AHEAD_BYTES = 64 << 20
"""Maximum number of prefetched and unread bytes of a Parquet file, without an option `memory`."""

SCHEMAS_MAX = 64
"""Maximum number of schemas whose columns read together are remembered."""

_together: dict[tuple[str, ...], Together] = {}


class ObjectFile(File):
    """The object of a URL. Its reads are the ones of `File`, and `read` prefetches columns of Parquet files."""

    _columns: Columns | None = None
    _is_of_columns = False

    def __init__(self, path: PathLike, within: ReadPath) -> None:
        memory = within.memory
        self._ahead_bytes = AHEAD_BYTES if memory is None else memory_bytes(memory) // 2

    def read(self, size: int | None = None) -> bytes:
        """Returns up to `size` bytes from the position, fewer only at the end; all without a size."""
        begin = self.tell()
        if self._columns is not None:
            left = max(0, self.size - begin)
            self._read_column(self._columns, begin, left if size is None or size < 0 else min(size, left))
        data = super().read(size)
        if self._columns is None and begin + len(data) == self.size:
            self._look_for_columns(data)
        return data

    def revalidate(self) -> bool:
        """As `File.revalidate`. The columns of another version are not known."""
        has_changed = super().revalidate()
        if has_changed:
            self._columns, self._is_of_columns = None, False
        return has_changed

    def _read_column(self, columns: Columns, begin: int, size: int) -> None:
        """Prefetches the column chunks that are expected after this read of a Parquet file.

        While the program reads whole chunks, the readahead policy is off.
        """
        expected = columns.read(begin, size)
        if (is_chunk := expected is not None) != self._is_of_columns:
            # The bytes after a whole chunk belong to another column.
            self._is_of_columns = is_chunk
            # Not the hint of the program, which stays in `_advice`.
            _native.LocalFile.advise(self, "random" if is_chunk else self._advice or "normal")
        if expected:
            # The demand range comes first.
            self.prefetch_many([(begin, size), *expected])

    def _look_for_columns(self, end: bytes) -> None:
        """Reads the column offsets from the footer if these bytes end a Parquet file."""
        footer = footer_bytes(end)
        if footer is None or footer > min(self.size, self._ahead_bytes):
            return
        if footer > len(end):
            # The program reads the footer next.
            end = self.readat(self.size - footer, footer)
        layout = layout_of(end[-footer:])
        names = tuple(layout.schema.names)
        self._columns = Columns(layout, self._ahead_bytes, _together.setdefault(names, {}))
        while len(_together) > SCHEMAS_MAX:
            del _together[next(iter(_together))]
