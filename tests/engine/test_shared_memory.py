"""Collectives in shared memory: what streams do not have to get right."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.naming import neighbours
from aiodist.groups.shm_communicator import ShmCommunicator
from aiodist.groups.shm_opening import NEAR
from aiodist.groups.world import current_world
from aiodist.p2p.spin_policy import SUSPICION_SECONDS
from aiodist.shm import area_directory
from aiodist.shm.group_area import ASLEEP
from aiodist.testing.in_process import run_ranks
from tests.engine.conftest import engine_of, outcome, ranks_of
from tests.leftovers import named_segments
from tests.limits import scaled, until
from tests.warm_python import WarmPython


def communicator() -> ShmCommunicator:
    found = current_world().default_group().communicator
    assert found is not None
    return found


async def test_collectives_run_in_memory_and_send_no_message() -> None:
    async def main(rank: int) -> None:
        await dist.barrier()
        assert communicator().words
        sent: list[object] = []
        endpoint = current_world().endpoint
        endpoint.send = lambda *a: sent.append(a)  # type: ignore[method-assign,assignment,return-value]
        for length in (1, 100_000):
            data = np.full(length, float(rank))
            await dist.all_reduce(data)
            assert (data == 3).all()
            await dist.broadcast(data, 1)
        await dist.barrier()
        assert not sent
        del endpoint.send
        await dist.barrier()

    await run_ranks(3, main, "shm", timeout=20)


async def test_many_ranks_have_few_connections_though_some_were_late() -> None:
    """While those are away the others sleep for so long that they tell what they are in."""
    size = 40

    async def main(rank: int) -> int:
        if rank == 5:
            await asyncio.sleep(2 * SUSPICION_SECONDS)
        data = np.full(1, float(rank))
        await dist.all_reduce(data)
        assert data[0] == sum(range(size))
        if rank == 11:
            await asyncio.sleep(2 * SUSPICION_SECONDS)
        await dist.barrier()
        assert communicator().words
        endpoint = current_world().endpoint
        return sum(endpoint.connected(other) for other in range(size) if other != rank)

    connections = await run_ranks(size, main, "shm", timeout=scaled(60))
    assert max(connections) == len(neighbours(0, size, NEAR)) == 18


async def test_a_mismatch_among_many_ranks_reaches_all_though_another_is_away() -> None:
    size, away, over = 40, asyncio.Event(), asyncio.Barrier(40)

    async def main(rank: int) -> BaseException | None:
        await dist.barrier()
        if rank == 3:
            await away.wait()
        array = np.ones(1)
        odd = rank in (7, 27)
        call = dist.all_gather_object([0] * size, 1) if odd else dist.all_reduce(array)
        error = await outcome(call)
        away.set()
        await over.wait()  # a rank that has left is an error for the others, too
        return error

    errors = await run_ranks(size, main, "shm", timeout=scaled(60))
    assert all(isinstance(error, dist.CollectiveMismatchError) for error in errors)


@pytest.mark.parametrize("has_met", [True, False])
async def test_a_member_that_has_left_is_missed_though_it_is_no_neighbour(has_met: bool) -> None:
    """Its neighbours, which hear of its end, do not wait: only the root of the reduce does."""
    size, here, over = 20, asyncio.Barrier(20), asyncio.Barrier(19)

    async def main(rank: int) -> None:
        await here.wait()
        if has_met:
            await dist.barrier()
        if rank == 10:
            return
        assert 10 not in neighbours(0, size, NEAR)
        if rank == 0 or has_met:
            error = await asyncio.wait_for(outcome(dist.reduce(np.ones(1), 0)), scaled(10))
            assert isinstance(error, dist.PeerLostError) == (rank == 0)
            assert rank or ("rank 10" in str(error) and "has left" in str(error))
        await over.wait()

    await run_ranks(size, main, "shm", timeout=scaled(60))


async def test_a_receive_from_any_rank_fails_though_most_ranks_were_no_neighbours() -> None:
    async def main(rank: int) -> None:
        await dist.barrier()
        if rank == 0:
            error = await outcome(dist.recv(np.ones(1)))
            assert "all other ranks have left" in str(error)

    await run_ranks(20, main, "shm", timeout=scaled(20))


async def test_a_stream_that_ends_without_a_goodbye_of_a_rank_that_leaves() -> None:
    """The rank's memory says that it leaves: it has not died."""

    async def main(rank: int) -> None:
        await dist.barrier()
        endpoint = current_world().endpoint
        if rank == 0:
            endpoint.reach(1)
            error = await outcome(dist.recv(np.ones(1), 1))
            assert isinstance(error, dist.PeerLostError)
            assert error.departure == "left"
        else:
            await until(lambda: endpoint.connected(0))
            assert endpoint.memory is not None
            endpoint.memory.leave()
            for connection in endpoint.connections():
                connection.abort()

    await run_ranks(2, main, "shm", timeout=scaled(20))


