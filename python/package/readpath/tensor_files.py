"""Files of safetensors, their headers and the reads of their tensors.

A local file is mapped privately by the kernel. An array over the mapping has the file's bytes without
a copy, may be written to without a change of the file, and uses only reclaimable memory. Absent pages
are read and mapped before a tensor is returned, in file order. `mmap` alone would read in small windows
and wait in each, and a plain `read` would copy every byte. A large kernel readahead (`read_ahead_kb`)
is used as it is, with pages of two MiB. Otherwise the next bytes are advised, in requests of the
device's maximum size, many at a time. Resident pages are not advised again, so several processes that
read a file at the same time read it from the device once.

A file read by fsspec or by the NFS client is copied to separate memory, tensor by tensor.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from readpath import _native
from readpath.tensor_errors import error_of
from readpath.tensor_frameworks import BITS_OF_PARTS, TORCH_TYPES, Maker, Place, Tensor
from readpath.tensor_headers import check_numbers, elements_of, header_of, metadata_of, shown
from readpath.tensor_mappings import private_mapping
from readpath.tensor_prefetch import PlannedReads, pieces_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER_BYTES_MAX = 100_000_000
"""Maximum size of a header in bytes, by the format."""

AHEAD_BYTES = 64 << 20
"""Prefetch distance in bytes: 32 requests of the maximum size of most devices."""

WAIT_BYTES = 4 << 20
"""Number of bytes per wait."""

PIECE_BYTES = 128 << 10
"""Minimum number of bytes that the kernel reads for a hint, on a device with small requests."""

PIECE_BYTES_MAX = 4 << 20
"""Maximum number of bytes of a hint, however large the device's requests are."""

KERNEL_AHEAD_BYTES = 4 << 20
"""Kernel readahead in bytes from which no hints are needed: one request is in flight while another is mapped.

Hinted pages have 4 KiB, and cost twenty times the processor time.
"""

KERNEL_RUN = 8
"""Minimum length of a range left to the kernel, in windows, since it reads half a window before and one after it."""


class TensorFile:
    """The tensors of one file, as its header lists them."""

    piece_bytes = PIECE_BYTES_MAX
    """Maximum number of bytes of a hint."""

    _plan: tuple[PlannedReads, int] | None = None
    """The plan that loads of this file are counted for, and the file's index in it."""

    def __init__(self, name: str | bytes, text: bytes, data_begin: int, file_bytes: int) -> None:
        """Parses the header `text`. The tensors fill the file from byte `data_begin` to its end, `file_bytes`.

        Raises ValueError (also a `SafetensorError`) for a wrong header, and for another end.
        """
        self.name = name
        self.metadata: dict[str, str] | None = None
        self.places: dict[str, Place] = {}
        try:
            header = header_of(text)
            self.metadata = metadata_of(header.pop("__metadata__", None))
            for tensor, entry in header.items():
                self.places[tensor] = self._place(tensor, entry, data_begin)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise error_of(ValueError, f"{_shown(name)}: its header is none of safetensors: {error}") from None
        # An empty tensor comes before the tensor at the same offset.
        ends = {tensor: (place.offset, place.size) for tensor, place in self.places.items()}
        self.in_order = sorted(ends, key=ends.__getitem__)
        # The tensors fill the file without gaps, overlaps or a rest.
        end = data_begin
        for tensor in self.in_order:
            place = self.places[tensor]
            if place.offset != end:
                raise error_of(
                    ValueError,
                    f"{_shown(name)}: tensor {shown(tensor)} begins at byte {place.offset} and not at {end},"
                    " where the one before it ends",
                )
            end += place.size
        if end != file_bytes:
            raise error_of(
                ValueError,
                f"{_shown(name)}: it has {file_bytes} bytes, and its tensors end at byte {end}; was it written"
                " or downloaded in full?",
            )

    def _place(self, tensor: str, entry: dict[str, Any], data_begin: int) -> Place:
        """The place of a tensor by its entry in the header.

        Raises ValueError, KeyError or TypeError for a wrong entry.
        """
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        check_numbers(tensor, (*shape, begin, end))
        if dtype not in TORCH_TYPES and dtype not in BITS_OF_PARTS:
            known = ", ".join(sorted({*TORCH_TYPES, *BITS_OF_PARTS}))
            raise ValueError(f"tensor {shown(tensor)} is of type {shown(dtype)}; known are {known}")
        bits = elements_of(tensor, shape) * _item_bits(dtype)
        if bits % 8:
            raise ValueError(f"tensor {shown(tensor)} of the shape {shown(shape)} has {bits} bits, no whole bytes")
        size = bits // 8
        if end - begin != size:
            raise ValueError(
                f"tensor {shown(tensor)} of the shape {shown(shape)} has {size} bytes, not {end - begin}"
            )
        return Place(dtype, shape, data_begin + begin, size)

    def join_plan(self, planned: PlannedReads, index: int) -> None:
        """Counts the loads of this file for a plan, in place of the last one."""
        self._plan = (planned, index)

    def _on_load(self, begin: int, end: int) -> None:
        """Counts loaded bytes for the plan, if there is one."""
        if self._plan is not None:
            planned, index = self._plan
            planned.on_load(index, begin, end)

    def _has_shrunk(self, end: int) -> OSError:
        """The error of a file that has become shorter than `end` bytes since it was opened."""
        return OSError(errno.ESTALE, f"it has become shorter than {end} bytes", self.name)


