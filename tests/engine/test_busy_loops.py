"""Ranks whose loops stand still for longer than a handshake may take, because they compute."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.world import World, use_world
from aiodist.p2p import connector
from aiodist.transport import pending_handshakes
from tests.limits import scaled

HANDSHAKE = 0.2
COMPUTES = 5 * HANDSHAKE


async def one_rank_computes(rank: int) -> None:
    if rank == 1:
        time.sleep(COMPUTES)  # noqa: ASYNC251  # it computes
    x = np.ones(3)
    await dist.all_reduce(x)
    assert x.tolist() == [2.0] * 3


async def all_compute_between_call_and_await(rank: int) -> None:
    x = np.ones(3)
    work = dist.all_reduce(x)
    await asyncio.sleep(0)  # the connection is begun
    time.sleep(COMPUTES)  # noqa: ASYNC251  # it computes
    await work
    assert x.tolist() == [2.0] * 3


async def the_receiver_computes(rank: int) -> None:
    x = np.full(3, float(rank))
    if rank == 0:
        await dist.send(x, 1)
    else:
        time.sleep(COMPUTES)  # noqa: ASYNC251  # it computes
        await dist.recv(x, 0)
        assert x.tolist() == [0.0] * 3


@pytest.mark.parametrize(
    "program", [one_rank_computes, all_compute_between_call_and_await, the_receiver_computes]
)
def test_a_rank_that_computes_while_connections_are_made_is_not_lost(
    program: Callable[[int], Coroutine[Any, Any, None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(connector, "HANDSHAKE_SECONDS", HANDSHAKE)
    monkeypatch.setattr(pending_handshakes, "HANDSHAKE_SECONDS", HANDSHAKE)
    monkeypatch.setenv("AIODIST_TRANSPORT", "tcp")
    monkeypatch.setenv("AIODIST_SHM_BYTES", "0")
    outcomes: list[BaseException | None] = []

    async def job(rank: int) -> None:
        meeting = f"file://{tmp_path}/meeting"
        async with dist.process_group(init_method=meeting, rank=rank, world_size=2):
            await program(rank)
            await dist.barrier(timeout=scaled(20))

    def run(rank: int) -> None:
        use_world(World())
        try:
            asyncio.run(job(rank))
        except BaseException as error:  # noqa: BLE001  # compared below
            outcomes.append(error)
        else:
            outcomes.append(None)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [None, None]
    assert "stranger" not in caplog.text
