"""The state of one rank on all of them, in place where that fits."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import aiodist as dist
from aiodist.groups.world import current_world
from aiodist.testing import run_ranks


def model(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return net, torch.optim.Adam(net.parameters(), lr=0.1 * (seed + 1))


def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(torch.arange(12.0).reshape(4, 3)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("src", [None, 2])
async def test_a_model_and_its_optimizer_are_bitwise_equal_and_train_on_alike(
    src: int | None,
) -> None:
    async def main(rank: int) -> bytes:
        net, optimizer = model(rank)
        if rank == (src or 0):
            step(net, optimizer)
        before = [p.data_ptr() for p in net.parameters()]
        await dist.sync_state(net.state_dict(), src=src)  # into the parameters themselves
        assert [p.data_ptr() for p in net.parameters()] == before
        state = await dist.sync_state(optimizer.state_dict(), src=src)
        optimizer.load_state_dict(state)
        step(net, optimizer)
        assert optimizer.param_groups[0]["lr"] == 0.1 * ((src or 0) + 1)
        return b"".join(v.numpy().tobytes() for v in net.state_dict().values())

    assert len(set(await run_ranks(3, main))) == 1


async def test_containers_keep_their_kind_and_their_identity() -> None:
    shared = {
        "a": np.arange(3),
        "b": [torch.ones(2), 5, None, "text", b"bytes"],
        "c": (1.5, np.zeros((2, 2), np.float32), ()),
        4: {"deep": OrderedDict(x=True)},
        "none": torch.empty(0, 3),
    }

    async def main(rank: int) -> Any:
        if rank == 0:
            return await dist.sync_state(shared)
        inner = [torch.zeros(2, dtype=torch.float64), 1]
        kept, read_only_shape = np.zeros(3, np.int64), np.zeros((3, 3), np.float32)
        mine: dict[Any, Any] = {"gone": 1, "a": kept, "b": inner, "c": [0, read_only_shape]}
        got = await dist.sync_state(mine)
        assert got is mine
        assert got["a"] is kept
        assert got["b"] is inner
        assert inner[0].dtype == torch.float32  # a new one: the old does not fit
        assert (read_only_shape == 0).all()
        return got

    for got in (await run_ranks(2, main))[1:]:
        assert list(got) == ["a", "b", "c", 4, "none"]
        assert got["a"].tolist() == [0, 1, 2]
        assert got["b"][0].tolist() == [1, 1]
        assert got["b"][1:] == [5, None, "text", b"bytes"]
        assert isinstance(got["c"], tuple)
        assert got["c"][0] == 1.5
        assert got["c"][1].shape == (2, 2)
        assert got["c"][2] == ()
        assert got[4] == {"deep": {"x": True}}
        assert tuple(got["none"].shape) == (0, 3)


class Moments(NamedTuple):
    """As optimizers keep them."""

    first: Any
    second: Any


async def test_a_namedtuple_stays_one_on_the_ranks_that_have_it() -> None:
    async def main(rank: int) -> Any:
        state = {"moments": Moments(np.full(2, rank), [rank])} if rank < 2 else {}
        return (await dist.sync_state(state, src=1))["moments"]

    for rank, got in enumerate(await run_ranks(3, main)):
        assert type(got) is (Moments if rank < 2 else tuple)
        assert (got[0].tolist(), got[1]) == ([1, 1], [1])


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda rank: nn.Linear(2 + rank, 1), "had 1 tensors .* one at state_dict\\['weight'\\]"),
        (
            lambda rank: nn.Sequential(nn.Linear(2, 1)) if rank else nn.Linear(2, 1),
            "had 2 tensors .* one at state_dict\\['0.bias'\\]",
        ),
    ],
    ids=["other shape", "other names"],
)
async def test_a_rank_with_another_model_is_warned(
    make: Callable[[int], nn.Module], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(rank: int) -> None:
        await dist.sync_state(make(rank).state_dict())

    await run_ranks(2, main)
    (record,) = [each for each in caplog.records if each.name == "aiodist"]
    assert re.search(told, record.getMessage())


async def test_state_that_a_newcomer_lacks_is_added_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(rank: int) -> None:
        state = {"a": np.ones(2), "b": [np.ones(3)]} if rank == 0 else {"a": np.zeros(2)}
        await dist.sync_state(state)
        assert np.array_equal(state["b"][0], np.ones(3))

    await run_ranks(2, main)
    assert not caplog.records


async def test_a_state_may_be_one_tensor_in_a_subgroup() -> None:
    async def main(rank: int) -> None:
        group = await dist.new_group([1, 2])
        if rank:
            tensor = torch.full((300_000,), float(rank), dtype=torch.bfloat16)
            assert await dist.sync_state(tensor, group, group_src=1) is tensor
            assert bool((tensor == 2).all())

    await run_ranks(3, main)


async def test_state_that_cannot_be_sent_is_refused_on_the_source_and_told_to_the_others() -> None:
    async def main(rank: int) -> None:
        if rank == 0:
            with pytest.raises(TypeError):
                await dist.sync_state({"f": object()})
        else:
            with pytest.raises(dist.CollectiveError, match="rank 0: TypeError"):
                await dist.sync_state({})
        state = {"f": 1} if rank == 0 else {}
        assert await dist.sync_state(state) == {"f": 1}

    await run_ranks(2, main)


@pytest.mark.parametrize(
    ("tensor", "kind", "told"),
    [
        (torch.eye(2).to_sparse(), dist.InvalidUsageError, "layout sparse_coo"),
        (np.ma.masked_array([[1.0]]), TypeError, "masked array"),
    ],
    ids=["sparse", "masked"],
)
async def test_all_ranks_hear_of_a_tensor_that_cannot_travel(
    tensor: Any, kind: type[Exception], told: str
) -> None:
    async def main(rank: int) -> None:
        state = {"t": tensor if rank == 0 else torch.eye(2)}
        with pytest.raises(kind if rank == 0 else dist.InvalidUsageError, match=told):
            await dist.sync_state(state, timeout=10)
        await dist.barrier()

    await run_ranks(2, main)


@pytest.mark.parametrize(
    "mine",
    [
        np.broadcast_to(np.zeros(1), 2),
        np.ma.masked_array([0.0, 0.0]),
        torch.eye(2).to_sparse(),
        torch.ones(2, device="meta"),
    ],
    ids=["read-only", "masked", "sparse", "meta"],
)
async def test_a_tensor_that_cannot_be_written_is_replaced_with_a_warning(
    mine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(rank: int) -> None:
        state = {"t": np.ones(2) if rank == 0 else mine}
        await dist.sync_state(state, timeout=10)
        assert np.array_equal(state["t"], np.ones(2))
        await dist.barrier()

    await run_ranks(2, main)
    (record,) = [each for each in caplog.records if each.name == "aiodist"]
    assert "rank 1 had 1 tensors that do not fit" in record.getMessage()


async def test_nothing_writes_to_the_state_after_a_cancellation() -> None:
    async def main(rank: int) -> None:
        state = {name: np.full(1 << 18, float(rank)) for name in "abc"}
        task = asyncio.create_task(dist.sync_state(state))
        if rank == 0:
            with pytest.raises(dist.CollectiveCancelledError, match="rank 1"):
                await task
        else:
            # No event tells of it, and `until` may look too late, when all has come.
            while len(under_way := current_world().under_way()) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()
            assert all(work.cancelled() for work in under_way)
        await dist.barrier()

    await run_ranks(2, main, timeout=30)
