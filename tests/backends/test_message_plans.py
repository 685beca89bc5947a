"""Short messages like those before: over at once, and otherwise no different from any."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.backends.plan_cache import MAX_PLANS
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.message import Recv, Send
from aiodist.groups.world import World, current_world
from aiodist.p2p import spin_policy
from aiodist.shm.message_ring import RingReader
from aiodist.tensors import buffer_of, encode_meta
from aiodist.testing.in_process import run_ranks
from aiodist.wire.frames import TENSOR
from tests.backends.at_once import at_once, native
from tests.engine.conftest import outcome, without_loop
from tests.limits import until


def default() -> GroupEngine:
    return current_world().default_group()


def send(tensor: Any, dst: int, tag: int = 0) -> Any:
    return without_loop(lambda: at_once(default(), Send(tensor, dst, tag)))


def recv(tensor: Any, src: int | None, tag: int = 0) -> Any:
    work = without_loop(lambda: at_once(default(), Recv(tensor, src, tag, blocks=True)))
    if work is None or src is None:
        return None if work is None else work.result() + 1
    return (src if isinstance(work, tuple) else work.result()) + 1  # a record: from ``src``


async def warm(rank: int, *tensors: Any, tag: int = 0) -> None:
    """Exchange equal tensors by the general path, so that both directions have cached plans."""
    for tensor in tensors:
        into = tensor.clone()
        receiving = dist.irecv(into, 1 - rank, tag=tag)
        await dist.send(tensor, 1 - rank, tag=tag)
        await receiving
    await dist.barrier()


def streamed(rank: int) -> int:
    """How many messages have gone to ``rank`` over the stream."""
    shm = current_world().endpoint.peer(rank).outbox.shm
    assert shm is not None
    return shm.turn


async def test_an_equal_message_is_over_at_once_and_recorded_like_any() -> None:
    async def main(rank: int) -> None:
        one = torch.full((3,), 7.0)
        await warm(rank, one, one)
        before = streamed(1 - rank)
        records = []
        for number in range(5):
            one = torch.full((3,), float(number))
            if rank == 0:
                assert send(one, 1) is not None
                await dist.barrier()
            else:
                await dist.barrier()
                assert recv(one.zero_(), 0) is not None
                assert one.tolist() == [number] * 3
        records = [op for op in dist.recent_operations() if op.sequence < 0]
        name, peer = ("send", 1) if rank == 0 else ("recv", 0)
        for op in records[-5:]:
            assert (op.operation, op.peer, op.tag, op.count, op.dtype) == (
                *(name, peer),
                *(0, 3, "float32"),
            )
            assert op.state == "done"
            assert 0 < op.created == op.started <= op.finished
        assert streamed(1 - rank) == before

    await run_ranks(2, main, "shm", timeout=20)


async def test_the_async_api_returns_a_completed_work() -> None:
    async def main(rank: int) -> None:
        one = torch.ones(2)
        await warm(rank, one, one)
        if rank == 0:
            work = dist.isend(one, 1)
            assert work.is_completed()
            await work
            await dist.barrier()
        else:
            await dist.barrier()
            received = dist.irecv(one.zero_(), 0)
            assert received.is_completed()
            assert received.source_rank() == 0
            assert received.result() == 0
            assert received.is_success()
            assert await received == 0
            assert one.tolist() == [1, 1]
        await dist.barrier()

    await run_ranks(2, main, "shm", timeout=20)


async def test_the_async_api_polls_only_for_messages_that_may_come_promptly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(rank: int) -> None:
        one = torch.ones(2)
        await warm(rank, one, one)
        if rank == 0:
            await dist.barrier()
        else:
            endpoint, looks = current_world().endpoint, []
            shm_receiver, spin = endpoint.peer(0).shm_receiver, default()._spin
            monkeypatch.setattr(type(spin), "finds", lambda *_: looks.append(1))
            for prompt, cores in ((False, True), (True, False), (True, True)):
                shm_receiver.is_prompt, endpoint.spin_policy.active = prompt, cores
                operation = Recv(one, 0, 0)
                plan = native(default()).plans.get(operation.key())
                data = plan.views(operation)
                assert default().recv_at_once(plan.direct, data, blocks=False) is None
            assert len(looks) == 1
            assert not shm_receiver.is_prompt
            assert recv(one, 0) is None
            assert len(looks) == 2
            endpoint.spin_policy.active = False
            monkeypatch.undo()
            await dist.barrier()

    await run_ranks(2, main, "shm", timeout=20)


async def test_an_absent_or_different_message_is_left_to_the_general_path() -> None:
    async def main(rank: int) -> None:
        one = torch.ones(2)
        assert send(one, 1 - rank) is None  # none was sent before
        await warm(rank, one, one)
        if rank == 0:
            await dist.barrier()
            assert send(torch.ones(3), 1) is None  # another shape,
            assert send(one, 1, tag=4) is None  # tag,
            assert send(np.ones(2, np.float32), 1) is None  # kind,
            assert send(torch.ones(4)[::2], 1) is None  # or layout
            assert send([1.0], 1) is None
            await dist.send(one, 1, tag=4)
            assert send(one, 1) is not None
            await dist.barrier()
        else:
            assert recv(one, 0) is None
            await dist.barrier()
            await dist.barrier()
            assert recv(None, 0) is None
            assert recv(one, None) is None
            assert recv(one, 0) is None  # the one with the tag is the next
            assert await dist.recv(one.zero_(), 0, tag=4) == 0
            assert recv(one.zero_(), 0) is not None
            assert one.tolist() == [1, 1]
        await dist.barrier()

    await run_ranks(2, main, "shm", timeout=20)


@pytest.mark.parametrize("earlier", ["from the rank", "from anybody"])
async def test_a_receive_that_waits_gets_its_message_first(earlier: str) -> None:
    async def main(rank: int) -> None:
        one = torch.ones(2)
        await warm(rank, one, one)
        if rank == 0:
            await dist.barrier()
            for number in range(2):
                await dist.send(torch.full((2,), float(number)), 1)
            await dist.barrier()
        else:
            first = torch.zeros(2)
            waits = dist.irecv(first, 0 if earlier == "from the rank" else None)
            await dist.barrier()
            assert recv(torch.zeros(2), 0) is None
            second = torch.zeros(2)
            assert await dist.recv(second, 0) == 0
            await waits
            assert (first.tolist(), second.tolist()) == ([0, 0], [1, 1])
            await dist.barrier()

    await run_ranks(2, main, "shm", timeout=20)


@pytest.mark.parametrize("transport", ["inproc", "tcp"])
async def test_over_a_stream_the_tensor_is_the_callers_at_once(transport: str) -> None:
    """A payload that the stream does not accept at once is copied; one that lacks credit waits."""

    async def main(rank: int) -> None:
        count, one = 60, torch.zeros(15_000)
        await warm(rank, one, one)
        if rank == 0:
            away = []
            for number in range(count):
                one.fill_(number)
                away.append(send(one, 1) is not None)
                if not away[-1]:
                    await dist.send(one.clone(), 1)
            assert any(away[1:])
            assert not all(away)
            await dist.barrier()
        else:
            for number in range(count):
                if recv(one, 0) is None:
                    assert await dist.recv(one, 0) == 0
                assert one[0] == one[-1] == number
            await dist.barrier()

    await run_ranks(2, main, transport, timeout=20, buffer_bytes=1 << 20)


@pytest.mark.parametrize("transport", ["inproc", "tcp"])
async def test_a_message_that_came_over_a_stream_is_received_at_once(transport: str) -> None:
    async def main(rank: int) -> None:
        one, other = torch.zeros(3), torch.zeros(4)
        await warm(rank, one, one)
        if rank == 0:
            for number in (1, 2):
                await dist.send(torch.full((3,), float(number)), 1)
            await dist.send_object("object", 1)
            await dist.barrier()
            await dist.barrier()
            return
        await dist.barrier()
        if transport == "tcp":
            await dist.recv_object(0)  # what came before it is here, too
        assert recv(one, 0) is not None
        assert one.tolist() == [1, 1, 1]
        work = dist.irecv(one, 0)
        assert work.is_completed()
        assert (await work, work.source_rank()) == (0, 0)
        assert one.tolist() == [2, 2, 2]
        assert recv(one, 0) is None
        with pytest.raises(dist.CollectiveTimeoutError):
            await dist.recv(other, 0, timeout=0.01)
        await dist.barrier()

    await run_ranks(2, main, transport, timeout=20, buffer_bytes=1 << 20)


async def test_short_and_long_messages_keep_their_order() -> None:
    sizes = [1, 600_000, 1, 200_000, 1, 1, 600_000]

    async def main(rank: int) -> None:
        tensors = [torch.full((size,), float(number)) for number, size in enumerate(sizes)]
        await warm(rank, torch.ones(1), torch.ones(200_000))
        for _ in range(3):
            if rank == 0:
                works = [dist.isend(tensor, 1) for tensor in tensors]
                await asyncio.gather(*works)
            else:
                for number, size in enumerate(sizes):
                    into = torch.zeros(size)
                    assert await dist.recv(into, 0) == 0
                    assert into[0] == into[-1] == number
            await dist.barrier()

    await run_ranks(2, main, "shm", timeout=20)


async def test_a_sleeping_receiver_is_woken_without_a_running_loop() -> None:
    rings: list[RingReader] = []

    async def main(rank: int) -> None:
        one = torch.ones(2)
        await warm(rank, one, one)
        if rank == 0:
            shm = current_world().endpoint.peer(1).outbox.shm
            assert shm is not None
            await until(lambda: bool(rings) and rings[0].is_asleep)
            loops: list[object] = []
            wake = shm._wake
            shm._wake = lambda: (  # type: ignore[method-assign]
                loops.append(asyncio.get_running_loop()),
                wake(),
            )[-1]
            assert send(one, 1) is not None
            assert loops == [asyncio.get_running_loop()]
        else:
            ring = current_world().endpoint.peer(0).shm_receiver.ring
            assert ring is not None
            rings.append(ring)
            assert await dist.recv(one.zero_(), 0) == 0
            assert one.tolist() == [1, 1]
        await dist.barrier()

    await run_ranks(2, main, "shm", timeout=20)


async def test_a_closed_group_sends_nothing() -> None:
    async def main(rank: int) -> None:
        one = torch.ones(2)
        await warm(rank, one, one)
        pg = default()
        await dist.barrier()
        await dist.destroy_process_group()
        assert at_once(pg, Send(one, 1 - rank, 0)) is None
        assert at_once(pg, Recv(one, 1 - rank, 0)) is None

    await run_ranks(2, main, "shm", timeout=20)


async def test_a_lost_rank_is_told_of_as_ever() -> None:
    async def main(rank: int) -> None:
        one = torch.ones(2)
        await warm(rank, one, one)
        if rank == 0:
            await dist.destroy_process_group()
            return
        await until(lambda: current_world().endpoint.error_of(0) is not None)
        assert send(one, 0) is None
        assert isinstance(await outcome(dist.send(one, 0)), dist.PeerLostError)
        assert recv(one, 0) is None
        assert isinstance(await outcome(dist.recv(one, 0)), dist.PeerLostError)

    await run_ranks(2, main, "shm", timeout=20)


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("due", [True, False])
async def test_a_row_of_messages_lets_the_loop_turn(
    kind: str, due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though each is over before anybody awaits it. How often, the clock decides."""
    count = 20

    async def main(rank: int) -> None:
        one: Any = torch.ones(2) if kind == "torch" else np.ones(2)
        for _ in range(2):
            await (dist.send(one, 1) if rank == 0 else dist.recv(one, 0))
            await dist.barrier()
        turns = 0

        async def row(call: Callable[[], Any]) -> None:
            nonlocal turns
            background = asyncio.create_task(count_turns())
            for _ in range(count):
                await call()
            background.cancel()

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        monkeypatch.setattr(spin_policy, "TURN_NANOSECONDS", -1)
        current_world().endpoint.spin_policy._turn_due = 0 if due else 1 << 62
        if rank == 0:
            await row(lambda: dist.send(one, 1))
            await dist.barrier()
        else:
            await dist.barrier()
            await row(lambda: dist.recv(one, 0))
        assert turns >= count if due else turns <= 1

    await run_ranks(2, main, "shm", timeout=20)