@pytest.mark.parametrize("nbytes", [1 << 20, (1 << 20) + (1 << 18)])
async def test_a_segment_with_little_room(
    segment_bytes: Callable[[int], None], nbytes: int
) -> None:
    """Chunks become smaller; groups for which nothing is left use the streams, on all ranks."""
    segment_bytes(nbytes)

    async def main(rank: int) -> None:
        groups = [dist.group.WORLD]
        for _ in range(6):
            made = await dist.new_group()
            assert isinstance(made, dist.ProcessGroup)
            groups.append(made)
        for group in groups:
            data = np.arange(1_000_003, dtype=np.float32)
            await dist.all_reduce(data, group=group)
            assert (data == 3 * np.arange(1_000_003, dtype=np.float32)).all()
        shared = [
            engine_of(group).communicator is not None and not engine_of(group).communicator.is_off
            for group in groups
        ]
        assert shared[0]
        assert not shared[-1]

    await run_ranks(3, main, "shm", timeout=40)


async def test_groups_made_and_destroyed_a_thousand_times_share_to_the_last(
    segment_bytes: Callable[[int], None],
) -> None:
    """In a segment with room for two or three at once; some have never done anything."""
    segment_bytes(4 << 20)

    async def main(rank: int) -> None:
        data = np.ones(1, np.float32)
        await dist.all_reduce(data)
        for number in range(1000):
            group = await dist.new_group()
            assert isinstance(group, dist.ProcessGroup)
            if number % 10:
                data[0] = rank
                await dist.all_reduce(data, group=group)
                assert data[0] == 1
                assert engine_of(group).communicator is not None
                assert engine_of(group).communicator.words, number
            await dist.destroy_process_group(group)
        large = np.full(300_001, rank, np.float32)
        await dist.all_reduce(large, group=await dist.new_group())
        assert (large == 1).all()

    await run_ranks(2, main, "shm", timeout=scaled(40))


