"""Tensors: their kind, dtype, size, memory and device."""

from __future__ import annotations

import numpy as np
import torch

import aiodist as dist
from aiodist.errors import InvalidUsageError
from tests.operations.bad_input.calls import (
    ME,
    Call,
    Entry,
    check_refused,
    each,
    read_only,
    t,
    ts,
)

ENTRIES: list[Entry] = [
    (
        "all_reduce: a list",
        lambda h: dist.all_reduce(ts(4)),
        TypeError,
        "tensor must be a torch.Tensor or numpy.ndarray, not list",
    ),
    ("send: a number", lambda h: dist.send(5, 0), TypeError, "must be a torch.Tensor or numpy"),
    ("irecv: nothing", lambda h: dist.irecv(None, 0), TypeError, "must be a torch.Tensor or numpy"),
    (
        "all_gather: dtypes",
        lambda h: dist.all_gather([t(4), t(4), t(4, dtype=torch.float64)], t(4)),
        InvalidUsageError,
        r"tensor_list\[2\] is float64, it must be float32",
    ),
    (
        "all_reduce_coalesced: dtypes",
        lambda h: dist.all_reduce_coalesced([t(4), t(4, dtype=torch.int64)]),
        InvalidUsageError,
        r"tensors\[1\] is int64, it must be float32",
    ),
    (
        "all_gather_coalesced: dtypes of inputs",
        lambda h: dist.all_gather_coalesced([ts(4, 4) for _ in range(3)], [t(4), np.ones(4)]),
        InvalidUsageError,
        r"input_tensor_list\[1\] is float64, it must be float32",
    ),
    (
        "all_gather_into_tensor: dtypes",
        lambda h: dist.all_gather_into_tensor(t(12, dtype=torch.int32), t(4)),
        InvalidUsageError,
        "output_tensor is int32, it must be float32",
    ),
    (
        "gather_single: dtypes",
        lambda h: dist.gather_single(t(4), t(12, dtype=torch.int32), ME),
        InvalidUsageError,
        "gather_tensor is int32, it must be float32",
    ),
    (
        "reduce_scatter: dtypes",
        lambda h: dist.reduce_scatter(t(4, dtype=torch.bfloat16), ts(4, 4, 4)),
        InvalidUsageError,
        r"input_list\[0\] is float32, it must be bfloat16",
    ),
    (
        "scatter: dtypes",
        lambda h: dist.scatter(t(4), [t(4), np.ones(4), t(4)], ME),
        InvalidUsageError,
        r"scatter_list\[1\] is float64, it must be float32",
    ),
    (
        "all_to_all: dtypes",
        lambda h: dist.all_to_all([t(4), t(4), t(4, dtype=torch.int32)], ts(4, 4, 4)),
        InvalidUsageError,
        r"output_tensor_list\[2\] is int32, it must be float32",
    ),
    (
        "all_gather: one tensor",
        lambda h: dist.all_gather([t(4)] * 3, t(4)),
        InvalidUsageError,
        r"tensor_list\[0\] and tensor_list\[1\] are the same tensor, .* one for each",
    ),
    (
        "gather: one tensor",
        lambda h: dist.gather(t(4), [t(4), *[t(4)] * 2], ME),
        InvalidUsageError,
        r"gather_list\[1\] and gather_list\[2\] are the same tensor",
    ),
    (
        "all_to_all: one array",
        lambda h: dist.all_to_all([np.ones(4)] * 3, [np.ones(4) for _ in range(3)]),
        InvalidUsageError,
        r"output_tensor_list\[0\] and output_tensor_list\[1\] are the same tensor",
    ),
    (
        "all_gather: views of one memory",
        lambda h: dist.all_gather([(one := t(6))[:4], t(4), one[2:]], t(4)),
        InvalidUsageError,
        r"tensor_list\[0\] and tensor_list\[2\] share memory, .* for both; make a tensor for each",
    ),
    (
        "gather: views of one array",
        lambda h: dist.gather(np.ones(4), [np.ones(4), *[(one := np.ones(4))[:], one[:]]], ME),
        InvalidUsageError,
        r"gather_list\[1\] and gather_list\[2\] share memory",
    ),
    (
        "all_gather_coalesced: views of one memory",
        lambda h: dist.all_gather_coalesced(
            [[t(4), (one := t(4))[:]], [t(4), t(4)], [t(4), one[:]]], ts(4, 4)
        ),
        InvalidUsageError,
        r"sum\(output_tensor_lists, \[\]\)\[1\] and .*\[5\] share memory",
    ),
    (
        "all_gather_coalesced: views of one memory in one list",
        lambda h: dist.all_gather_coalesced(
            [[(one := t(4)), one[:]], ts(4, 4), ts(4, 4)], ts(4, 4)
        ),
        InvalidUsageError,
        r"sum\(output_tensor_lists, \[\]\)\[0\] and .*\[1\] share memory",
    ),
    (
        "all_to_all: views of one memory",
        lambda h: dist.all_to_all(list(t(6).unfold(0, 4, 1)), ts(4, 4, 4)),
        InvalidUsageError,
        r"output_tensor_list\[0\] and output_tensor_list\[1\] share memory",
    ),
    (
        "all_to_all: in place",
        lambda h: dist.all_to_all(both := ts(4, 4, 4), both),
        InvalidUsageError,
        "output_tensor_list and input_tensor_list share memory, .* pass another output",
    ),
    (
        "all_to_all: one output over inputs",
        lambda h: dist.all_to_all([t(4), (one := t(12))[2:6], t(4)], list(one.split(4))),
        InvalidUsageError,
        "output_tensor_list and input_tensor_list share memory",
    ),
    (
        "all_to_all: one input over outputs",
        lambda h: dist.all_to_all(list((one := t(12)).split(4)), [t(4), one[2:6], t(4)]),
        InvalidUsageError,
        "output_tensor_list and input_tensor_list share memory",
    ),
    (
        "all_to_all_single: in place",
        lambda h: dist.all_to_all_single(both := np.ones(6), both),
        InvalidUsageError,
        "output and input share memory, .* pass another output",
    ),
    (
        "all_to_all_single: partly in place",
        lambda h: dist.all_to_all_single((one := t(9))[:6], one[3:]),
        InvalidUsageError,
        "output and input share memory",
    ),
    (
        "all_gather: own entry",
        lambda h: dist.all_gather(ts(4, 5, 4), t(4)),
        InvalidUsageError,
        "own entry of tensor_list has 5 elements, .* 4",
    ),
    (
        "gather: own entry",
        lambda h: dist.gather(t(4), ts(4, 5, 4), ME),
        InvalidUsageError,
        "own entry of gather_list has 5 elements, .* 4",
    ),
    (
        "scatter: own entry",
        lambda h: dist.scatter(t(4), ts(4, 3, 4), ME),
        InvalidUsageError,
        "own entry of scatter_list has 3 elements, .* 4",
    ),
    (
        "reduce_scatter: own entry",
        lambda h: dist.reduce_scatter(t(4), ts(4, 3, 4)),
        InvalidUsageError,
        "own entry of input_list has 3 elements, .* 4",
    ),
    (
        "all_to_all: own entry",
        lambda h: dist.all_to_all(ts(4, 3, 4), ts(4, 4, 4)),
        InvalidUsageError,
        "own entry of output_tensor_list has 3 elements, .* 4",
    ),
    (
        "all_gather_into_tensor: size",
        lambda h: dist.all_gather_into_tensor(t(11), t(4)),
        InvalidUsageError,
        r"output_tensor has 11 elements; it must have 3 \(the group's size\) times the 4",
    ),
    (
        "gather_single: size",
        lambda h: dist.gather_single(t(4), t(11), ME),
        InvalidUsageError,
        r"gather_tensor has 11 elements; it must have 3 \(the group's size\) times the 4 of tensor",
    ),
    (
        "gather_single: nothing on the root",
        lambda h: dist.gather_single(t(4), None, ME),
        InvalidUsageError,
        "gather_tensor is required on the root, rank 1",
    ),
    (
        "reduce_scatter_tensor: size",
        lambda h: dist.reduce_scatter_tensor(t(4), t(13)),
        InvalidUsageError,
        "input has 13 elements; it must have 3 .* times the 4 of output",
    ),
    (
        "all_to_all_single: rows that do not divide",
        lambda h: dist.all_to_all_single(t(4), t(4)),
        InvalidUsageError,
        "input has 4 rows, which 3 ranks cannot share equally; pass input_split_sizes",
    ),
    (
        "all_to_all_single: number of splits",
        lambda h: dist.all_to_all_single(t(4), t(4), [2, 2], [2, 2]),
        InvalidUsageError,
        "input_split_sizes has 2 entries; the group has 3 ranks",
    ),
    (
        "all_to_all_single: sum of splits",
        lambda h: dist.all_to_all_single(t(4), t(4), [1, 1, 2], [1, 1, 1]),
        InvalidUsageError,
        r"input_split_sizes \[1, 1, 1\] must be non-negative and add up to the 4 rows",
    ),
    (
        "all_to_all_single: negative splits",
        lambda h: dist.all_to_all_single(t(4), t(4), [5, 0, -1], [1, 1, 2]),
        InvalidUsageError,
        r"output_split_sizes \[5, 0, -1\] must be non-negative",
    ),
    (
        "all_to_all_single: splits a number",
        lambda h: dist.all_to_all_single(t(4), t(4), 4, 4),
        TypeError,
        "input_split_sizes must be a list",
    ),
    (
        "all_to_all_single: splits of floats",
        lambda h: dist.all_to_all_single(t(4), t(4), [1, 1, 2], [1.0, 1.0, 2.0]),
        TypeError,
        "input_split_sizes must .*int",
    ),
    (
        "all_to_all_single: own part",
        lambda h: dist.all_to_all_single(t(4), t(4), [1, 2, 1], [1, 1, 2]),
        InvalidUsageError,
        "the splits do not fit together",
    ),
    (
        "all_to_all_single: dtypes",
        lambda h: dist.all_to_all_single(t(3, dtype=torch.int8), t(3)),
        InvalidUsageError,
        "output is int8, it must be float32",
    ),
    (
        "read-only array",
        lambda h: dist.all_reduce(read_only()),
        InvalidUsageError,
        r"read-only array and would be written; pass a copy: tensor.copy\(\)",
    ),
    (
        "read-only array to receive into",
        lambda h: dist.recv(read_only(), 0),
        InvalidUsageError,
        "read-only",
    ),
    (
        "expanded tensor",
        lambda h: dist.all_reduce(t(1).expand(4)),
        InvalidUsageError,
        r"share memory \(an expanded tensor\?\).*tensor.clone\(\)",
    ),
    (
        "a device not served",
        lambda h: dist.all_reduce(torch.empty(4, device="meta")),
        InvalidUsageError,
        r"tensor is on meta; backend \"aiodist\" serves cpu and cuda tensors: there is no data to send",
    ),
    (
        "a device not served in a list",
        lambda h: dist.all_gather([t(4), t(4), torch.empty(4, device="meta")], t(4)),
        InvalidUsageError,
        r"tensor_list\[2\] is on meta",
    ),
    (
        "sparse",
        lambda h: dist.all_reduce(t(4).to_sparse()),
        InvalidUsageError,
        "only dense tensors travel",
    ),
    (
        "strings",
        lambda h: dist.broadcast(np.array(["a"]), 1),
        InvalidUsageError,
        "cannot travel",
    ),
    (
        "an array with fields",
        lambda h: dist.broadcast(np.zeros(2, [("a", "i4")]), 1),
        InvalidUsageError,
        r"has the structured dtype \[\('a', '<i4'\)\], which cannot travel",
    ),
]


@each(ENTRIES)
async def test_bad_input(call: Call, error: type[Exception], words: str) -> None:
    await check_refused(call, error, words)
