"""Collectives in chunks that begin before anything is made for them, beside those that do not."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.collectives import shm_choice
from aiodist.collectives.rule_tables import encode
from aiodist.collectives.schedule import Step
from aiodist.collectives.select import MANY, Choice, Rule
from aiodist.collectives.shm_exchange import InChunks
from aiodist.collectives.shm_layout import ShmLayout
from aiodist.groups import shm_collective
from aiodist.groups.shm_collective import caller_overlaps
from aiodist.groups.world import current_world
from aiodist.shm.group_area import CHUNK_BYTES, CHUNK_TAGS, OVERSUBSCRIBED_CHUNK_BYTES
from aiodist.sync.coalescing import overlapped
from aiodist.testing.in_process import run_ranks
from tests.engine.conftest import outcome

COUNT = (1 << 18) + 4097
"""Float32 of a block: more than a slot is used for, and no whole number of chunks or stripes."""


async def meet() -> None:
    """All ranks' memory is open, and none is in an operation."""
    await dist.barrier()
    await dist.barrier()


@cache
def steps(count: int) -> np.ndarray:
    return np.resize(np.arange(251, dtype=np.float32) * np.float32(0.1), count)


def row(rank: int, count: int = COUNT) -> np.ndarray:
    return steps(count) + np.float32(rank)


def reduced(rows: list[np.ndarray]) -> np.ndarray:
    """In the order of ranks, as everywhere."""
    total = rows[0].copy()
    for other in rows[1:]:
        total += other
    return total


def kinds(
    rank: int, size: int
) -> dict[str, tuple[Callable[[], dist.Work[None]], Callable[[], bool]]]:
    """Each collective: what starts it, and whether its results are right on this rank, to the bit."""
    rows = [row(r) for r in range(size)]
    mine, root = rows[rank].copy(), size - 1

    def broadcast() -> bool:
        return bool((mine == rows[1]).all())

    def all_reduce() -> bool:
        return bool((mine == reduced(rows)).all())

    def average() -> bool:
        return bool((mine == reduced(rows) / np.float32(size)).all())

    def reduce() -> bool:
        return bool((mine == (reduced(rows) if rank == root else rows[rank])).all())

    gathered = np.empty((size, COUNT), np.float32)
    uneven = [np.empty(COUNT >> (r % 2) * 4, np.float32) for r in range(size)]
    blocks = np.stack([row(rank + r) for r in range(size)])
    block = np.empty(COUNT, np.float32)
    own = row(rank, len(uneven[rank]))
    return {
        "broadcast": (lambda: dist.broadcast(mine, 1), broadcast),
        "all_reduce": (lambda: dist.all_reduce(mine), all_reduce),
        "all_reduce, AVG": (lambda: dist.all_reduce(mine, dist.ReduceOp.AVG), average),
        "reduce": (lambda: dist.reduce(mine, root), reduce),
        "all_gather": (
            lambda: dist.all_gather_into_tensor(gathered, mine),
            lambda: bool((gathered == np.stack(rows)).all()),
        ),
        "all_gather, uneven": (
            lambda: dist.all_gather(uneven, own),
            lambda: all((out == row(r, len(out))).all() for r, out in enumerate(uneven)),
        ),
        "reduce_scatter": (
            lambda: dist.reduce_scatter_tensor(block, blocks.reshape(-1)),
            lambda: bool((block == reduced([row(r + rank) for r in range(size)])).all()),
        ),
    }


KINDS = tuple(kinds(0, 2))


@pytest.mark.parametrize("size", [2, 3])
async def test_by_turns_each_rank_is_the_last(size: int) -> None:
    """The last rank to call starts at once and the others wait for it; all results are right."""

    async def main(rank: int) -> None:
        await meet()
        for step in range(size):
            for number, kind in enumerate(KINDS):
                begin, is_right = kinds(rank, size)[kind]
                for _ in range((step + number + rank) % size):
                    await asyncio.sleep(0)
                await begin()
                assert is_right(), (step, kind)

    await run_ranks(size, main, "shm", timeout=20)


