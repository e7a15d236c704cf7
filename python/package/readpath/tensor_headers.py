"""Headers of safetensors files: JSON of a strict form, as the package safetensors accepts it."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable
from typing import Any

NUMBER_MAX = (1 << 64) - 1
"""Maximum of a length, an offset and a number of elements, by the format."""

NAMED_ONCE = frozenset({"__metadata__", "dtype", "shape", "data_offsets"})
"""Keys that an object of the header has at most once."""


_cut = reprlib.Repr()
# Names of tensors and data types of real models are shorter, and shapes have fewer lengths.
_cut.maxstring, _cut.maxtuple, _cut.maxlist = 200, 8, 8


def shown(value: Any) -> str:
    """Returns the text of a value in messages. Long texts and shapes are cut: a header may have 100 MB."""
    return _cut.repr(value)


def header_of(text: bytes) -> dict[str, Any]:
    """Parses a header. Raises ValueError unless it is JSON in UTF-8 with unique keys."""
    header = json.loads(text.decode(), object_pairs_hook=_object, parse_constant=_refused_constant)
    if not isinstance(header, dict):
        raise ValueError("it is no object of JSON")
    for name in header:
        # Half of a surrogate pair is no text of UTF-8.
        name.encode()
    return header


def metadata_of(found: Any) -> dict[str, str] | None:
    """Returns the metadata of a header. Raises ValueError unless all its values are texts."""
    if found is None:
        return None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("its metadata is no object of texts")
    return found


def check_numbers(tensor: str, numbers: Iterable[Any]) -> None:
    """Raises ValueError unless all lengths and offsets of a tensor are integers of 64 bits."""
    for number in numbers:
        if type(number) is not int or not 0 <= number <= NUMBER_MAX:
            raise ValueError(
                f"tensor {shown(tensor)} has {shown(number)} in its shape or offsets, no integer from 0 to 2⁶⁴"
            )


def elements_of(tensor: str, shape: tuple[int, ...]) -> int:
    """Returns the number of elements. Raises ValueError if it exceeds 64 bits, also before a length of zero.

    It ends at the first length that is too much: the whole product of the longest header takes hours.
    """
    elements = 1
    for length in shape:
        if (elements := elements * length) > NUMBER_MAX:
            raise ValueError(f"tensor {shown(tensor)} of the shape {shown(shape)} has no size of 64 bits")
    return elements


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of the header. Raises ValueError if a key of `NAMED_ONCE` is repeated."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        for key in NAMED_ONCE:
            if keys.count(key) > 1:
                raise ValueError(f"the key {key!r} appears twice")
    return found


def _refused_constant(name: str) -> Any:
    """Raises ValueError for NaN and Infinity, which are not JSON."""
    raise ValueError(f"{name} is no value of JSON")