def _item_bits(dtype: str) -> int:
    """Bits of a number: most names of types end with them, as in `F32`."""
    if dtype in BITS_OF_PARTS:
        return BITS_OF_PARTS[dtype]
    if dtype == "BOOL" or dtype.startswith("F8_"):
        return 8
    return 16 if dtype == "BF16" else int(dtype[1:])


def _shown(name: str | bytes) -> str:
    """A file's name as text, for messages."""
    return os.fsdecode(name)


def _header_bytes(name: str | bytes, length: bytes, file_bytes: int) -> int:
    """Size of the header, from the first 8 bytes of a file. Raises ValueError if it does not fit into the file."""
    count = int.from_bytes(length, "little")
    if len(length) < 8 or count > min(HEADER_BYTES_MAX, file_bytes - 8):
        raise error_of(
            ValueError,
            f"{_shown(name)}: no file of safetensors, which begin with the length of a header;"
            f" this one has {file_bytes} bytes",
        )
    return count


class LocalTensors(TensorFile):
    """The tensors of a local file, over private mappings."""

    # Descriptors of the file, and of its open for `_is_held`; -1 if not open.
    _file = _looked_at = -1

    def __init__(self, path: str | bytes, name: str | bytes | None = None) -> None:
        """`name`: the name in errors, by default the path."""
        name = path if name is None else name
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(self._file)
            count = _header_bytes(name, os.pread(self._file, 8, 0), found.st_size)
            super().__init__(name, os.pread(self._file, count, 8), 8 + count, found.st_size)
        except IsADirectoryError:
            self.close()
            raise IsADirectoryError(errno.EISDIR, "Is a directory", name) from None
        except BaseException:
            self.close()
            raise
        self.piece_bytes = _piece_bytes(found.st_dev)
        self._kernel_ahead_bytes = _queue_bytes(found.st_dev, "read_ahead_kb") or 0

    def load(self, names: list[str], make: Maker) -> dict[str, Tensor]:
        """Reads tensors in file order."""
        places = [self.places[name] for name in names]
        return dict(zip(names, self._load(places, make), strict=True))

    def load_place(self, place: Place, make: Maker) -> Tensor:
        """Loads a tensor that is a part of another."""
        return self._load([place], make)[0]

    def handle(self) -> int:
        """The descriptor. Raises ValueError if the file is closed."""
        if self._file < 0:
            raise ValueError("I/O operation on closed file.")
        return self._file

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills a buffer with the bytes from an offset on, for any thread. Raises OSError (`ESTALE`) if the file has shrunk."""
        end = offset + len(buffer)
        for begin, last in pieces_of([(offset, end)], self.piece_bytes):
            os.posix_fadvise(self.handle(), begin, last - begin, os.POSIX_FADV_WILLNEED)
        filled = 0
        while filled < len(buffer):
            count = os.preadv(self.handle(), [buffer[filled:]], offset + filled)
            if count == 0:
                raise self._has_shrunk(end)
            filled += count
        self._on_load(offset, end)

    def _load(self, places: list[Place], make: Maker) -> list[Tensor]:
        """Loads consecutive tensors, each over its own private mapping: writes to a tensor stay in it.

        At most about `AHEAD_BYTES` are requested ahead of the position that has arrived.
        """
        ranges = [(place.offset, place.offset + place.size) for place in places] if make.needs_bytes else []
        hints = self._hints(ranges)
        ahead_bytes = 0
        tensors = []
        for place in places:
            if place.size == 0 or not make.needs_bytes:
                tensors.append(make.over(b"", 0, place))
                continue
            skip = place.offset % mmap.ALLOCATIONGRANULARITY
            mapping = self._mapped(place.offset - skip, skip + place.size)
            for begin, end in pieces_of([(place.offset, place.offset + place.size)], WAIT_BYTES):
                while ahead_bytes < AHEAD_BYTES and (hint := next(hints, None)) is not None:
                    first, last, is_the_kernels = hint
                    if not is_the_kernels:
                        self._ask_for(first, last)
                    ahead_bytes += last - first
                self._bring_in(mapping, place.offset - skip, begin, end)
                ahead_bytes -= end - begin
                self._on_load(begin, end)
            tensors.append(make.over(mapping, skip, place))
        return tensors

    def _mapped(self, offset: int, size: int) -> Buffer:
        """Maps a range privately.

        Raises OSError (`ESTALE`) if the file no longer has the range, ValueError if it is closed.
        """
        if os.fstat(self.handle()).st_size < offset + size:
            raise self._has_shrunk(offset + size)
        return private_mapping(self._file, size, offset)

    def _hints(self, ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int, bool]]:
        """Yields the pieces of the joined ranges, and whether the kernel's readahead covers each.

        It covers all pieces of a long range except the first.
        """
        window = self._kernel_ahead_bytes
        for begin, end in _joined(ranges):
            is_long = window >= KERNEL_AHEAD_BYTES and end - begin >= KERNEL_RUN * window
            for first, last in pieces_of([(begin, end)], self.piece_bytes):
                yield first, last, is_long and first > begin

    def _ask_for(self, begin: int, end: int) -> None:
        """Starts the kernel's read of a piece that is not in the page cache."""
        if not self._is_held(begin, end):
            os.posix_fadvise(self._file, begin, end - begin, os.POSIX_FADV_WILLNEED)

    def _bring_in(self, mapping: Buffer, mapping_begin: int, begin: int, end: int) -> None:
        """Waits until the kernel has read and mapped a part of the file.

        Raises OSError if the device fails or the file has shrunk; an access would be a bus error.
        """
        first = begin - begin % mmap.PAGESIZE
        if _native.populate(mapping, first - mapping_begin, end - first):
            return
        # An old kernel, or a failed page: the reads bring in each page, or raise the exact error.
        for at in (*range(first, end, mmap.PAGESIZE), end - 1):
            if not os.pread(self._file, 1, max(at, begin)):
                raise self._has_shrunk(end)

    def _is_held(self, begin: int, end: int) -> bool:
        """True if the kernel page cache holds the first, middle and last byte of a piece.

        The check reads through a separate open file with POSIX_FADV_RANDOM: it causes no readahead.
        """
        if self._looked_at < 0:
            self._looked_at = os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)
            os.posix_fadvise(self._looked_at, 0, 0, os.POSIX_FADV_RANDOM)
        try:
            for at in (begin, (begin + end) // 2, end - 1):
                if os.preadv(self._looked_at, [bytearray(1)], at, os.RWF_NOWAIT) == 0:
                    return False
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Closes the file and ends its plan; tensors over its mappings stay valid."""
        if self._plan is not None:
            self._plan[0].stop()
        opened = (self._file, self._looked_at)
        self._file = self._looked_at = -1
        for descriptor in opened:
            if descriptor >= 0:
                os.close(descriptor)

    def __del__(self) -> None:
        # The package safetensors also closes files without a `with`.
        self.close()


def _joined(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Merges adjacent and overlapping ranges; drops empty ones."""
    last: tuple[int, int] | None = None
    for begin, end in ranges:
        if begin == end:
            continue
        if last is not None and begin <= last[1]:
            last = (last[0], max(end, last[1]))
            continue
        if last is not None:
            yield last
        last = (begin, end)
    if last is not None:
        yield last


def _piece_bytes(device: int) -> int:
    """Returns the size of a device's largest request: the kernel reads no more than this for one hint."""
    said = _queue_bytes(device, "max_sectors_kb") or 0
    return min(max(said, PIECE_BYTES), PIECE_BYTES_MAX)


def _queue_bytes(device: int, name: str) -> int | None:
    """Returns a queue limit of a device or of its parent disk, in bytes; None if it is no block device.

    `name`: a limit that the kernel states in KiB.
    """
    place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for queue in (place / "queue", place / ".." / "queue"):
        try:
            return int((queue / name).read_text()) << 10
        except (OSError, ValueError):
            continue
    return None


class SeekedFile:
    """A file object with `read` and `seek`, read at offsets. It stays open at `close`."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.size: int = file.seek(0, os.SEEK_END)

    def readat(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes from an offset, fewer only at the end of the file."""
        self._file.seek(offset)
        found = bytearray()
        while len(found) < size and (part := self._file.read(size - len(found))):
            found += part
        return bytes(found)

    def readinto_many(self, offsets: list[int], buffers: list[bytearray]) -> list[int]:
        """Fills each buffer from its offset; returns the byte counts."""
        counts = []
        for offset, buffer in zip(offsets, buffers, strict=True):
            part = self.readat(offset, len(buffer))
            buffer[: len(part)] = part
            counts.append(len(part))
        return counts

    def prefetch_many(self, ranges: list[tuple[int, int]]) -> None:
        """Does nothing: a file object has one position."""

    def close(self) -> None:
        """Leaves the file to its owner."""


class _Whole(SeekedFile):
    """A file on storage without random access, read whole into memory."""

    def __init__(self, stream: Any) -> None:
        with stream:
            super().__init__(io.BytesIO(stream.read()))

    def close(self) -> None:
        """Frees the memory."""
        self._file.close()


class OtherTensors(TensorFile):
    """The tensors of a file that is read into separate memory."""

    def __init__(self, name: str | bytes, opened: Any) -> None:
        """`opened`: a file with `readat`, or a stream, which is read whole. `name`: the name in errors."""
        self._file: Any = opened if hasattr(opened, "readat") else _Whole(opened)
        try:
            count = _header_bytes(name, self._file.readat(0, 8), self._file.size)
            text = self._file.readat(8, count)
            super().__init__(name, text, 8 + count, self._file.size)
        except BaseException:
            self.close()
            raise

    def load(self, names: list[str], make: Maker) -> dict[str, Tensor]:
        """Reads tensors in file order, in batches of at most `AHEAD_BYTES` or one tensor."""
        tensors: list[Tensor] = []
        together: list[Place] = []
        if not make.needs_bytes:
            return {name: make.over(b"", 0, self.places[name]) for name in names}
        together_bytes = 0
        for name in names:
            place = self.places[name]
            if together and together_bytes + place.size > AHEAD_BYTES:
                tensors += self._load(together, make)
                together, together_bytes = [], 0
            together.append(place)
            together_bytes += place.size
        tensors += self._load(together, make)
        return dict(zip(names, tensors, strict=True))

    def load_place(self, place: Place, make: Maker) -> Tensor:
        """Loads a tensor that is a part of another."""
        return self._load([place], make)[0]

    def prefetch_many(self, ranges: list[tuple[int, int]]) -> None:
        """Prefetches the bytes from an offset to an end, of each range in this order."""
        if ranges:
            self._file.prefetch_many([(begin, end - begin) for begin, end in ranges])

    def _load(self, places: list[Place], make: Maker) -> list[Tensor]:
        """Reads tensors together, each into its own memory. Raises OSError (`ESTALE`) if the file has shrunk."""
        memory = [bytearray(place.size) for place in places]
        counts = self._file.readinto_many([place.offset for place in places], memory)
        for place, count in zip(places, counts, strict=True):
            if count < place.size:
                raise self._has_shrunk(place.offset + count)
            self._on_load(place.offset, place.offset + place.size)
        return [make.over(buffer, 0, place) for buffer, place in zip(memory, places, strict=True)]

    def close(self) -> None:
        """Closes the file; loaded tensors stay valid."""
        self._file.close()
