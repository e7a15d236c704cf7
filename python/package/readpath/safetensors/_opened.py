"""`safe_open` with the signature, errors and refusals of the package safetensors."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import safetensors

from readpath import tensors
from readpath.files import PathLike, open
from readpath.safetensors._sliced import StrictSlice, TorchSlice
from readpath.tensor_errors import error_of
from readpath.tensor_files import LocalTensors, OtherTensors, SeekedFile

if TYPE_CHECKING:
    from readpath.tensor_frameworks import Framework

FRAMEWORKS = ("np", "numpy", "pt", "torch", "pytorch")
"""Frameworks whose tensors readpath makes. The installed package opens files for others."""

original_safe_open = safetensors.safe_open
original_safe_open_handle: Any = safetensors._safe_open_handle  # type: ignore[attr-defined]


class _Missing(FileNotFoundError):
    """A missing file, with the words of the package safetensors."""

    def __str__(self) -> str:
        return f"{self.strerror}: {os.fsdecode(self.filename)}"


class safe_open(tensors.safe_open):  # noqa: N801 - the package safetensors has this name
    """`safe_open` of readpath for one file. It cannot be pickled, as in the package safetensors.

    After `with`, all methods raise `SafetensorError`.
    For frameworks other than NumPy and torch, the result is an object of the installed package.
    """

    _is_closed = False

    def __new__(cls, filename: PathLike, framework: str, device: Any = "cpu", *, backend: str = "mmap") -> Any:
        """Creates an object of this class, or of the installed package for other frameworks."""
        if framework not in FRAMEWORKS:
            return original_safe_open(filename, framework, device, backend=backend)
        return super().__new__(cls)

    def __init__(
        self, filename: PathLike, framework: Framework, device: Any = "cpu", *, backend: tensors.Backend = "mmap"
    ) -> None:
        is_numpy = framework in ("np", "numpy")
        self._slice_type = StrictSlice if is_numpy else TorchSlice
        try:
            super().__init__(filename, framework, _device_named(device), backend=backend)
        except FileNotFoundError as error:
            raise _Missing(error.errno, error.strerror, error.filename) from None

    def keys(self) -> list[str]:
        self._check_open()
        return super().keys()

    def offset_keys(self) -> list[str]:
        self._check_open()
        return super().offset_keys()

    def metadata(self) -> dict[str, str] | None:
        self._check_open()
        return super().metadata()

    def _file(self, name: str) -> LocalTensors | OtherTensors:
        self._check_open()
        return super()._file(name)

    def _close(self) -> None:
        self._is_closed = True
        super()._close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise error_of(ValueError, "File is closed")

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("cannot pickle a 'safe_open' object: open the file in the other process")


class _safe_open_handle(safe_open):  # noqa: N801 - the package safetensors has this name
    """As `safe_open`, of an open file: an object with `fileno`, or with `read` and `seek`."""

    def __new__(cls, f: Any, framework: str, device: Any = "cpu", *, backend: str = "mmap") -> Any:
        """Creates an object of this class, or of the installed package for other frameworks."""
        if framework not in FRAMEWORKS:
            return original_safe_open_handle(f, framework, device, backend=backend)
        return object.__new__(cls)  # `f` is no path: not by the parent's `__new__`

    def __init__(
        self, f: Any, framework: Framework, device: Any = "cpu", *, backend: tensors.Backend = "mmap"
    ) -> None:
        self._given = f
        name = getattr(f, "name", None)
        super().__init__(name if isinstance(name, str) else repr(f), framework, device, backend=backend)

    def _opened(self, given: str | bytes, path: str | bytes, backend: str, options: dict[str, Any]) -> Any:
        """Opens the given file object: over its descriptor if it is a regular file, otherwise by its reads."""
        file = _local_descriptor(self._given)
        if file is None:
            return OtherTensors(given, SeekedFile(self._given))
        path = f"/proc/self/fd/{file}"
        return LocalTensors(path, given) if backend == "mmap" else OtherTensors(given, open(path))


def _device_named(device: Any) -> str:
    """Returns torch's name of a device. A number is a CUDA device, as in the package safetensors."""
    if device is None:
        return "cpu"
    return f"cuda:{device}" if isinstance(device, int) else str(device)


def _local_descriptor(file: Any) -> int | None:
    """Returns the descriptor of a file object over a regular file, or None for other objects."""
    try:
        descriptor: int = file.fileno()
    except (AttributeError, OSError):
        return None
    return descriptor if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
