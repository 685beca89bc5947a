"""Tensors, arrays and their small relatives inside objects.

`TensorExtension` is an extension of the object codec in `aiodist.wire.object_codec`; that room and
this one do not know each other, so the agreement is structural.
"""

from __future__ import annotations

import re
import struct
import sys
from math import prod
from typing import Any

import numpy as np

from aiodist.errors import ProtocolError
from aiodist.tensors.codes import ARRAY, NUMPY_DTYPE, SCALAR, TENSOR, TORCH_DEVICE, Encoded
from aiodist.tensors.meta import MAX_DIMENSIONS

# What numpy may be asked to parse: numbers, bytes, text, dates and raw bytes, of either byte order.
_DESCRIPTION = re.compile(
    r"(\?|[<>|]?[bBhHiIlLqQefdgFDGcuSUVmMO]\d{0,9}(\[\d{0,9}[A-Za-z]{1,7}\])?)"
)
_LAST_OWN_NUM = 23  # of numpy's own types; later ones belong to other packages


class TensorExtension:
    """numpy arrays, scalars and dtypes; torch tensors, parameters, sizes, dtypes and devices.

    Arrays come back writable, in C order, with dtype and shape; tensors as leaves, on the CPU,
    with dtype, shape and requires_grad. torch is imported when the first of its objects comes.
    """

    def encode(self, obj: Any) -> Encoded | None:
        """As the codec's Extension; a TypeError or ValueError says why ``obj`` cannot travel."""
        if type(obj) is np.ndarray:
            return _encode_array(obj)
        # A subclass is none of these: it would come back as its base.
        if isinstance(obj, np.generic) and type(obj) is obj.dtype.type:
            return _encode_scalar(obj)
        if isinstance(obj, np.dtype):
            return NUMPY_DTYPE, _describe(obj, objects=True), None
        # A torch object exists only where torch has been imported already.
        if "torch" in sys.modules:
            from aiodist.tensors import torch_codec

            return torch_codec.encode(obj)
        return None

    def decode(self, code: int, data: bytes, memory: memoryview | None, owned: bool) -> Any:
        """As the codec's Extension; ProtocolError for bytes that no `encode` makes."""
        if code == ARRAY:
            return _decode_array(data, memory, owned)
        if code == SCALAR:
            return _decode_scalar(data)
        if code == NUMPY_DTYPE:
            return _parse(data, objects=True)[0]
        if TENSOR <= code <= TORCH_DEVICE:
            from aiodist.tensors import torch_codec

            return torch_codec.decode(code, data, memory, owned)
        return NotImplemented


def _encode_array(array: np.ndarray[Any, Any]) -> Encoded:
    shape = struct.pack(f"<{array.ndim}Q", *array.shape)
    data = _describe(array.dtype) + shape
    return ARRAY, data, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _decode_array(data: bytes, memory: memoryview | None, owned: bool) -> np.ndarray[Any, Any]:
    dtype, tail = _parse(data)
    ndim = len(tail) // 8
    if memory is None or len(tail) % 8 or ndim > MAX_DIMENSIONS:
        raise ProtocolError("an array's description has the wrong length")
    shape = struct.unpack(f"<{ndim}Q", tail)
    if prod(shape) * dtype.itemsize != len(memory):
        raise ProtocolError(f"{len(memory)} bytes are no array of shape {shape}")
    flat = np.frombuffer(memory, np.uint8)
    return (flat if owned else flat.copy()).view(dtype).reshape(shape)


def _encode_scalar(scalar: np.generic) -> Encoded:
    # An array would strip zeros off the end of text and bytes.
    if isinstance(scalar, np.str_):
        return SCALAR, b"\x01U" + str(scalar).encode("utf-8", "surrogatepass"), None
    if isinstance(scalar, np.bytes_):
        return SCALAR, b"\x01S" + bytes(scalar), None
    return SCALAR, _describe(scalar.dtype) + scalar.tobytes(), None


def _decode_scalar(data: bytes) -> Any:
    if data[:2] == b"\x01U":
        return np.str_(data[2:].decode("utf-8", "surrogatepass"))
    if data[:2] == b"\x01S":
        return np.bytes_(data[2:])
    dtype, tail = _parse(data)
    if len(tail) != dtype.itemsize:
        raise ProtocolError(f"{len(tail)} bytes are no {dtype} scalar")
    return np.frombuffer(tail, dtype).copy()[0]


def _describe(dtype: np.dtype[Any], objects: bool = False) -> bytes:
    """The dtype as a byte of length and text that numpy parses back to the very same dtype."""
    if dtype.names is not None or dtype.subdtype is not None:
        raise TypeError("structured numpy types do not travel; send the fields as arrays")
    if dtype.hasobject and not objects:
        raise TypeError("arrays of Python objects do not travel; send array.tolist()")
    if dtype.num > _LAST_OWN_NUM or (dtype.itemsize == 0 and not objects):
        raise TypeError(f"numpy dtype {dtype} does not travel")
    text = dtype.str
    # C's long and long long are two dtypes of one width, and dtype.str knows the first only.
    if np.dtype(text).char != dtype.char:
        text = text[0] + dtype.char
    return bytes((len(text),)) + text.encode("ascii")


def _parse(data: bytes, objects: bool = False) -> tuple[np.dtype[Any], bytes]:
    """The dtype at the start of ``data``, and the bytes after it."""
    end = 1 + data[0] if data else 0
    text = data[1:end].decode("ascii", "replace")
    if len(text) != end - 1 or not _DESCRIPTION.fullmatch(text):
        raise ProtocolError(f"{text!r} is no numpy dtype")
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError) as exc:
        raise ProtocolError(f"{text!r} is no numpy dtype") from exc
    if not objects and (dtype.hasobject or dtype.itemsize == 0):
        raise ProtocolError(f"numpy dtype {text!r} does not travel")
    return dtype, data[end:]
