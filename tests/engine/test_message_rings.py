"""Messages in shared memory between real ranks: every kind of them, kills, forks, and no trace."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.world import current_world
from aiodist.p2p.outbox import EAGER_BYTES, HOST_EAGER_BYTES
from aiodist.testing import run_ranks
from tests.engine.conftest import ranks_of
from tests.leftovers import named_segments
from tests.limits import scaled
from tests.warm_python import WarmPython


def has_ring_to(rank: int) -> bool:
    """Return whether this rank sends to ``rank`` through shared memory."""
    shm = current_world().endpoint.peer(rank).outbox.shm
    return shm is not None and shm.ring is not None


def numbers(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, length, np.uint8)


def positions(length: int, seed: int) -> np.ndarray:
    """Made faster, and different at every place near another."""
    return (np.arange(length, dtype=np.uint32) + seed).astype(np.uint8)


async def test_many_ranks_in_turn_find_room_under_a_small_limit(
    segment_bytes: Callable[[int], None],
) -> None:
    """Twelve rings of 28 KiB each."""
    segment_bytes(1 << 20)
    size = 13

    async def main(rank: int) -> None:
        for turn in range(3):
            for other in range(1, size):
                for length in (300_000, EAGER_BYTES + 5):
                    if rank == 0:
                        await dist.send(positions(length, turn * other), other)
                        assert has_ring_to(other), "through memory every time"
                    elif rank == other:
                        into = np.zeros(length, np.uint8)
                        await dist.recv(into, 0)
                        assert (into == positions(length, turn * other)).all()
        await dist.barrier()

    await run_ranks(size, main, "shm", timeout=scaled(40))


async def test_many_messages_at_once_under_a_small_limit_arrive_unchanged(
    segment_bytes: Callable[[int], None],
) -> None:
    """Rings and streams take turns: no part of a message overtakes another."""
    segment_bytes(1 << 20)
    size = 6

    async def main(rank: int) -> None:
        for turn in range(3):
            lengths = [300_000, (3 << 20) + turn, 900_001, (1 << 20) + 1]
            others = [other for other in range(size) if other != rank]
            sends = [
                dist.isend(positions(length, 100 * rank + turn), other)
                for length in lengths
                for other in others
            ]
            for other in others:
                for length in lengths:
                    into = np.zeros(length, np.uint8)
                    await dist.recv(into, other)
                    assert (into == positions(length, 100 * other + turn)).all()
            for sent in sends:
                await sent

    await run_ranks(size, main, "shm", timeout=scaled(40))


async def test_messages_of_every_kind_arrive_unchanged() -> None:
    lengths = [
        HOST_EAGER_BYTES,
        HOST_EAGER_BYTES + 1,
        600_001,
        EAGER_BYTES,
        EAGER_BYTES + 1,
        5 << 20,
    ]

    async def main(rank: int) -> None:
        right, left = (rank + 1) % 3, (rank - 1) % 3
        for length in lengths:
            sent = dist.isend(numbers(length, rank), right)
            into = np.zeros(length, np.uint8)
            assert await dist.recv(into, left) == left
            await sent
            assert (into == numbers(length, left)).all()
        assert has_ring_to(right)
        if rank:  # from whomever, unexpected, and without a buffer
            await dist.send(numbers(400_000, rank), 0)
            await dist.send(numbers(3 << 20, rank), 0, tag=1)
        else:
            for _ in range(2):
                into = np.zeros(400_000, np.uint8)
                source = await dist.recv(into)
                assert (into == numbers(400_000, source)).all()
            for _ in range(2):
                received = await dist.recv(tag=1)
                assert (received.tensor == numbers(3 << 20, received.source)).all()
        objects: list[object] = [None] * 3
        await dist.all_gather_object(objects, {"rank": rank, "data": numbers(300_000, rank)})
        for other, found in enumerate(objects):
            assert isinstance(found, dict)
            assert (found["data"] == numbers(300_000, other)).all()

    await run_ranks(3, main, "shm", timeout=40)


async def test_a_flood_leaves_other_tags_their_way() -> None:
    """More than the receiver buffers, then a message that it wants first."""

    async def main(rank: int) -> None:
        if rank == 0:
            works = [dist.isend(numbers(900_000, seed), 1) for seed in range(12)]
            await dist.send(numbers(200_000, 99), 1, tag=7)
            for work in works:
                await work
        else:
            into = np.zeros(200_000, np.uint8)
            await dist.recv(into, 0, tag=7)
            assert (into == numbers(200_000, 99)).all()
            for seed in range(12):
                into = np.zeros(900_000, np.uint8)
                await dist.recv(into, 0)
                assert (into == numbers(900_000, seed)).all()

    await run_ranks(2, main, "shm", timeout=40, buffer_bytes=2 << 20)


@pytest.mark.parametrize("nbytes", [1 << 20, 2 << 20])
async def test_a_segment_with_little_room(
    segment_bytes: Callable[[int], None], nbytes: int
) -> None:
    segment_bytes(nbytes)

    async def main(rank: int) -> list[bool]:
        for other in range(5):
            if other != rank:
                work = dist.isend(numbers(2 << 20, rank), other)
                into = np.zeros(2 << 20, np.uint8)
                await dist.recv(into, other)
                await work
                assert (into == numbers(2 << 20, other)).all()
        found = [has_ring_to(other) for other in range(5) if other != rank]
        data = np.full(100_000, 1.0)
        await dist.all_reduce(data)
        assert (data == 5).all()
        return found

    found = await run_ranks(5, main, "shm", timeout=60)
    assert all(all(each) for each in found), "one after the other, if not all at once"


async def test_streams_alone_where_shared_memory_was_not_chosen() -> None:
    async def main(rank: int) -> None:
        work = dist.isend(numbers(2 << 20, rank), 1 - rank)
        into = np.zeros(2 << 20, np.uint8)
        await dist.recv(into, 1 - rank)
        await work
        assert not has_ring_to(1 - rank)

    await run_ranks(2, main, "unix", timeout=40)


TRAFFIC = """
    import asyncio, random, sys
    import numpy as np
    import aiodist as dist
    path, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    LENGTHS = [10, 100_000, 131_072, 700_001, 1 << 20, 1_500_000]

    async def main():
        method = "file://" + path
        await dist.init_process_group(None, method, rank=rank, world_size=size, timeout=60)
        same = random.Random(5)  # all ranks draw the same messages
        for step in range(30):
            plan = [
                (src, dst, same.choice(LENGTHS), same.randrange(3), same.randrange(256))
                for src in range(size)
                for dst in range(size)
                for _ in range(same.randrange(4))
                if src != dst
            ]
            works = [
                dist.isend(np.full(length, value, np.uint8), dst, tag=tag)
                for src, dst, length, tag, value in plan
                if src == rank
            ]
            for src, dst, length, tag, value in plan:
                if dst == rank:
                    into = np.zeros(length, np.uint8)
                    await dist.recv(into, src, tag=tag)
                    assert (into == value).all()
            for work in works:
                await work
        await dist.destroy_process_group()

    asyncio.run(main())
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [2, 3])
def test_traffic_in_all_directions_between_processes(
    tmp_path: Path, size: int, warm_python: WarmPython
) -> None:
    """A sleeping rank is woken, with a core for each rank and without; a lost wake-up would time out."""
    with ranks_of(TRAFFIC, size, tmp_path, size, python=warm_python.command) as ranks:
        assert [rank.wait(timeout=scaled(100)) for rank in ranks] == [0] * size


