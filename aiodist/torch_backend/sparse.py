"""The sum of sparse tensors, whose sizes each rank knows only of its own."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import torch

from aiodist.collectives.all_gather_ring import all_gather_new
from aiodist.errors import InvalidUsageError
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.fingerprint import SPARSE_ALL_REDUCE, Fingerprint
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.tensor_checks import digest_as_root
from aiodist.groups.work import Work
from aiodist.tensors import buffer_of
from aiodist.types import RedOpType, ReduceOp


def all_reduce_sparse(
    group: GroupEngine, tensor: torch.Tensor, op: ReduceOp, timeout: float | None
) -> Work[None]:
    """Sum a sparse COO tensor over all ranks, in place; it comes out coalesced.

    All ranks pass equal shapes and numbers of sparse dimensions, with as many entries as each has.
    Otherwise all raise CollectiveMismatchError. Indices go round first, then values: each an
    all-gather, summed in the order of ranks, so that all have equal bits.
    """
    if op.kind is not RedOpType.SUM:
        raise InvalidUsageError(f"sparse tensors can only be summed, not reduced by {op.name}")
    mine = tensor.detach().coalesce()
    indices = buffer_of(mine.indices(), "indices", writable=False)
    values = buffer_of(mine.values(), "values", writable=False)

    async def body(line: CollectiveContext) -> None:
        where = await all_gather_new(line, indices.view)
        what = await all_gather_new(line, values.view)
        total = reduce(torch.add, map(sparse, where, what))
        # Inference tensors are written in that mode alone, and the loop's thread is not in it. A detached
        # view of a sparse tensor would not grow with it.
        with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
            tensor.copy_(total.coalesce())

    def sparse(where: Any, what: Any) -> Any:
        # Where no dimension is sparse there are no indices, and the values say how many entries there are.
        each, data = (
            (8 * mine.sparse_dim(), where)
            if mine.sparse_dim()
            else (mine.values().itemsize * math.prod(mine.shape), what)
        )
        entries = len(data) // each if each else 0
        places = _tensor(where, torch.int64).view(mine.sparse_dim(), entries)
        numbers = _tensor(what, mine.dtype).view(entries, *mine.values().shape[1:])
        return torch.sparse_coo_tensor(places, numbers, mine.shape, check_invariants=False)

    # Not "all_reduce": a rank with a dense tensor of the same size must not take part in this.
    layout = digest_as_root((mine.sparse_dim(), *mine.shape))
    fingerprint = Fingerprint(
        SPARSE_ALL_REDUCE, values.dtype, op, layout, mine.numel(), tuple(mine.shape)
    )
    return group.collective(fingerprint, body, timeout)


def _tensor(data: memoryview, dtype: torch.dtype) -> torch.Tensor:
    if not len(data):
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype)
