"""Reductions that have no meaning."""

from __future__ import annotations

import torch

import aiodist as dist
from tests.operations.bad_input.calls import (
    Call,
    Entry,
    check_refused,
    each,
    t,
)

R = dist.ReduceOp

ENTRIES: list[Entry] = [
    (
        "BAND of floats",
        lambda h: dist.all_reduce(t(4), R.BAND),
        TypeError,
        "BAND is not defined for float32: bitwise operations take integers and bool",
    ),
    (
        "MIN of complex numbers",
        lambda h: dist.reduce(t(4, dtype=torch.complex64), 0, R.MIN),
        TypeError,
        "MIN is not defined for complex64: complex numbers have no order",
    ),
    (
        "AVG of bools",
        lambda h: dist.reduce_scatter(t(1, dtype=torch.bool), [t(1, dtype=torch.bool)] * 3, R.AVG),
        TypeError,
        "AVG is not defined for bool",
    ),
    (
        "SUM of float8",
        lambda h: dist.all_reduce(torch.zeros(4).to(torch.float8_e5m2)),
        TypeError,
        "SUM is not defined for float8_e5m2.*convert to float32",
    ),
    (
        "PREMUL_SUM without a factor",
        lambda h: dist.all_reduce(t(4), R.PREMUL_SUM),
        TypeError,
        r"pass ReduceOp.premul_sum\(factor\)",
    ),
    (
        "a fraction of integers",
        lambda h: dist.all_reduce(t(4, dtype=torch.int32), R.premul_sum(0.5)),
        TypeError,
        "0.5 is not an integer and cannot multiply int32",
    ),
    (
        "an unknown op",
        lambda h: dist.all_reduce(t(4), "mean"),
        TypeError,
        "op must be a ReduceOp such as ReduceOp.SUM, or one of 'sum', 'avg', .*, 'bxor', not 'mean'",
    ),
    (
        "the group in the op's place",
        lambda h: dist.all_reduce(t(4), h.pair),
        TypeError,
        "op must be a ReduceOp",
    ),
]


@each(ENTRIES)
async def test_bad_input(call: Call, error: type[Exception], words: str) -> None:
    await check_refused(call, error, words)
