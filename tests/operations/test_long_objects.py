"""Long objects: their parts travel as tensors do, and the event loop goes on turning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.p2p import shm_progress
from aiodist.testing.in_process import run_ranks
from aiodist.wire.frames import OBJECT, PART
from tests.engine.conftest import engine_of

TRANSPORTS = ["inproc", "tcp", "shm"]
MIB = 1 << 20


def large(number: int) -> dict[str, Any]:
    """Return an object of parts of many sizes: eager ones, long ones, and some in the envelope."""
    return {
        "small": torch.full((3,), number),
        "middle": np.full(100_000, number, np.uint8),
        "eager": torch.full((MIB // 8,), float(number), dtype=torch.float64),
        "long": np.full((3, MIB), number, np.uint8),
        "text": bytes([number]) * (2 * MIB),
        "rows": [{"id": n, "of": number} for n in range(5000)],
    }


def check(obj: Any, number: int) -> None:
    expected = large(number)
    assert list(obj) == list(expected)
    for name, value in expected.items():
        assert type(obj[name]) is type(value)
        if isinstance(value, (torch.Tensor, np.ndarray)):
            assert (obj[name] == value).all()
            assert obj[name].shape == value.shape
        else:
            assert obj[name] == value


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_long_objects_travel_by_messages_and_collectives(transport: str) -> None:
    async def on_rank(rank: int) -> None:
        root = 1
        if rank == 0:
            await dist.send_object_list([large(7), "and"], root)
        elif rank == root:
            objects: list[Any] = [None, None]
            assert await dist.recv_object_list(objects) == 0
            check(objects[0], 7)
            assert objects[1] == "and"
        objects = [large(root)] if rank == root else [None]
        mine = objects[0]
        await dist.broadcast_object_list(objects, root)
        check(objects[0], root)
        if rank == root:
            assert objects[0] is mine
        given = large(rank) if rank else "nothing long"
        objects = [None] * 3
        await dist.all_gather_object(objects, given)
        assert objects[0] == "nothing long"
        for number in (1, 2):
            check(objects[number], number)
        if rank:
            assert not np.shares_memory(objects[rank]["long"], given["long"])
        gathered: list[Any] | None = [None] * 3 if rank == root else None
        await dist.gather_object(given, gathered, root)
        if gathered is not None:
            check(gathered[1], 1)
            check(gathered[2], 2)
            assert gathered[1]["eager"].data_ptr() != given["eager"].data_ptr()
        output: list[Any] = [None]
        inputs = ["nothing", large(1), large(2)] if rank == root else None
        await dist.scatter_object_list(output, inputs, root)
        check(output[0], rank) if rank else None
        if inputs is not None:
            output[0]["long"].fill(99)
            check(inputs[1], 1)

    await run_ranks(3, on_rank, transport, timeout=60)


@asynccontextmanager
async def counted_turns() -> AsyncIterator[list[int]]:
    """Count the turns of the loop, which another task would have had."""
    turns = [0]

    async def turn() -> None:
        while True:
            await asyncio.sleep(0)
            turns[0] += 1

    task = asyncio.create_task(turn())
    try:
        yield turns
    finally:
        task.cancel()


@pytest.mark.parametrize(
    ("obj", "least"),
    [
        ([{"id": n, "name": "x", "value": n / 2} for n in range(100_000)], 150),
        (bytes(64 * MIB), 64),
        (torch.zeros(8 * MIB, dtype=torch.float64), 4),
        ("x" * (16 * MIB), 64),
    ],
    ids=["rows", "bytes", "tensor", "text"],
)
async def test_the_loop_turns_while_a_long_object_travels(obj: Any, least: int) -> None:
    """Of 100,000 rows it turns at each few hundred, of bytes at each MiB."""

    async def on_rank(rank: int) -> None:
        if rank == 0:
            await dist.send_object_list([obj], 1)
        else:
            objects: list[Any] = [None]
            await dist.recv_object_list(objects, 0)
            same = objects[0] == obj
            assert same.all() if isinstance(same, torch.Tensor) else same

    async with counted_turns() as turns:
        await run_ranks(2, on_rank, timeout=60)
    assert turns[0] >= least


async def test_a_later_object_does_not_overtake_one_that_is_being_packed() -> None:
    rows = [[n, [n]] for n in range(50_000)]

    async def on_rank(rank: int) -> None:
        if rank == 0:
            first = dist.send_object_list([rows], 1)
            second = dist.send_object_list(["short"], 1)
            other = dist.send_object_list(["other tag"], 1, tag=1)
            await other
            assert not first.is_completed()
            await first
            await second
        else:
            objects: list[Any] = [None]
            await dist.recv_object_list(objects, 0, tag=1)
            assert objects == ["other tag"]
            await dist.recv_object_list(objects, 0)
            assert objects == [rows]
            await dist.recv_object_list(objects, 0)
            assert objects == ["short"]

    await run_ranks(2, on_rank, timeout=60)


def one_part(number: int) -> dict[str, Any]:
    """Return an object with one long part, which is one message."""
    return {"number": number, "array": np.full(24 * MIB, number, np.uint8)}


def check_one_part(obj: Any, number: int) -> None:
    assert obj["number"] == number
    assert obj["array"].shape == (24 * MIB,)
    assert (obj["array"] == number).all()
    obj["array"].fill(0)  # the receiver's own


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("make", "test"), [(large, check), (one_part, check_one_part)])
async def test_a_cancelled_receive_hands_its_object_on(
    transport: str,
    make: Callable[[int], Any],
    test: Callable[[Any, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The head of the object has come, its long part has not: the next receive gets all of it."""
    monkeypatch.setattr(shm_progress, "TURN_SECONDS", 0.0)  # else it has come before the next turn

    async def on_rank(rank: int) -> None:
        if rank == 0:
            await dist.barrier()
            await dist.send_object(make(5), 1)
            await dist.send_object(make(6), 1)
            await dist.barrier()
            return
        first = asyncio.create_task(wait_for(dist.recv_object(0)))
        second = asyncio.create_task(wait_for(dist.recv_object()))
        await asyncio.sleep(0)
        await dist.barrier()
        while not _a_part_is_expected():  # noqa: ASYNC110  # nothing says so
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        obj, source = await second
        assert source == 0
        test(obj, 5)
        obj, source = await dist.recv_object(0)
        assert source == 0
        test(obj, 6)
        await dist.barrier()

    async def wait_for(work: Any) -> Any:
        return await work

    await run_ranks(2, on_rank, transport, timeout=60)


