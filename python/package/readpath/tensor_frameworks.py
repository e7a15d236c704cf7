"""Frameworks of tensors, and the types of their numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from readpath.tensor_errors import error_of
from readpath.tensor_headers import shown

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from readpath.tensor_devices import DeviceLoader

Framework = Literal["numpy", "np", "pt", "torch", "pytorch"]
Tensor = Any
"""A `numpy.ndarray` or a `torch.Tensor`, as the framework says."""

NUMPY_TYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4",
    "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8", "C64": "<c8",
}  # fmt: skip

ML_TYPES = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
"""Types that NumPy knows by the package `ml_dtypes`, and torch by these names."""

PACKED = "F4"
"""Two numbers in a byte: torch has such pairs as one, so that the last axis is half as long; NumPy has none."""

BITS_OF_PARTS = {PACKED: 4, "F6_E2M3": 6, "F6_E3M2": 6}
"""Bits per number of the types whose numbers share bytes. A tensor of them has whole bytes."""

TORCH_TYPES = ML_TYPES | {
    PACKED: "float4_e2m1fn_x2",
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16",
    "U32": "uint32", "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64", "F64": "float64",
    "C64": "complex64",
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Location, type and shape of a tensor in its file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


class Maker:
    """Creates a framework's tensors over a buffer."""

    needs_bytes = True
    """False for tensors without contents: of these, only the header is read."""

    loader: DeviceLoader | None = None
    """Loads whole tensors of local files to a device that copies by itself."""

    def over(self, buffer: Buffer, offset: int, place: Place) -> Tensor:
        """Returns a tensor with the type and shape of `place` over the buffer from `offset` on, without a copy.

        Raises TypeError for a type that the framework lacks.
        """
        raise NotImplementedError

    def whole(self, part: Tensor) -> Tensor:
        """Returns the part as contiguous memory."""
        raise NotImplementedError


class _Numpy(Maker):
    def over(self, buffer: Buffer, offset: int, place: Place) -> Tensor:
        import numpy

        if place.dtype in BITS_OF_PARTS:
            remedy = "; take framework='pt'" if place.dtype in TORCH_TYPES else ""
            raise TypeError(f"NumPy has no type {place.dtype}, whose numbers share bytes{remedy}")
        if place.dtype in ML_TYPES:
            try:
                import ml_dtypes
            except ImportError:
                raise TypeError(
                    f"NumPy has no type {place.dtype}; install the package ml_dtypes, or take framework='pt'"
                ) from None
            kind = numpy.dtype(getattr(ml_dtypes, ML_TYPES[place.dtype]))
        else:
            kind = numpy.dtype(NUMPY_TYPES[place.dtype])
        if place.size == 0:
            return numpy.empty(place.shape, kind)
        count = math.prod(place.shape)
        return numpy.frombuffer(memoryview(buffer), kind, count, offset).reshape(place.shape)

    def whole(self, part: Tensor) -> Tensor:
        import numpy

        # NumPy would turn a single number into an array with one axis.
        return numpy.ascontiguousarray(part) if part.ndim else part


class _Torch(Maker):
    def __init__(self, device: str) -> None:
        """Makes tensors of torch on `device`, by a loader if it is a GPU."""
        import torch

        self._torch: Any = torch
        named = torch.device(device)
        self.needs_bytes = named.type != "meta"
        if named.type == "cuda":
            from readpath.tensor_devices import cuda_loader

            if named.index is None:
                # torch takes `cuda` for the current GPU of each call. The loader's stream would
                # stay on the GPU of its creation, and not order copies to another one's memory.
                device = f"cuda:{torch.cuda.current_device()}"
            self.loader = cuda_loader(device)
        self._device = device

    def over(self, buffer: Buffer, offset: int, place: Place) -> Tensor:
        kind, shape = torch_type(self._torch, place)
        if place.size == 0 or not self.needs_bytes:
            return self._torch.empty(shape, dtype=kind, device=self._device)
        if offset % kind.itemsize:
            # torch needs aligned numbers: copy a tensor at an unaligned offset.
            buffer, offset = bytearray(memoryview(buffer)[offset : offset + place.size]), 0
        tensor = self._torch.frombuffer(buffer, dtype=kind, count=math.prod(shape), offset=offset)
        return tensor.reshape(shape).to(self._device)

    def whole(self, part: Tensor) -> Tensor:
        return part.contiguous()


def torch_type(torch: Any, place: Place) -> tuple[Any, tuple[int, ...]]:
    """Returns the type and shape of a tensor in torch. Raises TypeError if this torch lacks the type or the shape."""
    kind = getattr(torch, TORCH_TYPES.get(place.dtype, ""), None)
    if kind is None:
        raise TypeError(f"torch {torch.__version__} has no type {place.dtype}; take a newer one")
    shape = place.shape
    if place.dtype == PACKED and shape[-1] % 2:
        raise TypeError(f"the shape {shown(shape)} has half a byte in its last axis; torch has {PACKED} in pairs")
    return kind, (*shape[:-1], shape[-1] // 2) if place.dtype == PACKED else shape


def framework_named(framework: str, device: str) -> Maker:
    """Returns the maker of a framework's tensors on a device. Raises ValueError for an unknown framework or device."""
    if framework in ("np", "numpy"):
        if device != "cpu":
            raise ValueError(f"device {device!r}: NumPy has its arrays on the cpu; take framework='pt'")
        return _Numpy()
    if framework in ("pt", "torch", "pytorch"):
        return _Torch(device)
    raise error_of(ValueError, f"framework {framework!r}: give 'numpy' or 'pt'")
