"""How many bytes an operation carries out of a rank and into it, by the operation's meaning.

An algorithm may send more or less than that: a ring, a tree and shared memory differ. Bytes of
objects, of coalesced tensors and of uneven blocks that a record does not know count as 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from aiodist.observe.recorder import Message, Record


class Volume(NamedTuple):
    """Bytes that a rank gives to other ranks, and bytes that it gets from them."""

    sent: int
    received: int


_NOTHING = Volume(0, 0)


def volume(record: Record, rank: int) -> Volume:
    """Return the bytes of the operation of ``record`` for global ``rank``, one of its group."""
    what = record.what
    if isinstance(what, tuple):
        message = Message(*what)
        nbytes = max(0, message.nbytes)
        return Volume(nbytes, 0) if message.operation.startswith("send") else Volume(0, nbytes)
    if what.dtype is None or what.operation.endswith("_coalesced"):
        return _NOTHING
    ranks = record.group.ranks
    others = len(ranks) - 1
    count = max(0, what.count)
    own = count if what.shape is None else math.prod(what.shape)
    is_root = what.root >= 0 and ranks[what.root] == rank
    sent = received = 0
    match what.operation:
        case "all_reduce":
            sent = received = count
        case "broadcast":
            sent, received = (count, 0) if is_root else (0, count)
        case "reduce":
            sent, received = (0, count) if is_root else (count, 0)
        case "gather":
            sent, received = (0, own * others) if is_root else (own, 0)
        case "scatter":
            sent, received = (own * others, 0) if is_root else (0, own)
        case "all_gather":
            sent, received = own, _of_others(count, own, others)
        case "reduce_scatter":
            sent, received = _of_others(count, own, others), own
        case "all_to_all":
            sent = received = own * others // len(ranks)
    size = what.dtype.itemsize if others else 0
    return Volume(sent * size, received * size)


def _of_others(count: int, own: int, others: int) -> int:
    """Return the elements of the other ranks' blocks. ``count``: of all blocks, or of one."""
    return count - own if count > own else own * others
