"""What a message says of its tensor, so that a receive without a buffer can make one.

Layout, little-endian: u8 kind (0 numpy, 1 torch), u8 dtype code, u8 number of dimensions, then
one u64 for each dimension.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from math import prod

from aiodist.errors import InvalidUsageError, ProtocolError
from aiodist.tensors.buffer import Buffer, Kind
from aiodist.tensors.dtypes import DType, dtype_of_code

MAX_DIMENSIONS = 64
"""numpy's limit. A tensor of torch may have more."""

_KINDS: tuple[Kind, Kind] = ("numpy", "torch")
_HEAD = struct.Struct("<BBB")
_MAX_BYTES = 1 << 62


def encode_meta(buffer: Buffer) -> bytes:
    """Kind, dtype and shape of ``buffer``: 3 bytes and 8 for each dimension."""
    return pack_meta(buffer.kind, buffer.dtype, buffer.shape)


@lru_cache(maxsize=1024)
def pack_meta(kind: Kind, dtype: DType, shape: tuple[int, ...]) -> bytes:
    """As `encode_meta`, from the three facts.

    Raises InvalidUsageError for more or larger dimensions than a receiver takes.
    """
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidUsageError(
            f"a tensor of {len(shape)} dimensions cannot be sent, only one of up to {MAX_DIMENSIONS}: "
            "reshape it"
        )
    if not _is_possible(dtype, shape):
        raise InvalidUsageError(
            f"a tensor of the shape {shape} cannot be sent: with dimensions of 1 in place of those of 0 it "
            f"would have more than {_MAX_BYTES} bytes"
        )
    return struct.pack(f"<BBB{len(shape)}Q", _KINDS.index(kind), dtype.code, len(shape), *shape)


def decode_meta(data: bytes | memoryview) -> tuple[Kind, DType, tuple[int, ...]]:
    """The inverse of `encode_meta`. Raises ProtocolError for anything it would not have made."""
    if len(data) < _HEAD.size:
        raise ProtocolError(f"a tensor description has at least 3 bytes, not {len(data)}")
    kind, code, ndim = _HEAD.unpack_from(data)
    if kind >= len(_KINDS):
        raise ProtocolError(f"tensor kind {kind} is neither numpy (0) nor torch (1)")
    dtype = dtype_of_code(code)
    if ndim > MAX_DIMENSIONS or len(data) != _HEAD.size + 8 * ndim:
        raise ProtocolError(f"a tensor description of {len(data)} bytes says {ndim} dimensions")
    shape = struct.unpack_from(f"<{ndim}Q", data, _HEAD.size)
    if not _is_possible(dtype, shape):
        raise ProtocolError(f"a tensor description has an impossible shape: {shape}")
    return _KINDS[kind], dtype, shape


def _is_possible(dtype: DType, shape: tuple[int, ...]) -> bool:
    # Dimensions of 0 do not excuse the others: strides are computed from all of them.
    return prod(size or 1 for size in shape) * dtype.itemsize <= _MAX_BYTES