def _a_part_is_expected() -> bool:
    inbox = engine_of().endpoint.inbox
    posted = [key for key, _ in inbox.matcher.posted if key[0] == PART]
    return bool(posted) or any(recv.key[0] in (OBJECT, PART) for recv in inbox.tickets.values())


@pytest.mark.parametrize("is_handed_on", [False, True])
async def test_a_receive_whose_object_was_withdrawn_comes_before_later_ones(
    is_handed_on: bool,
) -> None:
    begun = asyncio.Event()

    async def on_rank(rank: int) -> None:
        if rank == 0:
            await dist.barrier()
            work = dist.send_object([large(5), large(6)], 1)
            await begun.wait()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            await dist.send_object("first", 1)
            await dist.send_object("second", 1)
            return
        first, second = dist.recv_object(0), dist.recv_object(0)
        await dist.barrier()
        while not _a_part_is_expected():  # noqa: ASYNC110  # nothing says so
            await asyncio.sleep(0)
        if is_handed_on:  # the object, to a receive that was never posted itself
            second.cancel()
            first.cancel()
            first, second = dist.recv_object(0), dist.recv_object(0)
        begun.set()
        assert (await first)[0] == "first"
        assert (await second)[0] == "second"

    await run_ranks(2, on_rank, timeout=60)


@pytest.mark.parametrize("make", [large, one_part])
@pytest.mark.parametrize("backwards", [False, True])
async def test_objects_of_cancelled_receives_keep_their_order(
    make: Callable[[int], Any], backwards: bool
) -> None:
    async def on_rank(rank: int) -> None:
        if rank == 0:
            sends = [dist.send_object(make(5), 1), dist.send_object(large(6), 1)]
            await dist.barrier()
            await asyncio.gather(*sends)
            await dist.barrier()
            return
        await dist.barrier()  # both messages are there
        works = [dist.recv_object(0), dist.recv_object(0)]
        for work in reversed(works) if backwards else works:
            assert work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        (check if make is large else check_one_part)((await dist.recv_object(0))[0], 5)
        check((await dist.recv_object(0))[0], 6)
        await dist.barrier()

    await run_ranks(2, on_rank, timeout=60)


class OtherMessenger:
    """The endpoint in the place of a library, which drops a long message whose receive is cancelled."""

    def __init__(self, endpoint: Any) -> None:
        self._endpoint = endpoint
        self.kinds: list[int] = []

    def send(self, dst: int, key: Any, data: memoryview, meta: bytes) -> Any:
        self.kinds.append(key[0])
        return self._endpoint.send(dst, key, data, meta)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._endpoint, name)


async def test_a_long_part_has_a_receive_of_its_own_where_another_library_carries_it() -> None:
    async def on_rank(rank: int) -> None:
        group = engine_of()
        other: Any = OtherMessenger(group.endpoint)
        no_collective: Any = None
        group.use_messenger(other, no_collective)
        if rank == 0:
            await dist.send_object(one_part(5), 1)
            assert other.kinds == [OBJECT, PART]
        else:
            obj, _ = await dist.recv_object(0)
            check_one_part(obj, 5)

    await run_ranks(2, on_rank, timeout=60)


@pytest.mark.parametrize("make", [large, one_part])
async def test_a_cancelled_send_is_taken_back_also_when_its_envelope_has_gone(
    make: Callable[[int], Any],
) -> None:
    async def on_rank(rank: int) -> None:
        if rank == 0:
            work = dist.send_object_list([make(5)], 1)
            await dist.barrier()  # the envelope is there, and the long part was announced
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            await dist.barrier()
            await dist.send_object_list(["next"], 1)
        else:
            await dist.barrier()
            await dist.barrier()
            objects: list[Any] = [None]
            assert await dist.recv_object_list(objects) == 0
            assert objects == ["next"]

    await run_ranks(2, on_rank, timeout=60)


async def test_a_timeout_of_a_receive_leaves_the_object_for_the_next() -> None:
    async def on_rank(rank: int) -> None:
        if rank == 0:
            await dist.barrier()
            await dist.send_object_list([large(3)], 1)
            await dist.barrier()
            return
        with pytest.raises(dist.CollectiveTimeoutError, match="recv_object from rank 0"):
            await dist.recv_object_list([None], 0, timeout=0.01)
        await dist.barrier()
        objects: list[Any] = [None]
        await dist.recv_object_list(objects, 0)
        check(objects[0], 3)
        await dist.barrier()

    await run_ranks(2, on_rank, timeout=60)
