"""Rows in a Parquet file that is complete at every moment.

A Parquet file cannot be extended. A new file is written next to it and renamed
over it atomically, so that readers, also after a power loss, find either the old
or the new rows. The interval between two writes is at least twenty times the
duration of a write, which limits their cost for any number of rows.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

Row = dict[str, Any]

FLUSH_SECONDS_MIN = 2.0
"""Minimum interval between two flushes in seconds."""

FLUSH_SHARE = 20
"""Minimum interval between two flushes, as a multiple of the flush's duration."""

LATENCY = ["p50", "p99", "max"]


class RowFile:
    """Rows of a Parquet file, with added rows."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens the file at `path`, which need not exist.

        Raises FileNotFoundError for a missing folder, and ValueError if the file
        is not a Parquet file.
        """
        import pyarrow.parquet

        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"{self.path}: there is no folder {self.path.parent}; make it")
        self._rows: list[Row] = []
        if self.path.exists():
            try:
                self._rows = pyarrow.parquet.read_table(self.path).to_pylist()
            except pyarrow.ArrowInvalid as error:
                raise ValueError(f"{self.path}: not a Parquet file; name another: {error}") from None
        # Number of rows that are not in the file yet.
        self._unwritten = 0
        self._written_at = time.monotonic()
        # Duration of the last flush.
        self._flush_seconds = 0.0

    def rows(self, key: str) -> dict[str, Row]:
        """Returns the rows by one of their values, without rows that lack it."""
        return {row[key]: row for row in self._rows if row.get(key) is not None}

    def add(self, row: Row) -> None:
        """Adds a row, which is written now or later."""
        self._rows.append(row)
        self._unwritten += 1
        due = max(FLUSH_SECONDS_MIN, FLUSH_SHARE * self._flush_seconds)
        if time.monotonic() - self._written_at >= due:
            self.flush()

    def flush(self) -> None:
        """Writes the rows that are not in the file yet."""
        if self._unwritten == 0:
            return
        import pyarrow
        import pyarrow.parquet

        began = time.monotonic()
        table = pyarrow.Table.from_pylist(self._rows, schema=_schema(self._rows))
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                pyarrow.parquet.write_table(table, file, compression="zstd")
                file.flush()
                os.fsync(file.fileno())
            # A temporary file is readable by its owner alone; the new file gets the usual rights.
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        self._unwritten = 0
        self._written_at = time.monotonic()
        self._flush_seconds = self._written_at - began


def _umask() -> int:
    """Returns the file mode creation mask, which can be read only by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _schema(rows: list[Row]) -> Any:
    """The types of the columns: fixed for values that may all be null, else as they are found."""
    import pyarrow as pa

    text, real, count = pa.string(), pa.float64(), pa.int64()
    nullable = {
        "readahead": text,
        "swapin": text,
        "scheduler": text,
        "raw": text,
        "engine": text,
        "first_error": text,
        "decisions": text,
        "note": text,
        "device_requests": count,
        "device_bytes": count,
        "device_depth_max": count,
        "waste_bytes": count,
        "mib_per_s": real,
        "iops": real,
        "device_request_kib_mean": real,
        "device_depth_mean": real,
        "amplification": real,
        "coverage": real,
        "cpu_seconds": real,
        "host_seconds": real,
        "jain_index": real,
        "latency_us": pa.struct([(name, real) for name in LATENCY]),
    }
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    types = {name: nullable.get(name) or pa.infer_type(columns[name]) for name in names}
    # A value that no row has had yet is text until one has it.
    known = [(name, text if pa.types.is_null(kind) else kind) for name, kind in types.items()]
    return pa.schema(known)
