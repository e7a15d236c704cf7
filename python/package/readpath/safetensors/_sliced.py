"""Parts of tensors with the indices and errors of the package safetensors."""

from __future__ import annotations

from typing import Any

from readpath.tensor_errors import error_of
from readpath.tensor_frameworks import Tensor
from readpath.tensors import TensorSlice


class StrictSlice(TensorSlice):
    """A part of a NumPy array: indices outside the shape are errors, also the ends of slices."""

    def __getitem__(self, index: Any) -> Tensor:
        """Reads a part. An empty list stands for no rows, and any other list is a TypeError."""
        if isinstance(index, list):
            if index:
                raise error_of(TypeError, "Non empty lists are not implemented")
            return super().__getitem__(slice(0, 0))
        self._check(index if isinstance(index, tuple) else (index,))
        return super().__getitem__(index)

    def _check(self, indices: tuple[Any, ...]) -> None:
        """Raises IndexError for an index outside the shape, and for a second ellipsis."""
        shape = self.get_shape()
        if indices.count(...) > 1:
            raise error_of(IndexError, "Only one ellipsis (...) is allowed in slice index")
        axis = 0
        for one in indices:
            if one is ...:
                # It stands for all axes that have no index of their own.
                axis += max(0, len(shape) - (len(indices) - 1))
                continue
            size = shape[axis] if axis < len(shape) else 0
            outside = _outside(one, axis, size)
            if outside is not None:
                shown = ", ".join(_shown(part) for part in indices)
                raise error_of(
                    IndexError,
                    f"Error during slicing [{shown}] with shape {shape}: index {outside} out of bounds"
                    f" for tensor dimension #{axis} of size {size}",
                )
            axis += 1


class TorchSlice(TensorSlice):
    """A part of a torch tensor: torch itself takes all indices beyond integers and slices."""

    def __getitem__(self, index: Any) -> Tensor:
        """Reads a part. With another index than integers and slices, the whole tensor is read first."""
        given = index if isinstance(index, tuple) else (index,)
        if all(isinstance(one, (int, slice)) or one is ... for one in given):
            return super().__getitem__(index)
        return super().__getitem__(...)[index]


def _outside(one: Any, axis: int, size: int) -> int | None:
    """Returns the index outside an axis of `size` items, or None if there is none.

    Raises IndexError for negative indices and steps, which the package refuses with other words.
    """
    if not isinstance(one, slice):
        if not isinstance(one, int):
            # The parent refuses it.
            return None
        if one < -size:
            raise error_of(IndexError, f"Invalid index {one} for dimension {axis} of size {size}")
        return one if one >= size else None
    if one.step is not None and one.step <= 0:
        raise error_of(IndexError, f"Slice step must be a positive integer, got {one.step}")
    for end in (one.start, one.stop):
        if end is not None and end < 0:
            raise error_of(IndexError, f"can't convert negative int {end} to unsigned")
    if one.stop is not None and one.stop > size:
        return int(one.stop) - 1
    return int(one.start) if one.start is not None and one.start > size else None


def _shown(one: Any) -> str:
    if not isinstance(one, slice):
        return "..." if one is ... else str(one)
    ends = ["" if end is None else str(end) for end in (one.start, one.stop)]
    return ":".join(ends if one.step is None else [*ends, str(one.step)])
