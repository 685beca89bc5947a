"""numpy arrays as bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from aiodist.errors import InvalidUsageError
from aiodist.tensors.dtypes import DType, dtype_of_numpy_num
from aiodist.tensors.memory_overlap import overlaps_itself
from aiodist.tensors.raw_memory import bytes_at
from aiodist.tensors.tensor_signature import M, TensorSignature

# Types whose memoryview can be cast: not complex numbers and long doubles.
_CASTABLE = frozenset(np.dtype(char).num for char in "?bBhHiIlLqQefd")
_addressof = ctypes.addressof
_first_byte: Callable[[Any], ctypes.c_ubyte] = ctypes.c_ubyte.from_buffer

Array = np.ndarray[Any, np.dtype[Any]]


def open_array(
    array: Array, name: str, writable: bool, load: bool
) -> tuple[Array, DType, memoryview, Array | None]:
    """(owner, dtype, bytes in C order, staged copy or None); arguments as in `buffer_of`."""
    found = dtype_of_numpy_num(array.dtype.num)
    if found is None or not array.dtype.isnative:
        raise _unusable_dtype(array, name)
    if type(array) is not np.ndarray:
        array = _plain(array, name)
    flags = array.flags
    if writable and not flags.writeable:
        raise InvalidUsageError(
            f"{name} is a read-only array and would be written; pass a copy: {name}.copy()"
        )
    if flags.c_contiguous:
        return array, found, _bytes_of(array), None
    if writable and overlaps_itself(array.shape, array.strides, array.itemsize):
        raise InvalidUsageError(
            f"{name} has elements that share memory (a broadcast array?), so it cannot be "
            f"written; pass a copy: {name}.copy()"
        )
    staged = np.empty(array.shape, array.dtype)
    if load:
        np.copyto(staged, array)
    return array, found, _bytes_of(staged), staged


def signature_of(
    array: Array, nbytes: int, make: Callable[[memoryview], M]
) -> TensorSignature[M] | None:
    """What arrays like ``array``, of ``nbytes``, have in common; None for a subclass or no bytes."""
    if type(array) is not np.ndarray or not nbytes:
        return None

    def open_at(array: Array, address: int) -> memoryview:
        return bytes_at(address, nbytes)

    return TensorSignature(_address_of, open_at, make)


def _address_of(array: Array) -> int:
    # Five times as fast as `array.ctypes.data`.
    try:
        return _addressof(_first_byte(array))
    except TypeError:  # read-only, or with gaps
        return 0


def assign(owner: Array, staged: Array) -> None:
    """Copy the staged elements into the caller's array."""
    np.copyto(owner, staged)


def empty(dtype: DType, shape: tuple[int, ...]) -> Array | None:
    """A new array, None where numpy has no such dtype."""
    found = dtype.numpy()
    return None if found is None else np.empty(shape, found)


def _bytes_of(array: Array) -> memoryview:
    if array.dtype.num in _CASTABLE and array.size:
        return array.data.cast("B")  # three times as fast as the general way
    # reshape first: a 0-d array cannot be viewed with another item size
    return array.reshape(-1).view(np.uint8).data


def _plain(array: Array, name: str) -> Array:
    """The same memory without the subclass (matrix, memmap, ...), whose methods may differ."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array and its mask would be lost; pass {name}.filled() "
            f"or {name}.data"
        )
    return array.view(np.ndarray)


def _unusable_dtype(array: Array, name: str) -> Exception:
    dtype = array.dtype
    if not dtype.isnative:
        return InvalidUsageError(
            f"{name} has byte order {dtype.str!r}, not this machine's; "
            f"pass {name}.astype({name}.dtype.newbyteorder('='))"
        )
    if dtype.hasobject:
        advice = "send Python objects with the object operations"
    elif dtype.kind in "mM":
        advice = f"pass {name}.view('int64')"
    elif dtype.names is not None or dtype.kind in "SUVT":
        advice = f"to move it, not to reduce it, pass its bytes: {name}.view('uint8')"
    else:
        same_size = f"{name}.view('uint{dtype.itemsize * 8}')"
        advice = f"pass a view with a dtype of numpy's own, {same_size}, or a torch tensor"
    kind = f"dtype {dtype.name}" if dtype.names is None else f"the structured dtype {dtype}"
    return InvalidUsageError(f"{name} has {kind}, which cannot travel; {advice}")