SURVIVE = """
    import gc, os, sys
    import numpy as np
    import aiodist.sync as dist
    path, rank = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo", "file://" + path, rank=rank, world_size=3, timeout=60)
    both = dist.new_group([0, 1])
    others = [other for other in range(3) if other != rank]
    content = np.arange(5 << 18, dtype=np.float32)

    def exchange(others):
        works = [dist.isend(content + rank, other) for other in others]
        for other in others:
            into = np.zeros_like(content)
            dist.recv(into, other)
            assert (into == content + other).all()
        for work in works:
            work.wait()

    exchange(others)
    assert "/memfd:aiodist" in open("/proc/self/maps").read()
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    exchange(others)
    print("ready", flush=True)
    try:
        while True:
            exchange(others)
    except dist.PeerLostError as error:
        assert error.rank == 2, error
    # The group has lost a member; the rings of the others go on.
    into = np.zeros_like(content)
    work = dist.isend(content, 1 - rank, both)
    dist.recv(into, 1 - rank, both)
    work.wait()
    assert (into == content).all()
    dist.destroy_process_group()
    gc.collect()
    assert "/memfd:aiodist" not in open("/proc/self/maps").read()
    print("survived", flush=True)
"""


@pytest.mark.timeout(120)
def test_a_rank_killed_in_the_middle_of_messages_leaves_nothing(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    shm = named_segments()
    with ranks_of(SURVIVE, 3, tmp_path, python=warm_python.command) as ranks:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        ranks[2].send_signal(signal.SIGKILL)
        outputs = [rank.communicate(timeout=scaled(60))[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, -signal.SIGKILL]
    assert outputs[:2] == ["survived\n"] * 2
    assert named_segments() == shm
