"""Tensors in the memory of a device: reads into reused host buffers, and copies meanwhile.

Several threads each have a host buffer: one reads a piece of a file while the device copies those of others.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from readpath.tensor_frameworks import Place, Tensor

BUFFERS = 4
"""Number of host buffers, each with a thread: a copy out of the page cache has about a quarter of a bus's rate."""

BUFFER_BYTES = 16 << 20

ReadInto = Callable[[int, memoryview], None]
"""Fills a buffer with the bytes of a file from an offset on, or raises OSError."""


class Device:
    """A device that copies from host memory by itself."""

    def host_buffer(self, size: int) -> memoryview:
        """Allocates host memory that the device can copy from."""
        raise NotImplementedError

    def empty(self, place: Place) -> Any:
        """Allocates the memory of a tensor on the device."""
        raise NotImplementedError

    def start_copy(self, buffer: memoryview, size: int, memory: Any, offset: int) -> Any:
        """Starts the copy of the first `size` bytes of a host buffer to byte `offset` of a tensor's memory."""
        raise NotImplementedError

    def wait(self, copy: Any) -> None:
        """Waits for the end of a copy. Other threads run meanwhile."""
        raise NotImplementedError

    def tensor(self, memory: Any, place: Place) -> Tensor:
        """Returns the tensor over its filled memory."""
        raise NotImplementedError


class DeviceLoader:
    """Loads tensors to a device. The host buffers are allocated once. Loads of several threads take turns."""

    def __init__(self, device: Device, buffers: int = BUFFERS, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._device = device
        self._buffer_bytes = buffer_bytes
        self._count = buffers
        self._buffers: list[memoryview] = []
        self._turn = threading.Lock()

    def load(self, requests: list[tuple[ReadInto, Place]]) -> list[Tensor]:
        """Loads tensors, of one file or several, and returns them in this order. All copies have ended then.

        Raises the first error of a read or copy, after the copies in flight have ended.
        """
        with self._turn:
            while len(self._buffers) < self._count:
                self._buffers.append(self._device.host_buffer(self._buffer_bytes))
            memories = [self._device.empty(place) for _, place in requests]
            pieces = _Pieces(requests, memories, self._buffer_bytes)
            # Taken by this load until its threads have ended: a thread may fill its buffer late.
            buffers, self._buffers = self._buffers, []
            threads = [
                threading.Thread(target=self._copy_pieces, args=(pieces, buffer))
                for buffer in buffers
            ]
            try:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            except BaseException:
                # Ctrl-C, or a limit of threads: the threads end after their piece.
                pieces.fail(None)
                for thread in threads:
                    # A thread that is not alive yet will get no piece.
                    if thread.is_alive():
                        thread.join()
                self._buffers = buffers
                raise
            self._buffers = buffers
            if pieces.error is not None:
                raise pieces.error
            places = [place for _, place in requests]
            return [self._device.tensor(memory, place) for memory, place in zip(memories, places, strict=True)]

    def _copy_pieces(self, pieces: _Pieces, buffer: memoryview) -> None:
        """Reads pieces into a host buffer and copies each to the device, until none is left or a thread fails.

        The copy of a piece goes on while the next one is taken, and ends before the buffer is filled again.
        """
        copy: Any = None
        try:
            while (piece := pieces.next()) is not None:
                read_into, file_offset, memory, offset, size = piece
                if copy is not None:
                    self._device.wait(copy)
                    copy = None
                read_into(file_offset, buffer[:size])
                copy = self._device.start_copy(buffer, size, memory, offset)
        except BaseException as error:
            pieces.fail(error)
        finally:
            if copy is not None:
                try:
                    self._device.wait(copy)
                except BaseException as error:
                    pieces.fail(error)


_Piece = tuple[ReadInto, int, Any, int, int]
"""The read, the offset in the file, the tensor's memory, the offset in it, and the number of bytes."""


class _Pieces:
    """The pieces of a load that no thread has taken."""

    def __init__(self, requests: list[tuple[ReadInto, Place]], memories: list[Any], piece_bytes: int) -> None:
        """`memories`: the device's memory of the tensor of each request."""
        self.error: BaseException | None = None
        self._is_failed = False
        self._lock = threading.Lock()
        self._rest = self._split(requests, memories, piece_bytes)

    @staticmethod
    def _split(requests: list[tuple[ReadInto, Place]], memories: list[Any], piece_bytes: int) -> Iterator[_Piece]:
        """Yields the pieces of all tensors in order, each of at most `piece_bytes`."""
        for (read_into, place), memory in zip(requests, memories, strict=True):
            for at in range(0, place.size, piece_bytes):
                yield read_into, place.offset + at, memory, at, min(piece_bytes, place.size - at)

    def next(self) -> _Piece | None:
        """Takes the next piece. None after the last one and after a failure."""
        with self._lock:
            return None if self._is_failed else next(self._rest, None)

    def fail(self, error: BaseException | None) -> None:
        """Ends the load: no thread gets another piece. The first error is kept; None ends it without one."""
        with self._lock:
            self._is_failed = True
            self.error = self.error or error


class CudaDevice(Device):
    """A CUDA or ROCm device of torch: page-locked host buffers, and a stream for the copies."""

    def __init__(self, name: str) -> None:
        import torch

        self._torch: Any = torch
        self._device: Any = torch.device(name)
        self._stream: Any = torch.cuda.Stream(self._device)
        # The memory of a host buffer is freed with its tensor.
        self._pinned: dict[int, Any] = {}

    def host_buffer(self, size: int) -> memoryview:
        """Allocates page-locked memory, which lives as long as this object."""
        pinned = self._torch.empty(size, dtype=self._torch.uint8, pin_memory=True)
        buffer = memoryview((ctypes.c_char * size).from_address(pinned.data_ptr())).cast("B")
        self._pinned[id(buffer)] = pinned
        return buffer

    def empty(self, place: Place) -> Any:
        """Allocates the memory of a tensor. Later copies wait until the program's stream has left it."""
        memory = self._torch.empty(place.size, dtype=self._torch.uint8, device=self._device)
        # The memory may have been freed by work that the program's stream has not done yet.
        self._stream.wait_stream(self._torch.cuda.current_stream(self._device))
        return memory

    def start_copy(self, buffer: memoryview, size: int, memory: Any, offset: int) -> Any:
        """Starts a copy on the stream of this object. Returns the event of its end."""
        end = self._torch.cuda.Event()
        with self._torch.cuda.stream(self._stream):
            memory[offset : offset + size].copy_(self._pinned[id(buffer)][:size], non_blocking=True)
            end.record(self._stream)
        return end

    def wait(self, copy: Any) -> None:
        copy.synchronize()

    def tensor(self, memory: Any, place: Place) -> Tensor:
        """Returns the bytes of `memory` as a tensor of the type and shape of `place`."""
        from readpath.tensor_frameworks import torch_type

        kind, shape = torch_type(self._torch, place)
        if place.size == 0:
            return self._torch.empty(shape, dtype=kind, device=self._device)
        return memory.view(kind).reshape(shape)


@cache
def cuda_loader(name: str) -> DeviceLoader:
    """Returns the loader of a CUDA device, with its host buffers."""
    return DeviceLoader(CudaDevice(name))
