"""Messages by a torch group for each two ranks, as with NCCL; here with Gloo."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import aiodist as dist
from aiodist.backends.torch_groups.kinds import Gloo
from aiodist.testing.in_process import run_ranks


@pytest.fixture(autouse=True)
def in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gloo, "in_pairs", True)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The group of ranks 0 and 1 is not built before it opens: as if one of them came late."""
    opened, build = threading.Event(), Gloo.build

    def late(self: Gloo, store: Any, rank: int, size: int, *rest: Any) -> Any:
        if size == 2 and store._store.prefix.endswith("/0-1"):
            opened.wait(20)
        return build(self, store, rank, size, *rest)

    monkeypatch.setattr(Gloo, "build", late)
    yield opened
    opened.set()


async def test_messages_in_a_ring_and_from_any_rank() -> None:
    async def body(rank: int) -> None:
        after, before = (rank + 1) % 3, (rank - 1) % 3
        for length in (0, 1, 1000):
            into = torch.zeros(length)
            sending = dist.isend(torch.full((length,), float(rank)), after, tag=2)
            assert await dist.recv(into, before, tag=2) == before
            await sending
            assert into.tolist() == [before] * length
        if rank:
            await dist.send(torch.tensor([rank]), 0)
        else:
            came = [await dist.recv(), await dist.recv()]
            assert sorted((m.source, m.tensor.item()) for m in came) == [(1, 1), (2, 2)]
        pair = await dist.new_group([2, 1])
        if rank == 1:
            await dist.send(torch.ones(2), 2, pair)
        elif rank == 2:
            assert await dist.recv(torch.zeros(2), group=pair) == 1
        await dist.barrier()

    await run_ranks(3, body, backend="torch:gloo")


async def test_one_that_comes_late_holds_up_nothing_else(gate: threading.Event) -> None:
    async def body(rank: int) -> None:
        into = torch.zeros(2)
        works = [dist.isend(torch.ones(2), 1)] if rank == 0 else []
        works += [dist.irecv(into, 0)] if rank == 1 else []
        await dist.barrier()
        if rank == 2:
            await dist.send(torch.ones(2), 0)
            await dist.send(torch.ones(2), 1)
        else:
            await dist.recv(torch.zeros(2), 2)
        total = torch.ones(1)
        await dist.all_reduce(total)
        assert total.item() == 3
        assert not any(work.is_completed() for work in works)
        await dist.barrier()
        gate.set()
        for work in works:
            await work
        assert rank != 1 or into.tolist() == [1, 1]
        await dist.barrier()

    await run_ranks(3, body, backend="torch:gloo")