async def test_a_chunk_that_was_there_too_early_stays_until_the_other_rank_has_left() -> None:
    """A rank that gives an operation up may have written its first chunk, which others may read."""
    given_up = asyncio.Event()

    async def main(rank: int) -> None:
        await meet()
        communicator = current_world().default_group().communicator
        assert communicator is not None
        first, second = row(rank), row(rank + 5)
        if rank == 0:
            work = dist.all_reduce(first)
            there = communicator.mine[CHUNK_TAGS[0]]
            assert there == communicator.progress + 2  # of this operation, its first step
            chunk = bytes(communicator.chunks[0][0])
            work.cancel()
            assert isinstance(await outcome(work), asyncio.CancelledError)
            later = dist.all_reduce(second)
            await asyncio.sleep(0)
            assert communicator.mine[CHUNK_TAGS[0]] == there
            assert bytes(communicator.chunks[0][0]) == chunk
            given_up.set()
            await later
        else:
            await given_up.wait()
            assert isinstance(await outcome(dist.all_reduce(first)), dist.CollectiveCancelledError)
            await dist.all_reduce(second)
        assert (second == reduced([row(5), row(6)])).all()

    await run_ranks(2, main, "shm", timeout=20)


async def test_the_first_chunk_is_written_once_while_the_others_are_looked_for() -> None:
    called = asyncio.Event()

    async def main(rank: int) -> None:
        await meet()
        communicator = current_world().default_group().communicator
        assert communicator is not None
        mine = row(rank)
        if rank == 1:
            await called.wait()
            await dist.all_reduce(mine)
        else:
            work = dist.all_reduce(mine)
            chunk = communicator.chunks[0][0]
            chunk[0] ^= 1  # a second write of the chunk would remove this mark
            await asyncio.sleep(0)
            assert chunk[0] == row(0).view(np.uint8)[0] ^ 1
            chunk[0] ^= 1
            called.set()
            await work
        assert (mine == reduced([row(0), row(1)])).all()

    await run_ranks(2, main, "shm", timeout=20)


async def test_all_to_all_publishes_nothing_before_all_agree_on_block_lengths() -> None:
    called = asyncio.Event()

    async def main(rank: int) -> None:
        await meet()
        communicator = current_world().default_group().communicator
        assert communicator is not None
        if rank == 1:
            await called.wait()
        base = communicator.progress + 1
        given, found = np.stack([row(rank), row(rank + 1)]).ravel(), np.empty(2 * COUNT, np.float32)
        work = dist.all_to_all_single(found, given)
        assert (communicator.mine[CHUNK_TAGS[0]] > base) == (rank == 1)
        called.set()
        await work
        assert (found.reshape(2, -1) == np.stack([row(rank), row(rank + 1)])).all()

    await run_ranks(2, main, "shm", timeout=20)


