"""Private mappings of files without a descriptor for each.

`mmap.mmap` duplicates the descriptor for each mapping. A file of weights can have more tensors than
a process may have descriptors. Python 3.13 has the option `trackfd`; before, the system's `mmap` is
called by `ctypes`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from functools import cache
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

FAILED = ctypes.c_void_p(-1).value
"""Address that the system returns for a refused mapping."""


def private_mapping(file: int, size: int, offset: int) -> Buffer:
    """Maps a range of a file. Writes stay in the mapping, which ends with its last reference.

    Raises OSError if the system refuses it.
    """
    access = mmap.PROT_READ | mmap.PROT_WRITE
    if sys.version_info >= (3, 13):
        return mmap.mmap(file, size, mmap.MAP_PRIVATE, access, offset=offset, trackfd=False)
    map_memory, unmap_memory = _system_calls()
    address = map_memory(None, size, access, mmap.MAP_PRIVATE, file, offset)
    if address == FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_ubyte * size).from_address(address)
    # The memory stays for tensors that live until the end of the process.
    weakref.finalize(memory, unmap_memory, address, size).atexit = False
    # A view of plain bytes: the object itself exports no strides.
    return PickleBuffer(memory).raw()


@cache
def _system_calls() -> tuple[Any, Any]:
    """Returns the functions `mmap` and `munmap` of the system."""
    system = ctypes.CDLL(None, use_errno=True)
    map_memory, unmap_memory = system.mmap, system.munmap
    integer, length = ctypes.c_int, ctypes.c_size_t
    map_memory.argtypes = [ctypes.c_void_p, length, integer, integer, integer, ctypes.c_int64]
    map_memory.restype = ctypes.c_void_p
    unmap_memory.argtypes = [ctypes.c_void_p, length]
    return map_memory, unmap_memory
