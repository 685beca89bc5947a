"""Open the tensors of one operation for the native engine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from aiodist.tensors import Buffer, buffer_of


def open_buffer(tensor: Any, name: str, *, writable: bool) -> Buffer:
    """Return the memory of ``tensor``. A staged copy of it is not filled yet. Errors of `buffer_of`."""
    return buffer_of(tensor, name, writable=writable, load=False)


def are_staged(*buffers: Buffer) -> bool:
    """Return whether any is a copy, to be filled before or written back after an operation."""
    return any(buffer.is_staged for buffer in buffers)


def cut(buffers: Sequence[Buffer], lengths: Sequence[int]) -> list[memoryview]:
    """Return the bytes of ``buffers`` in parts of ``lengths``: one of each buffer, or all of one."""
    if len(buffers) == len(lengths):
        return [buffer.view for buffer in buffers]
    (whole,) = buffers
    return parts_of(lengths, whole.view)


def parts_of(lengths: Sequence[int], view: memoryview) -> list[memoryview]:
    """Return the parts of ``view`` that follow each other, of ``lengths``."""
    stops = list(accumulate(lengths))
    return [view[stop - length : stop] for stop, length in zip(stops, lengths, strict=True)]
