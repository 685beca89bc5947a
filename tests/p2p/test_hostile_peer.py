"""A rank of the job that sends what no rank should: an error on the others at worst, never a hang.

Rank 1 is a real rank until the ranks know each other; then what it sends comes from hypothesis.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import aiodist as dist
from aiodist.groups.world import current_world
from aiodist.p2p.outbox import MESSAGE_COST
from aiodist.testing import run_ranks
from aiodist.wire.frames import ANY_KEY, FrameType, encode, request_meta
from tests.engine.conftest import outcome
from tests.limits import scaled

LARGE = 3 << 20
LIMIT_SECONDS = 20

numbers = st.integers(0, 5) | st.sampled_from([2**31, 2**63, 2**64 - 1])
channels = st.integers(-1, 5) | st.sampled_from([-(2**63), 2**63 - 1])
groups = st.sampled_from(["default", 0, 7, 2**64 - 1])


@st.composite
def frames(draw: st.DrawFn) -> tuple[Any, ...]:
    return (
        draw(st.sampled_from(list(FrameType))),
        draw(st.sampled_from([0, 1, 2, 255])),
        draw(groups),
        draw(channels),
        draw(numbers),
        draw(st.binary(max_size=30)),
        draw(st.integers(0, 40)),  # bytes that follow
        draw(st.sampled_from([None, None, None, 0, 1, 1 << 20, 1 << 40])),  # what it announces
    )


def encoded(spec: tuple[Any, ...], group: int) -> bytes:
    kind, key_kind, group_name, channel, number, meta, follows, announced = spec
    key = (key_kind, group if group_name == "default" else group_name, channel)
    length = follows if announced is None else announced
    header = encode(kind, key, id=number, length=length, meta=meta)
    return header + random.Random(follows).randbytes(follows)


async def conversation(
    specs: list[tuple[Any, ...]], transport: str = "inproc"
) -> list[BaseException | None]:
    """What becomes of rank 0's operations while rank 1 says ``specs`` and hangs up."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    outcomes: list[BaseException | None] = []
    waiting = asyncio.Event()

    async def main(rank: int) -> None:
        await dist.barrier()
        group = current_world().default_group()
        if rank == 1:
            await waiting.wait()
            connection = current_world().endpoint.connections()[0]
            connection.send([encoded(spec, group.id) for spec in specs])
            for _ in range(10):
                await asyncio.sleep(0)
            for each in current_world().endpoint.connections():
                each.abort()
            # What it said may be of another collective than rank 0 was in, and comes back to it.
            with contextlib.suppress(dist.CollectiveMismatchError):
                await dist.destroy_process_group()
            return
        works = [
            dist.irecv(np.zeros(40), 1),
            dist.irecv(np.zeros(LARGE, np.uint8), tag=3),
            dist.isend(np.zeros(LARGE, np.uint8), 1),
            dist.all_reduce(np.zeros(5)),
        ]
        waiting.set()
        outcomes.extend([await outcome(work) for work in works])

    async with asyncio.timeout(scaled(LIMIT_SECONDS)):
        await run_ranks(2, main, transport)
    assert told == [], "an unexpected error"
    return outcomes


# About a completed barrier: rank 1 hears that it was in another collective than rank 0.
@example([(FrameType.EAGER, 0, "default", 0, 0, b"", 0, None)], "inproc")
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(frames(), max_size=12), st.sampled_from(["inproc", "shm"]))
def test_every_operation_ends_whatever_a_peer_sends(
    specs: list[tuple[Any, ...]], transport: str
) -> None:
    for error in asyncio.run(conversation(specs, transport)):
        assert error is None or isinstance(error, dist.DistError | asyncio.CancelledError)


@settings(max_examples=50)
@given(st.binary(max_size=400))
def test_garbage_from_a_proven_rank_is_its_end(data: bytes) -> None:
    async def run() -> None:
        waiting = asyncio.Event()

        async def main(rank: int) -> BaseException | None:
            await dist.barrier()
            if rank == 0:
                work = dist.irecv(np.zeros(4), 1)
                waiting.set()
                return await outcome(work)
            await waiting.wait()
            connection = current_world().endpoint.connections()[0]
            connection.send([data, b"\xff" * 40])
            for _ in range(10):
                await asyncio.sleep(0)
            return None

        async with asyncio.timeout(scaled(LIMIT_SECONDS)):
            error, _ = await run_ranks(2, main)
        assert isinstance(error, dist.PeerLostError)

    asyncio.run(run())


@pytest.mark.parametrize("kind", list(FrameType))
async def test_every_frame_at_a_wrong_time(kind: FrameType) -> None:
    specs = [(kind, 0, "default", 99, 99, b"", 8, None), (kind, 1, 7, -1, 2**64 - 1, b"m", 0, 0)]
    for error in await conversation(specs):
        assert error is None or isinstance(error, dist.DistError)


WINDOW = 1 << 16


@pytest.mark.parametrize("kind", [FrameType.EAGER, FrameType.REQUEST])
@pytest.mark.parametrize("stalls", [[], [1], [1] * 1000, [1, 0] * 500, list(range(1, 1000))])
@pytest.mark.parametrize("of_all", [False, True])
async def test_a_rank_that_sends_beyond_its_credit_is_cut_off_and_named(
    kind: FrameType, stalls: list[int], of_all: bool
) -> None:
    """Whatever it has said of messages that it holds back: the other rank waits for one message alone."""
    nbytes = 1000 if kind == FrameType.EAGER else 0
    announced = nbytes or LARGE
    waiting = asyncio.Event()
    held: list[int] = []

    async def main(rank: int) -> BaseException | None:
        await dist.barrier()
        endpoint = current_world().endpoint
        if rank == 0:
            work = dist.irecv(np.zeros(4), 1, tag=7)
            waiting.set()
            error = await outcome(work)
            held.append(endpoint.inbox.matcher.arrived_bytes())
            assert endpoint.peer(1).charged <= WINDOW + 2 * (nbytes + MESSAGE_COST)
            return error
        await waiting.wait()
        group = current_world().default_group().id
        frames = []
        meta = b"m" if kind == FrameType.EAGER else request_meta(0, b"m")
        for stall in stalls:
            about = ANY_KEY if of_all else (1, group, 7)
            frames.append(encode(FrameType.STALLED, about, id=stall))
        for number in range(1, 10_000):
            key = (0, group, number + 100)
            frames.append(encode(kind, key, id=number, length=announced, meta=meta) + bytes(nbytes))
        endpoint.connections()[0].send([b"".join(frames)])
        return await outcome(dist.irecv(np.zeros(4), 0))  # until the stream ends

    async with asyncio.timeout(LIMIT_SECONDS):
        error, _ = await run_ranks(2, main, buffer_bytes=WINDOW)
    assert isinstance(error, dist.PeerLostError)
    assert error.rank == 1
    assert f"messages that are not yet received, and may send {WINDOW}" in str(error)
    assert held[0] <= WINDOW