async def test_a_receive_from_any_rank_starves_no_sender() -> None:
    """While one rank's box is never empty, another one's message is taken all the same."""

    async def main(rank: int) -> int:
        one = torch.full((1,), float(rank))
        if rank:
            await dist.send(one, 0)
        else:
            for other in (1, 2):
                await dist.recv(one, other)
        await dist.barrier()
        for _ in range(9 if rank == 1 else rank // 2):
            await dist.send(one, 0, tag=1)
        await dist.barrier()
        came = [] if rank else [await dist.recv(one, tag=1) for _ in range(10)]
        await dist.barrier()
        return came.index(2) if came else 0

    assert (await run_ranks(3, main, "shm", timeout=20))[0] <= 2


async def test_nothing_overtakes_a_receive_or_a_message_that_waits() -> None:
    worlds: dict[int, World] = {}

    async def main(rank: int) -> None:
        one = torch.ones(2)
        await warm(rank, one, one)
        worlds[rank] = current_world()
        await dist.barrier()
        if rank == 1:
            key = (TENSOR, default().id, 0)

            def come(number: int) -> None:
                """At once, so that the loop of this rank has no turn to look."""
                buffer = buffer_of(torch.full((2,), float(number)), "x", writable=False)
                sent = worlds[0].endpoint.send(1, key, buffer.view, encode_meta(buffer))
                assert sent.done

            for source in (0, None):
                first = torch.zeros(2)
                waits = dist.irecv(first, source)
                come(1)
                assert not waits.is_completed()
                assert recv(one, 0) is None
                await waits
                assert first.tolist() == [1, 1]
            come(2)
            never = dist.irecv(one, 0, tag=7)  # and so it is looked at
            come(3)
            assert recv(one, 0) is None
            for number in (2, 3):
                await dist.recv(first, 0)
                assert first.tolist() == [number] * 2
            never.cancel()
            assert isinstance(await outcome(never), asyncio.CancelledError)
        await dist.barrier()

    await run_ranks(2, main, "shm", timeout=20)


async def test_the_message_plan_cache_is_bounded() -> None:
    async def main(rank: int) -> None:
        one, plans = torch.ones(2), native(default()).plans.plans
        for tag in range(MAX_PLANS + 8):
            await dist.isend(one, 1 - rank, tag=tag)
            assert 0 < len(plans) <= MAX_PLANS
        await dist.barrier()

    await run_ranks(2, main, "shm", timeout=20)


@pytest.mark.parametrize("why", ["_error", "_messenger"])
async def test_a_group_that_is_broken_or_carried_by_others_is_left_alone(why: str) -> None:
    async def main(rank: int) -> None:
        one = torch.ones(2)
        await warm(rank, one, one)
        if rank == 0:
            assert send(one, 1) is not None
            await dist.barrier()
            setattr(default(), why, dist.PeerLostError("rank 1 is gone"))
            assert send(one, 1) is None
            setattr(default(), why, None)
        else:
            await dist.barrier()
            setattr(default(), why, dist.PeerLostError("rank 0 is gone"))
            assert recv(one, 0) is None
            setattr(default(), why, None)
            assert recv(one, 0) is not None
        await dist.barrier()

    await run_ranks(2, main, "shm", timeout=20)