async def test_groups_share_again_after_more_at_once_than_can_be_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One rank begins in all of them before the other does in any."""
    monkeypatch.setattr(area_directory, "MAX_ENTRIES", 20)
    monkeypatch.setattr(area_directory, "KEPT", 4)
    begun = asyncio.Event()

    async def main(rank: int) -> None:
        groups = [await dist.new_group() for _ in range(30)]
        if rank == 1:
            await begun.wait()
        arrays = [np.ones(4) for _ in groups]
        works = [dist.all_reduce(a, group=g) for a, g in zip(arrays, groups, strict=True)]
        begun.set()
        for work in works:
            await work
        assert all((array == 2).all() for array in arrays)
        planes = [
            engine_of(group).communicator
            for group in groups
            if isinstance(group, dist.ProcessGroup)
        ]
        assert any(found is None or found.is_off for found in planes)
        for group in groups:
            await dist.destroy_process_group(group)
        for _ in range(30):
            group = await dist.new_group()
            assert isinstance(group, dist.ProcessGroup)
            await dist.all_reduce(arrays[0], group=group)
            assert engine_of(group).communicator is not None
            assert engine_of(group).communicator.words
            await dist.destroy_process_group(group)

    await run_ranks(2, main, "shm", timeout=20)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
async def test_all_ranks_get_the_same_bits(size: int, dtype: type) -> None:
    results: dict[int, list[bytes]] = {rank: [] for rank in range(size)}

    async def main(rank: int) -> None:
        random = np.random.default_rng(rank)
        for length in (1, 7, 5000, 40_001, 700_001):
            data = (random.standard_normal(length) * 10.0 ** random.integers(-9, 9, length)).astype(
                dtype
            )
            await dist.all_reduce(data)
            results[rank].append(data.tobytes())

    await run_ranks(size, main, "shm", timeout=20)
    assert all(results[rank] == results[0] for rank in range(size))


async def test_many_at_once_on_groups_that_overlap() -> None:
    async def main(rank: int) -> None:
        groups = [await dist.new_group(ranks) for ranks in ([0, 1], [1, 2], [0, 1, 2], [2, 0])]
        mine = [g for g in groups if isinstance(g, dist.ProcessGroup)]
        data = [[np.full(n, 1.0) for n in (3, 200_000, 1)] for _ in mine]
        works = []
        for step in range(3):
            for group, arrays in zip(mine, data, strict=True):
                works.append(dist.all_reduce(arrays[step], group=group))
        for work in reversed(works):
            await work
        for group, arrays in zip(mine, data, strict=True):
            assert all((array == group.size()).all() for array in arrays)

    await run_ranks(3, main, "shm", timeout=20)


async def test_hundreds_started_at_once_run_one_after_the_other() -> None:
    async def main(rank: int) -> None:
        arrays = [np.full(10, float(rank)) for _ in range(500)]
        for work in [dist.all_reduce(array) for array in arrays]:
            await work
        assert all((array == 1).all() for array in arrays)

    await run_ranks(2, main, "shm", timeout=20)


async def test_a_rank_that_spins_for_many_at_once_looks_once_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each that ends while it is looked for is followed by the next, which is looked for in turn."""
    turn, looks = 0, Counter[tuple[int, int]]()
    fall_asleep = ShmCommunicator._fall_asleep

    def counted(self: ShmCommunicator) -> None:
        looks[turn, self.rank] += 1
        fall_asleep(self)

    monkeypatch.setattr(ShmCommunicator, "_fall_asleep", counted)

    async def main(rank: int) -> None:
        nonlocal turn
        await dist.barrier()
        communicator().spin_policy.active = True  # as of ranks that have a process each
        if rank == 0:
            await asyncio.gather(*(dist.barrier() for _ in range(20)))
            return
        for _ in range(20):
            work = dist.barrier()
            await asyncio.sleep(0)
            turn += 1
            await work

    await run_ranks(2, main, "shm", timeout=20)
    assert looks
    assert max(looks.values()) <= 2  # a turn of the loop may begin a moment before it is counted


async def test_the_number_of_a_sleep_begins_anew_after_32_bits() -> None:
    communicators: dict[int, ShmCommunicator] = {}

    async def main(rank: int) -> None:
        await dist.barrier()
        communicators[rank] = communicator()
        communicator()._naps = (1 << 32) - 2
        await dist.barrier()
        for _ in range(5):
            data = np.ones(3)
            if rank == 1:
                await until(lambda: communicators[0].mine[ASLEEP])
            await dist.all_reduce(data)
            assert (data == 2).all()
        assert communicators[0]._naps < 100

    await run_ranks(2, main, "shm", timeout=20)


async def test_a_root_is_ahead_and_the_others_come_later() -> None:
    ahead = asyncio.Event()

    async def main(rank: int) -> None:
        await dist.barrier()
        data = [np.full(4, float(step)) for step in range(20)]
        if rank == 1:
            await ahead.wait()
        works = [
            dist.broadcast(each if rank == 0 else each * 0, 0) if rank == 0 else None
            for each in data
        ]
        if rank == 0:
            await asyncio.sleep(0.01)
            assert works[0] is not None
            assert works[0].is_completed()
            assert not works[-1].is_completed()  # type: ignore[union-attr]
            ahead.set()
            for work in works:
                assert work is not None
                await work
        else:
            for step in range(20):
                into = np.zeros(4)
                await dist.broadcast(into, 0)
                assert (into == step).all()

    await run_ranks(2, main, "shm", timeout=20)


