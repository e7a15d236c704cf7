"""Places of a file, as programs name them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy

Ranges: TypeAlias = "Iterable[tuple[int, int]] | numpy.ndarray[Any, Any]"
"""Ranges, each its offset and its size: pairs, or an array of 64-bit integers with two columns."""

Offsets: TypeAlias = "Iterable[int] | numpy.ndarray[Any, Any]"
"""Offsets: integers, or an array of 64-bit ones."""
