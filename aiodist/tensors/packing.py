"""Many tensors as one run of bytes, for coalesced operations."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.tensors.buffer import Buffer, scratch


def pack(buffers: Sequence[Buffer]) -> memoryview:
    """A new run of bytes: the buffers' bytes one after the other."""
    packed = scratch(sum(buffer.nbytes for buffer in buffers))
    start = 0
    for buffer in buffers:
        packed[start : start + buffer.nbytes] = buffer.view
        start += buffer.nbytes
    return packed


def unpack(view: memoryview, buffers: Sequence[Buffer]) -> None:
    """The inverse of `pack`: fill the buffers from ``view``, and write staged ones back.

    Raises ValueError, and writes nothing, when ``view`` is not as long as all buffers together.
    """
    total = sum(buffer.nbytes for buffer in buffers)
    if len(view) != total:
        raise ValueError(f"{len(view)} bytes cannot fill buffers of {total} bytes")
    start = 0
    for buffer in buffers:
        buffer.view[:] = view[start : start + buffer.nbytes]
        buffer.write_back()
        start += buffer.nbytes