async def test_one_in_memory_and_one_waiting_for_messages_are_told() -> None:
    """Rank 0 waits for a message that never comes, rank 1 for a flag."""
    told = {}

    async def main(rank: int) -> None:
        await dist.barrier()
        if rank == 0:
            error = await outcome(dist.gather_object(1, [None, None], 0))
        else:
            error = await outcome(dist.barrier())
        told[rank] = error
        data = np.ones(3)
        await dist.all_reduce(data)
        assert (data == 2).all()

    await run_ranks(2, main, "shm", timeout=20)
    assert all(isinstance(error, dist.CollectiveMismatchError) for error in told.values())


@pytest.mark.parametrize("length", [3, 400_000])
async def test_after_a_timeout_and_a_cancellation_the_group_goes_on(length: int) -> None:
    failed = [asyncio.Event() for _ in range(3)]

    async def main(rank: int) -> None:
        for step in range(3):
            if rank == 1:
                await failed[step].wait()
                error = await outcome(dist.all_reduce(np.ones(length)))
                assert isinstance(error, dist.CollectiveError)
            elif step == 1:
                work = dist.all_reduce(np.ones(length))
                await asyncio.sleep(0)
                work.cancel()
                assert isinstance(await outcome(work), asyncio.CancelledError)
            else:
                error = await outcome(dist.all_reduce(np.ones(length), timeout=0.05))
                assert isinstance(error, dist.CollectiveTimeoutError)
                assert list(error.waiting_for) == [1]
            failed[step].set()
            await dist.barrier()
            data = np.full(length, rank + 1.0)
            await dist.all_reduce(data)
            assert (data == 3).all()

    await run_ranks(2, main, "shm", timeout=20)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda own, all_: dist.all_reduce(own), id="all_reduce"),
        pytest.param(lambda own, all_: dist.broadcast(own, 1), id="broadcast"),
        pytest.param(lambda own, all_: dist.all_to_all_single(all_, own), id="all_to_all"),
        pytest.param(
            lambda own, all_: dist.reduce_scatter_tensor(all_[::2].copy(), own), id="reduce_scatter"
        ),
    ],
)
async def test_a_rank_that_dies_between_its_chunks_leaves_no_wrong_result(
    call: Callable[[np.ndarray, np.ndarray], dist.Work[None]],
) -> None:
    """The other one learns of its end before it has read the first chunk: it reads those that came, and
    takes none for one that never came."""
    learnt = asyncio.Event()

    async def main(rank: int) -> None:
        await dist.barrier()
        own = np.arange(1 << 17) + rank  # more than the chunks that rank 1 may be ahead
        all_ = np.zeros_like(own)
        if rank == 0:
            with pytest.raises(dist.PeerLostError):
                await call(own, all_)
            learnt.set()
        else:
            await until(lambda: communicator().words[0][ASLEEP] != 0)
            for connection in current_world().endpoint.connections():
                connection.abort()  # which the other one hears of in the next turn of the loop
            last = call(own, all_)
            await learnt.wait()
            last.cancel()

    await run_ranks(2, main, "shm", timeout=20)


async def test_a_rank_that_leaves_before_its_first_operation_is_missed() -> None:
    async def main(rank: int) -> None:
        if rank == 0:
            assert isinstance(await outcome(dist.barrier()), dist.PeerLostError)

    await run_ranks(2, main, "shm", timeout=10)


