"""How many bytes an operation carries out of a rank and into it, by the operation's meaning.

An algorithm may send more or less than that: a ring, a tree and shared memory differ. Bytes of
objects, of sparse and coalesced tensors and of uneven blocks that a record does not know count as 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from aiodist.observe.recorder import Message, Operation, Record


class Volume(NamedTuple):
    """Bytes that a rank gives to other ranks, and bytes that it gets from them."""

    sent: int
    received: int


class Flow(NamedTuple):
    """Bytes that rank ``to`` got from rank ``source``."""

    source: int
    to: int
    nbytes: float


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
    count = max(0, what.count)
    own = count if what.shape is None else math.prod(what.shape)
    is_root = what.root >= 0 and ranks[what.root] == rank
    size = what.dtype.itemsize
    return _of_collective(what.operation, len(ranks), is_root, count * size, own * size)


def flows(operation: Operation, rank: int, ranks: Sequence[int]) -> Iterator[Flow]:
    """Yield where the bytes of an operation of ``rank`` came from, or where its message went.

    ``ranks``: of its group. What a rank gets in a collective counts as equal parts from each rank
    that has a share in it.
    """
    nbytes = max(0, operation.nbytes)
    if operation.sequence < 0:
        if operation.operation.startswith("send") and nbytes:
            yield Flow(rank, operation.peer, nbytes)
        return
    root = ranks[operation.root] if 0 <= operation.root < len(ranks) else -1
    in_blocks = operation.operation in ("all_gather", "reduce_scatter") and operation.count >= 0
    own = nbytes // len(ranks) if in_blocks else nbytes
    _, received = _of_collective(operation.operation, len(ranks), root == rank, nbytes, own)
    sources = [root] if operation.operation in ("broadcast", "scatter") else ranks
    others = [source for source in sources if source != rank]
    for source in others if received else ():
        yield Flow(source, rank, received / len(others))


def _of_collective(name: str, size: int, is_root: bool, total: int, own: int) -> Volume:
    """``total``: bytes of the tensor, or of all blocks. ``own``: of this rank's block."""
    others = size - 1
    if not others:
        return _NOTHING
    match name:
        case "all_reduce":
            return Volume(total, total)
        case "broadcast":
            return Volume(total, 0) if is_root else Volume(0, total)
        case "reduce":
            return Volume(0, total) if is_root else Volume(total, 0)
        case "gather":
            return Volume(0, own * others) if is_root else Volume(own, 0)
        case "scatter":
            return Volume(own * others, 0) if is_root else Volume(0, own)
        case "all_gather":
            return Volume(own, _of_others(total, own, others))
        case "reduce_scatter":
            return Volume(_of_others(total, own, others), own)
        case "all_to_all":
            return Volume(own * others // size, own * others // size)
    return _NOTHING


def _of_others(total: int, own: int, others: int) -> int:
    """Return the bytes of the other ranks' blocks. ``total``: of all blocks, or of one."""
    return total - own if total > own else own * others
