"""Weights: tensors of safetensors files, by name."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Sequence
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from readpath.files import PathLike, is_url, open
from readpath.tensor_errors import error_of
from readpath.tensor_files import LocalTensors, OtherTensors
from readpath.tensor_frameworks import BITS_OF_PARTS, Framework, Maker, Place, Tensor, framework_named
from readpath.tensor_headers import shown
from readpath.tensor_prefetch import PlannedRange, PlannedReads, requests_of

if TYPE_CHECKING:
    from readpath.tensor_devices import DeviceLoader

Backend = Literal["mmap", "pread"]

Index = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]

PREFETCH_BYTES = 512 << 20
"""Default limit in bytes of a plan's tensors that are prefetched and not loaded yet."""


def load_file(
    path: PathLike | Sequence[PathLike],
    framework: Framework = "numpy",
    device: str = "cpu",
    *,
    backend: Backend = "mmap",
    **options: Any,
) -> dict[str, Tensor]:
    """Loads all tensors of one or several safetensors files, by name.

    - `framework`: `numpy`, or `pt` for torch.
    - `device`: torch's device for the tensors. Tensors on the `cpu` lie over a private mapping of the file. It must
      not change while they are used; writes to a tensor do not reach the file. Local files are copied to `cuda`
      through page-locked host buffers, during the reads. `cuda` without a number is the GPU that is current at the
      call. For `meta` only the headers are read.
    - `backend`: `mmap`, or `pread` for tensors in separate memory.
    - `options`: the options of `readpath.open`, including the options of a URL's storage.

    Each file is read in file order. Raises OSError if a file can't be opened or read. Raises ValueError (also a
    `SafetensorError`) if a file is not a complete safetensors file, or two files have a tensor of the same name.
    """
    with safe_open(path, framework, device, backend=backend, **options) as file:
        return file.get_tensors()


class TensorSlice:
    """A tensor whose parts are read by index."""

    def __init__(self, file: LocalTensors | OtherTensors, name: str, make: Maker, opened: safe_open) -> None:
        self._file, self._name, self._make, self._opened = file, name, make, opened
        self._place = file.places[name]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the open files and the name of the tensor."""
        return safe_open.get_slice, (self._opened, self._name)

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor."""
        return list(self._place.shape)

    def get_dtype(self) -> str:
        """The data type of the numbers, by its safetensors name."""
        return self._place.dtype

    def __getitem__(self, index: Index) -> Tensor:
        """Reads a part, indexed by integers and slices like an array; `[()]` and `[...]` read all of it.

        Raises TypeError for another index and for numbers that share a byte, IndexError outside the shape. Both are
        also a `SafetensorError`.
        """
        if self._is_whole(index):
            return self._make.whole(self._file.load_place(self._place, self._make))
        indices = self._indices(index)
        try:
            return self._part(indices)
        except IndexError as error:
            raise self._outside(error) from None

    def _place_of(self, index: Index) -> Place:
        """Returns the place of the adjacent rows of the first axis that a part needs."""
        if self._is_whole(index):
            return self._place
        indices = self._indices(index)
        try:
            return self._rows_place(indices[0])
        except IndexError as error:
            raise self._outside(error) from None

    @staticmethod
    def _is_whole(index: Index) -> bool:
        return all(one is ... for one in (index if isinstance(index, tuple) else (index,)))

    def _indices(self, index: Index) -> tuple[Any, ...]:
        """Returns the checked indices of the axes. Raises TypeError for an unusable one, and for packed numbers."""
        if self._place.dtype in BITS_OF_PARTS:
            raise error_of(TypeError, f"{self._name!r} has numbers that share bytes: get_tensor gives it whole")
        return tuple(self._checked(one) for one in (index if isinstance(index, tuple) else (index,)))

    def _outside(self, error: IndexError) -> Exception:
        return error_of(IndexError, f"{self._name!r} of the shape {shown(list(self._place.shape))}: {error}")

    def _checked(self, one: Any) -> Any:
        """Returns one part of an index: a slice, an ellipsis, or an integer. Raises TypeError for another one."""
        if isinstance(one, slice) or one is ...:
            return one
        try:
            return operator.index(one)
        except TypeError:
            raise error_of(TypeError, f"{self._name!r}: the index {one!r}; give integers, slices or an ellipsis") from None

    def _rows_place(self, head: Any) -> Place:
        """Returns the place of the rows that an index of the first axis needs."""
        first, count = self._rows(head)
        rows = max(1, self._place.shape[0]) if self._place.shape else 1
        row_bytes = self._place.size // rows
        return Place(
            self._place.dtype,
            (count, *self._place.shape[1:]) if self._place.shape else (),
            self._place.offset + first * row_bytes,
            count * row_bytes,
        )

    def _part(self, indices: tuple[Any, ...]) -> Tensor:
        """Reads the adjacent rows of the first axis that contain the part, and indexes these.

        Raises IndexError outside the shape.
        """
        first, _ = self._rows(indices[0])
        part = self._rows_place(indices[0])
        tensor = self._file.load_place(part, self._make)
        if not self._place.shape:
            return tensor[indices]
        # The index of the first axis, relative to the first row that was read.
        head, *rest = indices
        if isinstance(head, slice):
            start, stop, step = head.indices(self._place.shape[0])
            ends = (start - first, stop - first)
            # A backward slice that includes row 0 ends at -1, which would count from the end.
            head = slice(ends[0], ends[1] if ends[1] >= 0 else None, step)
        elif isinstance(head, int):
            head = 0
        return self._make.whole(tensor[(head, *rest)])

    def _rows(self, head: Any) -> tuple[int, int]:
        """Returns the first row that an index of the first axis needs, and the number of rows."""
        if not self._place.shape:
            return 0, 1
        rows = self._place.shape[0]
        if isinstance(head, int):
            at = head + rows if head < 0 else head
            if not 0 <= at < rows:
                raise IndexError(f"row {head} of {rows}")
            return at, 1
        taken = range(rows)[head] if isinstance(head, slice) else range(rows)
        return (min(taken), max(taken) + 1 - min(taken)) if len(taken) else (0, 0)