async def test_a_late_rank_enters_the_collective_that_the_others_told_it_of() -> None:
    """They have slept for so long that they said over the streams what they are in."""

    async def main(rank: int) -> None:
        await dist.barrier()
        for late in (0, 1, 2):
            if rank == late:
                group = current_world().default_group()
                await until(lambda group=group: len(group._announced) == 2)  # type: ignore[misc]
            data = np.ones(5)
            await dist.all_reduce(data)
            assert (data == 3).all()

    await run_ranks(3, main, "shm", timeout=20)


async def test_a_group_that_is_made_again_starts_with_fresh_flags() -> None:
    async def main(rank: int) -> None:
        for step in range(4):
            group = await dist.new_group([0, 1], group_desc=None)
            assert isinstance(group, dist.ProcessGroup)
            for _ in range(step + 1):
                data = np.ones(3)
                await dist.all_reduce(data, group=group)
                assert (data == 2).all()
            await dist.destroy_process_group(group)

    await run_ranks(2, main, "shm", timeout=20)


SURVIVE = """
    import os, sys, gc
    import numpy as np
    import aiodist.sync as dist
    path, rank, megabytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", "file://" + path, rank=rank, world_size=3, timeout=60)
    data = np.ones(megabytes << 18, np.float32)
    dist.all_reduce(data)
    assert "/memfd:aiodist" in open("/proc/self/maps").read()
    print("ready", flush=True)
    try:
        while True:
            dist.all_reduce(data)
            data[:] = 1
    except dist.PeerLostError as error:
        assert error.rank == 2, error
    dist.destroy_process_group()
    del data
    gc.collect()
    assert "/memfd:aiodist" not in open("/proc/self/maps").read()
    print("survived", flush=True)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("megabytes", [0, 8])
def test_a_rank_killed_in_the_middle_leaves_nothing(
    tmp_path: Path, megabytes: int, warm_python: WarmPython
) -> None:
    """More ranks than cores; with 0 MiB (no element) the ranks exchange nothing but flags."""
    shm = named_segments()
    with ranks_of(SURVIVE, 3, tmp_path, megabytes, python=warm_python.command) as ranks:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        ranks[2].send_signal(signal.SIGKILL)
        outputs = [rank.communicate(timeout=scaled(60))[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, -signal.SIGKILL]
    assert outputs[:2] == ["survived\n"] * 2
    assert named_segments() == shm


BETWEEN_PIECES = """
    import os
    import signal
    import sys
    import numpy as np
    import time
    import aiodist.sync as dist
    from aiodist.collectives.broadcast_shared import PIECE_BYTES, BroadcastSlots
    from aiodist.groups.shm_words import STEP_BITS
    from aiodist.groups.world import current_world
    from aiodist.shm.group_area import COPIED, SLOT_TAGS, SLOTS

    path, rank = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo", "file://" + path, rank=rank, world_size=2, timeout=60)
    data = np.ones(PIECE_BYTES, np.float32)
    dist.broadcast(data, 0)
    dist.barrier()
    if rank == 0:
        def fill_piece(call, piece, *rest):
            if piece.start:
                time.sleep(0.2)  # in which the other one takes the first piece, and waits for more
                os.kill(os.getpid(), signal.SIGKILL)
            of_all(call, piece, *rest)
        of_all, BroadcastSlots.fill_piece = BroadcastSlots.fill_piece, fill_piece
    else:  # after the root has begun: a waiting rank would make it take another path
        group = current_world().default_group()
        word = SLOT_TAGS[group.n_started % SLOTS] + COPIED
        words, begun = group.communicator.words[0], group.n_started + 1 << STEP_BITS
        while words[word] < begun:
            time.sleep(0.001)
    try:
        dist.broadcast(data, 0)
    except dist.PeerLostError as error:
        assert error.rank == 0, error
        print("survived", flush=True)
"""


@pytest.mark.timeout(60)
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="ranks that share a core publish no pieces")
def test_a_root_killed_between_two_pieces_is_lost(tmp_path: Path) -> None:
    with ranks_of(BETWEEN_PIECES, 2, tmp_path) as ranks:
        outputs = [rank.communicate(timeout=scaled(40))[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [-signal.SIGKILL, 0]
    assert outputs == ["", "survived\n"]
