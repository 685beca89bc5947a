"""Reductions over MPI give the same results as on other backends, whether MPI or aiodist computes them."""

from __future__ import annotations

import numpy as np
import torch

import aiodist as dist
from aiodist.backends.mpi.reductions import names_of
from aiodist.tensors import DTYPES
from aiodist.types import RedOpType


async def reductions() -> None:
    """On any ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    await _names()
    await _nan_shows(rank, size)
    await _truncated(rank, size)
    await _bitwise_the_same(rank, size)
    await _stays(rank, size)


async def _nan_shows(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            tensor = torch.tensor([float(rank), float("nan") if rank == size - 1 else 0.0])
            tensor = tensor.to(dtype)
            await dist.all_reduce(tensor, op)
            assert tensor[0] == (0 if op is dist.ReduceOp.MIN else size - 1)
            assert tensor[1].isnan()


async def _truncated(rank: int, size: int) -> None:
    tensor = np.array([-1 - rank, 1 + rank], np.int8)
    total = size * (size + 1) // 2
    await dist.all_reduce(tensor, dist.ReduceOp.AVG)
    assert tensor.tolist() == [-(total // size), total // size]


async def _bitwise_the_same(rank: int, size: int) -> None:
    rng = np.random.default_rng(rank)
    tensor = rng.standard_normal(10_001).astype(np.float32)
    await dist.all_reduce(tensor)
    every = [np.empty_like(tensor) for _ in range(size)]
    await dist.all_gather(every, tensor)
    assert all(each.tobytes() == tensor.tobytes() for each in every)


async def _stays(rank: int, size: int) -> None:
    """An input that is not an output stays, also where its factor is multiplied in."""
    for given in (np.full(size * 4, rank + 1.0), np.full(size * 4, rank + 1.0, np.float16)):
        before, output = given.copy(), np.zeros(4, given.dtype)
        await dist.reduce_scatter_tensor(output, given, dist.ReduceOp.premul_sum(2))
        assert (output == size * (size + 1)).all()
        assert (given == before).all()
        # What goes out overlaps what comes in.
        await dist.reduce_scatter_tensor(given[:4], given)
        assert (given[:4] == size * (size + 1) / 2).all()


async def _names() -> None:
    """Every dtype that MPI is said to have has the size it has here, and is no null."""
    from mpi4py import MPI

    found = 0
    for dtype in DTYPES:
        for kind in RedOpType:
            name = names_of(kind, dtype)
            if name is not None:
                datatype = getattr(MPI, name.datatype)
                assert datatype != MPI.DATATYPE_NULL
                assert datatype.Get_size() == dtype.itemsize
                assert getattr(MPI, name.op) != MPI.OP_NULL
                found += 1
    assert found > 50
