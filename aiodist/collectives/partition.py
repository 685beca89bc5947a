"""How data is cut into blocks for ranks and segments for pipelines; slots of scratch memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from aiodist.collectives.reduction_protocol import Scratch

CHUNK = 512 * 1024
"""Bytes of one pipelined message, where the selection names no other size."""

WINDOW = 4
"""How many chunks of a pipeline are on their way to a rank at once.

Scratch memory of a pipeline is at most ``2 * WINDOW`` chunks, whatever the size of the data.
"""

_ALIGN = 64  # slots start on cache lines, which suits every element type


def cut(data: memoryview, itemsize: int, parts: int) -> list[memoryview]:
    """``parts`` consecutive views of ``data``: whole elements, as even as can be, longer first.

    Views are empty where there are fewer elements than parts.
    """
    starts = offsets_of(lengths_of_cut(len(data), itemsize, parts))
    return [data[start:end] for start, end in pairwise(starts)]


def stripes_in_pieces(
    data: memoryview, itemsize: int, columns: int, ranks: int, piece: int
) -> list[list[memoryview]]:
    """``data`` in pieces, each of them in a stripe for each of ``columns`` ranks; the rest get none.

    A stripe has about ``piece`` bytes at the most.
    """
    parts = cut(data, itemsize, segments_of(len(data), piece * columns))
    return [cut(part, itemsize, columns) + [part[:0]] * (ranks - columns) for part in parts]


def lengths_of_cut(nbytes: int, itemsize: int, parts: int) -> list[int]:
    """How long the views of `cut` are for ``nbytes``."""
    length, longer = divmod(nbytes // itemsize, parts)
    return [itemsize * (length + (part < longer)) for part in range(parts)]


def segments_of(nbytes: int, chunk: int) -> int:
    """How many messages of about ``chunk`` bytes carry ``nbytes``; at least one, also for 0."""
    return max(1, -(-nbytes // chunk))


def slots(scratch: Scratch, count: int, nbytes: int) -> list[memoryview]:
    """``count`` separate pieces of scratch memory of ``nbytes`` each."""
    stride = -(-nbytes // _ALIGN) * _ALIGN
    memory = scratch(count * stride)
    return [memory[i * stride : i * stride + nbytes] for i in range(count)]


def offsets_of(lengths: Sequence[int]) -> list[int]:
    """Where blocks of these lengths start when they lie one after another; then their total."""
    return [0, *accumulate(lengths)]