class safe_open:  # noqa: N801 - the package safetensors has this name
    """Open safetensors files, compatible with the class `safe_open` of the package safetensors.

    - `filename`: one path or URL, or several, whose tensors appear as the tensors of one file.
    - `backend`: `mmap` maps the tensors of a local file, `pread` copies them to separate memory.
    - `options`: the options of `readpath.open`. A file with options is always copied.

    Each tensor is read whole when it is requested. `get_tensors` reads many in file order, independent of the order
    of their names. Files close when this object is freed. After pickling, the files are reopened by their paths.
    """

    _slice_type = TensorSlice

    def __init__(
        self,
        filename: PathLike | Sequence[PathLike],
        framework: Framework = "numpy",
        device: str = "cpu",
        *,
        backend: Backend = "mmap",
        **options: Any,
    ) -> None:
        self._files: list[LocalTensors | OtherTensors] = []
        self._of: dict[str, LocalTensors | OtherTensors] = {}
        self._planned: PlannedReads | None = None
        self._make = framework_named(framework, device)
        if backend not in ("mmap", "pread"):
            raise error_of(ValueError, f"backend {backend!r}: give 'mmap' or 'pread'")
        is_one = isinstance(filename, (str, bytes, os.PathLike))
        several: Sequence[Any] = [filename] if is_one else list(filename)  # type: ignore[arg-type]
        paths = [name if is_url(name) else os.path.abspath(os.fspath(name)) for name in several]
        self._arguments = (paths, framework, device, backend, options)
        try:
            for given, name in zip(several, paths, strict=True):
                self._add(given if is_url(given) else os.fspath(given), name, backend, options)
        except BaseException:
            self._close()
            raise

    def _add(self, given: str | bytes, path: str | bytes, backend: str, options: dict[str, Any]) -> None:
        """Opens a file by the `given` name, which errors contain, or by its absolute `path` or URL.

        Raises ValueError for a tensor that another file has too.
        """
        file = self._opened(given, path, backend, options)
        self._files.append(file)
        for tensor in file.places:
            if (other := self._of.setdefault(tensor, file)) is not file:
                text = f"tensor {tensor!r} is in {other.name!r} and in {file.name!r}"
                raise error_of(ValueError, text)

    def _opened(
        self, given: str | bytes, path: str | bytes, backend: str, options: dict[str, Any]
    ) -> LocalTensors | OtherTensors:
        """Opens a file: mapped if it is local and has no options, otherwise copied."""
        if backend == "mmap" and not options and not is_url(path):
            return LocalTensors(given)
        return OtherTensors(given, open(path, **options))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the absolute paths and the options."""
        return _opened_again, self._arguments

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return sorted(self._of)

    def offset_keys(self) -> list[str]:
        """The names of the tensors in file order."""
        return [name for file in self._files for name in file.in_order]

    def metadata(self) -> dict[str, str] | None:
        """The metadata in the header of the first file, or None."""
        return self._files[0].metadata if self._files else None

    def get_tensor(self, name: str) -> Tensor:
        """Reads one tensor."""
        return self.get_tensors([name])[name]

    def get_tensors(self, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Reads the named tensors (default: all) in file order."""
        requested = self.offset_keys() if names is None else list(names)
        # Names by the identity of their file.
        names_of: dict[int, list[str]] = {}
        for name in requested:
            names_of.setdefault(id(self._file(name)), []).append(name)
        if (loader := self._make.loader) is not None and all(isinstance(file, LocalTensors) for file in self._files):
            return self._load_to_device(loader, requested)
        tensors: dict[str, Tensor] = {}
        for file in self._files:
            if in_file := names_of.get(id(file)):
                tensors |= file.load(sorted(in_file, key=lambda name: file.places[name].offset), self._make)
        return {name: tensors[name] for name in requested}

    def _load_to_device(self, loader: DeviceLoader, requested: list[str]) -> dict[str, Tensor]:
        """Loads tensors of all files together, in the order of their files and offsets."""
        order = {id(file): at for at, file in enumerate(self._files)}
        files = {name: cast(LocalTensors, self._file(name)) for name in requested}
        names = sorted(files, key=lambda name: (order[id(files[name])], files[name].places[name].offset))
        tensors = loader.load([(files[name].read_into, files[name].places[name]) for name in names])
        found = dict(zip(names, tensors, strict=True))
        return {name: found[name] for name in requested}

    def get_slice(self, name: str) -> TensorSlice:
        """A tensor to index: `get_slice(name)[10:20, :5]` reads only these parts, `[()]` reads all of it."""
        return self._slice_type(self._file(name), name, self._make, self)

    def prefetch(self, plan: Iterable[str | tuple[str, Index]], *, ahead_bytes: int = PREFETCH_BYTES) -> None:
        """Starts to read the tensors and parts of a plan in its order, and returns at once.

        - `plan`: names of tensors in the order of their use, and pairs of a name and the index of a part, as
          `get_slice` takes it.
        - `ahead_bytes`: maximum number of prefetched bytes of all files that are not loaded yet. A loaded tensor
          makes room for the next ones.

        Local files are prefetched into the kernel page cache by a thread. Of the first `ahead_bytes` of the plan, the
        bytes of other files are prefetched into the memory of their paths. A further plan replaces the last one. An
        error of the device is raised by the load.

        Raises KeyError for an unknown tensor, IndexError and TypeError as `get_slice`; all are `SafetensorError`.
        """
        if ahead_bytes <= 0:
            raise ValueError(f"ahead_bytes={ahead_bytes}: give a positive number of bytes")
        index_of = {id(file): index for index, file in enumerate(self._files)}
        ranges: list[PlannedRange] = []
        for item in plan:
            name, part = (item, ...) if isinstance(item, str) else item
            place = self.get_slice(name)._place_of(part)
            ranges.append(PlannedRange(index_of[id(self._file(name))], place.offset, place.offset + place.size))
        handles = [file.handle() if isinstance(file, LocalTensors) else None for file in self._files]
        planned = PlannedReads(ranges, [file.piece_bytes for file in self._files], ahead_bytes)
        # Before a change of the last plan: there may be too few descriptors.
        requests, end = requests_of(
            handle if at in planned.files else None for at, handle in enumerate(handles)
        )
        try:
            self._follow(planned)
        except BaseException:
            end()
            raise
        if any(request is not None for request in requests):
            planned.start(requests, end)

    def _follow(self, planned: PlannedReads) -> None:
        """Replaces the last plan. Starts the prefetch of files that are not local."""
        if self._planned is not None:
            self._planned.stop()
        self._planned = planned
        first: dict[int, list[tuple[int, int]]] = {}
        for at, begin, end in planned.first_ranges():
            first.setdefault(at, []).append((begin, end))
        for at, file in enumerate(self._files):
            file.join_plan(planned, at)
            if isinstance(file, OtherTensors):
                file.prefetch_many(first.get(at, []))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        """Closes the files; loaded tensors stay valid."""
        for file in self._files:
            file.close()

    def _file(self, name: str) -> LocalTensors | OtherTensors:
        """The file with a tensor. Raises KeyError (also a `SafetensorError`) if there is none."""
        if (file := self._of.get(name)) is None:
            raise error_of(KeyError, f"there is no tensor {name!r} in {[file.name for file in self._files]}")
        return file


def _opened_again(
    paths: list[Any], framework: Framework, device: str, backend: Backend, options: dict[str, Any]
) -> safe_open:
    """Reopens the files of a pickled `safe_open`. Local names are absolute paths."""
    return safe_open(paths, framework, device, backend=backend, **options)
