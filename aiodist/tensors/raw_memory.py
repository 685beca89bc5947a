"""The memory at an address, as bytes."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import numpy as np


class _Memory(ctypes.Array[ctypes.c_ubyte]):
    """All bytes from an address on; a slice of it is one tensor's memory.

    Every memoryview keeps the instance, and with it what it is told to keep. Tensor.numpy() would keep
    the tensor, too, but it forbids resizing the tensor's storage for good, which FSDP needs; and numpy
    has no bfloat16. One type of unbounded length saves making a type for each length.
    """

    _type_ = ctypes.c_ubyte
    _length_ = sys.maxsize
    owner: object


_at: Callable[[int], _Memory] = _Memory.from_address
_addressof = ctypes.addressof
_first_byte: Callable[[memoryview], ctypes.c_ubyte] = ctypes.c_ubyte.from_buffer


def bytes_at(address: int, nbytes: int, owner: object = None) -> memoryview:
    """Return the ``nbytes`` bytes from ``address`` on. ``owner``: what they keep alive."""
    memory = _at(address)
    if owner is not None:
        memory.owner = owner
    return memoryview(memory)[:nbytes].cast("B")


def address_of(view: memoryview) -> int:
    """Return where the bytes of ``view`` begin; there must be some."""
    if view.readonly:
        return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
    return _addressof(_first_byte(view))