@pytest.mark.parametrize("oversubscribed", [False, True])
async def test_chunks_are_longer_where_ranks_outnumber_cores(
    segment_bytes: Callable[[int], None], oversubscribed: bool
) -> None:
    segment_bytes(48 << 20)

    async def main(rank: int) -> None:
        world = current_world()
        world.endpoint.spin_policy.oversubscribed = oversubscribed
        await meet()
        communicator = world.default_group().communicator
        assert communicator is not None
        assert communicator.shape.chunk_bytes == (
            OVERSUBSCRIBED_CHUNK_BYTES if oversubscribed else CHUNK_BYTES
        )
        mine = row(rank, 3 * COUNT)
        await dist.all_reduce(mine)
        assert (mine == reduced([row(r, 3 * COUNT) for r in range(2)])).all()

    await run_ranks(2, main, "shm", timeout=20)


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ranks that have made the moves of a chain, one by one."""
    found: list[int] = []
    make = shm_choice.all_reduce_chain

    def made(shm: ShmLayout, *rest: Any) -> Iterator[Step]:
        found.append(shm.rank)
        return make(shm, *rest)

    monkeypatch.setattr(shm_choice, "all_reduce_chain", made)
    return found


async def add_up(rank: int, size: int, count: int, op: dist.ReduceOp, calls: int) -> None:
    """All-reduces on one and the same memory, right to the bit, with ranks that come in any order."""
    mine = np.empty(count, np.float32)
    for call in range(calls):
        mine[:] = row(rank + call, count)
        for _ in range((call + rank) % size):
            await asyncio.sleep(0)
        await dist.all_reduce(mine, op)
        total = reduced([row(r + call, count) for r in range(size)])
        assert (mine == (total / np.float32(size) if op == dist.ReduceOp.AVG else total)).all()


@pytest.mark.parametrize(
    ("size", "blocks", "oversubscribed", "op"),
    [
        (3, 3, True, dist.ReduceOp.SUM),
        (3, 5, False, dist.ReduceOp.SUM),
        (3, 5, True, dist.ReduceOp.SUM),
        (4, 5, True, dist.ReduceOp.AVG),
    ],
)
async def test_long_data_uses_the_chain_where_ranks_outnumber_cores(
    segment_bytes: Callable[[int], None],
    chains: list[int],
    size: int,
    blocks: int,
    oversubscribed: bool,
    op: dist.ReduceOp,
) -> None:
    segment_bytes(48 << 20)

    async def main(rank: int) -> None:
        current_world().endpoint.spin_policy.oversubscribed = oversubscribed
        await meet()
        await add_up(rank, size, blocks * COUNT, op, 4)

    await run_ranks(size, main, "shm", timeout=20)
    assert set(chains) == (set(range(size)) if oversubscribed and blocks > 3 else set())


@pytest.mark.parametrize(("segment", "chunk"), [(9 << 20, 512 << 10), (5 << 20, 128 << 10)])
async def test_a_chain_goes_in_the_chunks_that_there_are(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    segment_bytes: Callable[[int], None],
    chains: list[int],
    segment: int,
    chunk: int,
) -> None:
    """A table names it, in a segment that has room for two chunks of a rank."""
    table = tmp_path / "table.json"
    rows = {"all_reduce": [Rule(4, MANY, Choice("chain"), least=4)]}
    table.write_text(encode({}, rows, {}, {}))
    monkeypatch.setenv("AIODIST_TABLE", str(table))
    segment_bytes(segment)

    async def main(rank: int) -> None:
        await meet()
        communicator = current_world().default_group().communicator
        assert communicator is not None
        assert (communicator.shape.chunk_bytes, communicator.shape.depth) == (chunk, 2)
        await add_up(rank, 4, 5 * COUNT, dist.ReduceOp.SUM, 2)

    await run_ranks(4, main, "shm", timeout=20)
    assert chains


@pytest.mark.parametrize("kind", KINDS)
async def test_the_last_caller_has_made_all_possible_progress_when_the_call_returns(
    kind: str,
) -> None:
    called = asyncio.Event()

    async def main(rank: int) -> None:
        await meet()
        begin, is_right = kinds(rank, 2)[kind]
        communicator = current_world().default_group().communicator
        assert communicator is not None
        if rank == 1:
            await called.wait()
        base = communicator.progress + 1
        work = begin()
        # The first one's first chunk is there, where it has one to give; the second follows when all
        # have met.
        first, second = (communicator.mine[tag] > base for tag in CHUNK_TAGS[:2])
        assert first == (rank == 1 or kind != "broadcast")
        assert second == (rank == 1)
        called.set()
        await work
        assert is_right()

    await run_ranks(2, main, "shm", timeout=20)


@pytest.mark.parametrize("seconds", [5.0, 0.0])
async def test_a_root_that_waits_for_no_peer_completes_and_lets_the_loop_turn(
    seconds: float, monkeypatch: pytest.MonkeyPatch, segment_bytes: Callable[[int], None]
) -> None:
    """The root of a broadcast that fits into its chunks; each other rank needs the root alone."""
    segment_bytes(48 << 20)
    monkeypatch.setattr(shm_collective, "DRIVE_SECONDS", seconds)
    ended = [asyncio.Event() for _ in range(3)]

    async def main(rank: int) -> None:
        for run_cached in range(3):
            await meet()
            ended[rank].clear()
            await meet()
            data = row(rank + run_cached)
            if rank:
                await ended[rank - 1].wait()
            work = dist.broadcast(data, 0)
            assert work.is_completed() == (seconds > 0)
            await work
            assert (data == row(run_cached)).all()
            ended[rank].set()

    await run_ranks(3, main, "shm", timeout=20)


async def test_a_collective_that_waited_for_its_turn_has_the_timeout_of_its_call(
    segment_bytes: Callable[[int], None],
) -> None:
    """The third rank starts after the root and another rank have timed out."""
    segment_bytes(48 << 20)
    called = [asyncio.Event() for _ in range(2)]
    ended = [asyncio.Event() for _ in range(2)]

    async def main(rank: int) -> None:
        await meet()
        data, total = row(rank), np.ones(2)
        if rank < 2:
            works = [dist.all_reduce(total), dist.broadcast(data, 0)]
            called[rank].set()
            for work in works:
                await work
            ended[rank].set()
        else:
            for event in called:
                await event.wait()
            await dist.all_reduce(total)
            for event in ended:
                await event.wait()
            await dist.broadcast(data, 0)
        assert total.tolist() == [3, 3]
        assert (data == row(0)).all()

    await run_ranks(3, main, "shm", timeout=20)


async def test_a_root_has_at_most_as_many_pieces_in_flight_as_chunks() -> None:
    called = asyncio.Event()

    async def main(rank: int) -> None:
        await meet()
        communicator = current_world().default_group().communicator
        assert communicator is not None
        shape = communicator.shape
        count = shape.chunk_bytes * shape.depth // 4 + 1
        data = row(rank, count)
        if rank == 0:
            work = dist.broadcast(data, 0)
            for _ in range(20):
                await asyncio.sleep(1e-3)
            assert not work.is_completed()
            assert work._waiting_for() == [1]
            called.set()
            await work
        else:
            await called.wait()
            await dist.broadcast(data, 0)
        assert (data == row(0, count)).all()

    await run_ranks(3, main, "shm", timeout=20)


async def begin(rank: int, called: asyncio.Event, timeout: float = 10) -> dist.Work[None]:
    """Start an all_reduce: rank 1 starts at once and cannot complete without rank 0."""
    if rank == 1:
        await called.wait()
    work = dist.all_reduce(torch.from_numpy(row(rank)), timeout=timeout)
    called.set()
    assert not work.is_completed()
    return work


async def test_a_chunked_collective_keeps_its_tensor_until_its_end() -> None:
    called = asyncio.Event()

    async def main(rank: int) -> None:
        for run_cached in range(2):  # the second one is known by then
            await meet()
            if rank == 1:
                await called.wait()
            tensor = torch.from_numpy(row(rank))
            memory = weakref.ref(tensor)
            work = dist.all_reduce(tensor)
            called.set()
            if rank == 1:
                assert not work.is_completed(), run_cached
            del tensor
            gc.collect()
            assert memory() is not None
            await work
            del work
            gc.collect()
            assert memory() is None
            await dist.barrier()
            called.clear()

    await run_ranks(2, main, "shm", timeout=20)


async def test_a_cancelled_collective_fails_on_all_ranks() -> None:
    called = asyncio.Event()

    async def main(rank: int) -> None:
        await meet()
        work = await begin(rank, called)
        if rank == 1:
            assert work.cancel()
        expected = asyncio.CancelledError if rank else dist.CollectiveCancelledError
        assert isinstance(await outcome(work), expected)
        await dist.barrier()

    await run_ranks(2, main, "shm", timeout=20)


async def test_a_chunked_collective_has_the_timeout_of_its_call() -> None:
    called = asyncio.Event()

    async def main(rank: int) -> None:
        await meet()
        communicator = current_world().default_group().communicator
        assert communicator is not None
        if rank == 0:
            communicator.poll = lambda: None  # type: ignore[method-assign]  # it never goes on
        error = await outcome(await begin(rank, called, 0.2 if rank else 20))
        assert isinstance(error, dist.CollectiveTimeoutError)
        assert error.rank == 1

    await run_ranks(2, main, "shm", timeout=20)


async def test_an_error_of_a_chunked_collective_is_the_operations_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise ArithmeticError("no such sum")

    monkeypatch.setattr(InChunks, "schedule", broken)
    called = asyncio.Event()

    async def main(rank: int) -> None:
        await meet()
        if rank == 1:
            await called.wait()
        work = dist.all_reduce(row(rank))
        called.set()
        assert "no such sum" in str(await outcome(work))
        await dist.barrier()

    await run_ranks(2, main, "shm", timeout=20)


def test_a_call_that_does_not_block_overlaps() -> None:
    seen: list[bool] = []

    def start() -> Any:
        seen.append(caller_overlaps.get())
        return SimpleNamespace()

    overlapped(start, None, True)
    assert seen == [True]
    assert not caller_overlaps.get()


@pytest.mark.parametrize("count", [3, COUNT])
@pytest.mark.parametrize("size", [2, 3])
async def test_an_input_in_the_place_of_another_rank_is_gathered(size: int, count: int) -> None:
    async def main(rank: int) -> None:
        await meet()
        for _ in range(3):
            out = np.zeros(size * count, np.float32)
            place = (rank + 1) % size
            mine = out[place * count : (place + 1) * count]
            mine[:] = row(rank, count)
            await dist.all_gather_into_tensor(out, mine)
            assert np.array_equal(out, np.concatenate([row(r, count) for r in range(size)]))

    await run_ranks(size, main, "shm", timeout=30)
