"""Lists of tensors: their length and what is in them."""

from __future__ import annotations

import aiodist as dist
from aiodist.errors import InvalidUsageError
from tests.operations.bad_input.calls import (
    ME,
    Call,
    Entry,
    check_refused,
    each,
    t,
    ts,
)

ENTRIES: list[Entry] = [
    (
        "all_gather: wrong length",
        lambda h: dist.all_gather(ts(4, 4), t(4)),
        InvalidUsageError,
        "tensor_list has 2 entries; it must have 3, one for each rank",
    ),
    (
        "all_gather: a tensor for the list",
        lambda h: dist.all_gather(t(3, 4), t(4)),
        TypeError,
        r"tensor_list must be a list, not Tensor: pass list\(tensor_list\)$",
    ),
    (
        "all_gather: a list for the tensor",
        lambda h: dist.all_gather(ts(4, 4, 4), ts(4)),
        TypeError,
        "tensor must be a torch.Tensor or numpy.ndarray, not list",
    ),
    (
        "all_gather: not all are tensors",
        lambda h: dist.all_gather([t(4), 5, t(4)], t(4)),
        TypeError,
        r"tensor_list\[1\] must be a torch.Tensor or numpy.ndarray, not int",
    ),
    (
        "all_gather_coalesced: wrong length",
        lambda h: dist.all_gather_coalesced([ts(4), ts(4)], ts(4)),
        InvalidUsageError,
        "output_tensor_lists has 2 entries; it must have 3",
    ),
    (
        "all_gather_coalesced: wrong length of one",
        lambda h: dist.all_gather_coalesced([ts(4), ts(4), ts(4, 4)], ts(4)),
        InvalidUsageError,
        r"output_tensor_lists\[2\] has 2 entries; it must have 1, one for each tensor",
    ),
    (
        "all_gather_coalesced: nothing",
        lambda h: dist.all_gather_coalesced([[], [], []], []),
        InvalidUsageError,
        "input_tensor_list is empty",
    ),
    (
        "all_gather_coalesced: one list",
        lambda h: dist.all_gather_coalesced([ts(4, 4)] * 3, ts(4, 4)),
        InvalidUsageError,
        r"sum\(output_tensor_lists, \[\]\)\[0\] and .*\[2\] are the same tensor",
    ),
    (
        "all_gather_coalesced: own entry",
        lambda h: dist.all_gather_coalesced([ts(4), ts(5), ts(4)], ts(4)),
        InvalidUsageError,
        r"own entry of output_tensor_lists\[1\] has 5 elements.* 4",
    ),
    (
        "all_reduce_coalesced: nothing",
        lambda h: dist.all_reduce_coalesced([]),
        InvalidUsageError,
        "tensors is empty",
    ),
    (
        "gather: no list on the root",
        lambda h: dist.gather(t(4), None, ME),
        InvalidUsageError,
        "gather_list is required on the root, rank 1",
    ),
    (
        "gather: wrong length",
        lambda h: dist.gather(t(4), ts(4), ME),
        InvalidUsageError,
        "gather_list has 1 entries; it must have 3",
    ),
    (
        "gather: a list off the root",
        lambda h: dist.gather(t(4), ts(4, 4, 4), 0),
        InvalidUsageError,
        r"gather_list is for the root \(rank 0\) alone; pass None",
    ),
    (
        "gather: a tensor off the root",
        lambda h: dist.gather(t(4), t(3, 4), 0),
        TypeError,
        "gather_list must be a list, not Tensor",
    ),
    (
        "scatter: no list on the root",
        lambda h: dist.scatter(t(4), src=ME),
        InvalidUsageError,
        "scatter_list is required on the root, rank 1",
    ),
    (
        "scatter: wrong length",
        lambda h: dist.scatter(t(4), ts(4, 4, 4, 4), ME),
        InvalidUsageError,
        "scatter_list has 4 entries; it must have 3",
    ),
    (
        "scatter: a list off the root",
        lambda h: dist.scatter(t(4), ts(4, 4, 4), 2),
        InvalidUsageError,
        r"scatter_list is for the root \(rank 2\) alone",
    ),
    (
        "reduce_scatter: wrong length",
        lambda h: dist.reduce_scatter(t(4), ts(4)),
        InvalidUsageError,
        "input_list has 1 entries; it must have 3",
    ),
    (
        "all_to_all: wrong length",
        lambda h: dist.all_to_all(ts(4, 4, 4), ts(4, 4)),
        InvalidUsageError,
        "input_tensor_list has 2 entries; it must have 3",
    ),
    (
        "all_to_all: wrong length of outputs",
        lambda h: dist.all_to_all(ts(4), ts(4, 4, 4)),
        InvalidUsageError,
        "output_tensor_list has 1 entries; it must have 3",
    ),
    (
        "batch_isend_irecv: nothing",
        lambda h: dist.batch_isend_irecv([]),
        InvalidUsageError,
        "p2p_op_list is empty",
    ),
    (
        "batch_isend_irecv: not P2POps",
        lambda h: dist.batch_isend_irecv([dist.isend]),
        TypeError,
        "p2p_op_list must hold P2POp objects, not function",
    ),
    (
        "P2POp: another operation",
        lambda h: dist.P2POp(dist.broadcast, t(4), 0),
        InvalidUsageError,
        "op must be the function isend or irecv",
    ),
    (
        "P2POp: the name of an operation",
        lambda h: dist.P2POp("isend", t(4), 0),
        InvalidUsageError,
        r"op must be the function isend or irecv, as in P2POp\(dist.isend, ...\), not 'isend'",
    ),
]


@each(ENTRIES)
async def test_bad_input(call: Call, error: type[Exception], words: str) -> None:
    await check_refused(call, error, words)
