"""Conversion of offsets, ranges and buffers from the caller's types."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy
    from typing_extensions import Buffer

Ranges: TypeAlias = "Iterable[Sequence[int]] | numpy.ndarray[Any, Any]"
"""Ranges as offset and size: pairs (tuples or lists), or an array of integers with two columns."""

Offsets: TypeAlias = "Iterable[int] | numpy.ndarray[Any, Any]"
"""Offsets: integers, or an array of them."""


NO_PAIRS = (str, bytes, bytearray, memoryview, set, frozenset, dict)
"""Types with items that are no range: text and bytes, and types whose items have no order or are keys."""


def pairs_of(ranges: Ranges) -> list[tuple[int, int]]:
    """Converts ranges to pairs of Python integers.

    Raises ValueError for an array without two columns, TypeError for non-integers, text, bytes and sets.
    """
    return list(pairs_in_turn(ranges))


def pairs_in_turn(ranges: Ranges) -> Iterator[tuple[int, int]]:
    """As `pairs_of`, one pair after the other. A generator is consumed as far as the pairs are used."""
    for pair in _listed(ranges, (2,), "give an array with two columns, offset and size"):
        if isinstance(pair, NO_PAIRS):
            raise TypeError(f"a range is a pair of offset and size, not {type(pair).__name__}")
        offset, size = pair
        yield operator.index(offset), operator.index(size)


def offsets_of(offsets: Offsets) -> list[int]:
    """Converts offsets to Python integers.

    Raises ValueError for an array with several dimensions, TypeError for non-integers.
    """
    return [operator.index(offset) for offset in _listed(offsets, (), "give them in one row")]


def _listed(given: Any, columns: tuple[int, ...], else_what: str) -> Any:
    """Converts an array to lists of Python integers. Other objects are returned as they are.

    `columns`: the shape of one row, `(2,)` for pairs and `()` for single numbers. `else_what`: advice in the error.
    """
    if (shape := getattr(given, "shape", None)) is None:
        return given
    if len(shape) != 1 + len(columns) or tuple(shape[1:]) != columns:
        raise ValueError(f"an array of the shape {list(shape)}: {else_what}")
    if given.dtype.kind not in "iu":
        raise TypeError("an array of ranges or offsets: give integers (`.astype('i8')`)")
    return given.tolist()


def buffers_of(buffers: Buffer | Iterable[Buffer], count: int) -> list[memoryview]:
    """Returns `count` writable buffers of bytes: the given ones, or one buffer split into equal parts.

    Raises ValueError for a wrong number or an uneven split, BufferError for a read-only or
    non-contiguous buffer.
    """
    try:
        whole = _bytes_of(buffers)
    except TypeError:
        each = [_bytes_of(buffer) for buffer in buffers]  # type: ignore[union-attr]
        if len(each) != count:
            raise ValueError(f"{len(each)} buffers for {count} offsets") from None
        return each
    if count == 0 and not whole:
        return []
    if count == 0 or len(whole) % count:
        raise ValueError(f"a buffer of {len(whole)} bytes can't be cut into {count} parts")
    part = len(whole) // count
    return [whole[at : at + part] for at in range(0, count * part, part)] if part else [whole] * count


def exported(buffer: Any) -> Any:
    """Returns a buffer, with an array of dates as integers: NumPy does not export dates."""
    kind = getattr(getattr(buffer, "dtype", None), "kind", None)
    return buffer.view("i8") if kind in ("M", "m") else buffer


def _bytes_of(buffer: Any) -> memoryview:
    """Returns the memory of a writable buffer as bytes. Raises TypeError for an object without a buffer."""
    buffer = exported(buffer)
    view = memoryview(buffer)
    if view.readonly:
        raise BufferError("the buffer is read-only; give a bytearray, say")
    if not view.c_contiguous:
        raise BufferError("the buffer is not in one piece; copy it first")
    # A memoryview cannot cast ctypes formats. PickleBuffer.raw() returns bytes for any object.
    return PickleBuffer(buffer).raw() if view.nbytes else memoryview(bytearray())
