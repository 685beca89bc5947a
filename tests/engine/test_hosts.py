"""Collectives of ranks on several hosts, some together: in shared memory inside, else messages.

All ranks live in one process. Each host has its own name, as with different AIODIST_HOST_ID, and its
ranks map no memory of ranks with another name.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.collectives import calls
from aiodist.collectives.select import OVERSUBSCRIBED, PIECE, Choice, select
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.world import current_world
from aiodist.p2p.spin_policy import SpinPolicy
from aiodist.testing.in_process import run_ranks
from aiodist.transport.stream_socket import SocketConnection
from tests.engine.conftest import engine_of, outcome
from tests.limits import until

ROOT = Path(__file__).parents[2]

SHAPES = (
    (0, 0, 1, 1),
    (0, 1, 0, 1),  # not one after the other
    (0, 0, 0, 1, 1),  # a column less than the larger host has ranks
    (0, 0, 0, 1),  # one host has a single rank
    (2, 0, 0, 1, 1, 2),
)
LENGTHS = (0, 1, 7, 5000, 40_001, 700_001)
IN_PIECES = 3 * PIECE // 8
"""Elements of 8 bytes that two columns exchange in two pieces."""


def group() -> GroupEngine:
    return current_world().default_group()


def hard(length: int, rank: int) -> np.ndarray:
    """Numbers so far apart that every order of adding gives other bits."""
    random = np.random.default_rng(rank)
    some = random.standard_normal(4099) * 10.0 ** random.integers(-9, 9, 4099)
    return np.resize(some, length)


def crossing(hosts: tuple[int, ...]) -> dict[tuple[int, int], list[int]]:
    """Notes the lengths of this rank's messages, as (from, to); tells if one stays in its host."""
    noted: dict[tuple[int, int], list[int]] = defaultdict(list)
    endpoint = current_world().endpoint
    send = endpoint.send

    def note(dst: int, key: Any, data: memoryview, meta: bytes) -> Any:
        noted[hosts[endpoint.rank], hosts[dst]].append(len(data))
        return send(dst, key, data, meta)

    endpoint.send = note  # type: ignore[method-assign]
    return noted


@pytest.mark.parametrize("hosts", SHAPES)
async def test_all_reduce_gives_all_ranks_the_same_bits(hosts: tuple[int, ...]) -> None:
    results: dict[int, set[bytes]] = defaultdict(set)
    size = len(hosts)

    async def main(rank: int) -> None:
        for length in LENGTHS:
            data = hard(length, rank)
            await dist.all_reduce(data)
            results[length].add(data.tobytes())
            right = np.sum([hard(length, other) for other in range(size)], axis=0)
            assert np.allclose(data, right, rtol=1e-6, atol=1e-3)
            await dist.barrier()

    await run_ranks(size, main, "shm", hosts=hosts, timeout=30)
    assert all(len(results[length]) == 1 for length in LENGTHS)


@pytest.mark.parametrize("hosts", [SHAPES[0], SHAPES[1], SHAPES[3]])
@pytest.mark.parametrize("crowded_memory", [False, True])
async def test_results_where_ranks_share_cores(
    monkeypatch: pytest.MonkeyPatch,
    segment_bytes: Callable[[int], None],
    hosts: tuple[int, ...],
    crowded_memory: bool,
) -> None:
    """``crowded_memory``: with the longer slots that ranks of such a host make."""

    def meet(policy: SpinPolicy, here: Sequence[int], *, have_cores: bool) -> None:
        policy.oversubscribed = crowded_memory and not have_cores

    monkeypatch.setattr("aiodist.p2p.endpoint.own_cores", lambda: frozenset({0}))
    monkeypatch.setattr(SpinPolicy, "meet", meet)
    segment_bytes(40 << 20)
    size = len(hosts)

    async def main(rank: int) -> None:
        topology = group().topology
        assert topology is not None
        assert topology.locality == OVERSUBSCRIBED
        for length in (1, 5000, 40_000, 130_000, 260_000):
            for root in range(size):
                data = np.full(length, rank, np.int32)
                await dist.broadcast(data, root)
                assert (data == root).all()
            data = np.full(length, rank + 1, np.int32)
            await dist.all_reduce(data)
            assert (data == sum(range(size + 1))).all()
            blocks = np.empty((size, length), np.int32)
            await dist.all_gather_single(blocks, np.full(length, rank, np.int32))
            assert (blocks == np.arange(size)[:, None]).all()
            await dist.reduce_scatter_single(data, blocks)
            assert (data == size * rank).all()

    await run_ranks(size, main, "shm", hosts=hosts, timeout=30)


async def test_inside_a_host_nothing_is_sent_and_each_rank_moves_its_share() -> None:
    hosts = (0, 0, 1, 1)
    count = 1_000_000

    async def main(rank: int) -> None:
        await dist.barrier()
        noted = crossing(hosts)
        data = np.ones(count, np.float32)
        await dist.all_reduce(data)
        assert (data == 4).all()
        del current_world().endpoint.send
        assert all(here != there for here, there in noted)
        assert sum(sum(lengths) for lengths in noted.values()) == 4 * count // 2

    await run_ranks(4, main, "shm", hosts=hosts, timeout=30)


@pytest.mark.parametrize("size", [2, 3])
async def test_ranks_that_are_all_alone_exchange_as_ever(size: int) -> None:
    async def main(rank: int) -> None:
        assert group().topology is None
        assert group().communicator is None
        data = np.full(10, float(rank))
        await dist.all_reduce(data)
        assert (data == size * (size - 1) / 2).all()

    await run_ranks(size, main, "shm", hosts=range(size), timeout=20)


async def test_streams_between_hosts_are_marked_as_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[SocketConnection] = []
    monkeypatch.setattr(SocketConnection, "leaves_host", lambda stream: told.append(stream))

    async def main(rank: int) -> None:
        await dist.all_reduce(np.ones(4))
        for peer in range(3):
            if peer != rank:  # every pair is connected
                await dist.send(np.ones(1), peer)
                await dist.recv(np.ones(1), peer)
        for other in {0, 1, 2} - {rank}:
            links = current_world().endpoint.peer(other).links
            assert links
            for link in links:
                assert (link.connection in told) == ({rank, other} != {0, 1})

    await run_ranks(3, main, "tcp", hosts=(0, 0, 1), timeout=20)


async def test_a_host_without_room_exchanges_inside_by_messages() -> None:
    """Whether the ranks of a host share memory is no concern of the other hosts."""

    async def main(rank: int) -> None:
        communicator = group().communicator
        assert communicator is not None
        if rank < 2:
            memory = current_world().endpoint.memory
            assert memory is not None
            memory.pages.take(memory.pages.largest)
        for length in (5, 100_000):
            data = np.full(length, float(rank))
            await dist.all_reduce(data)
            assert (data == 6).all()
        await dist.barrier()
        assert communicator.is_off == (rank < 2)

    await run_ranks(4, main, "shm", hosts=(0, 0, 1, 1), timeout=20)


async def test_subgroups_go_by_the_hosts_of_their_own_ranks() -> None:
    planes = {(0, 1): [0, 1], (1, 2): [], (0, 1, 2): [0, 1], (3, 1, 2): [2, 3]}

    async def main(rank: int) -> None:
        for ranks, together in planes.items():
            made = await dist.new_group(list(ranks))
            if isinstance(made, dist.ProcessGroup):
                assert (engine_of(made).communicator is not None) == (rank in together)
                assert (engine_of(made).topology is not None) == (len(ranks) == 3)
                data = np.full(20_000, float(rank))
                await dist.all_reduce(data, group=made)
                assert (data == sum(ranks)).all()
                await dist.barrier(group=made)

    await run_ranks(4, main, "shm", hosts=(0, 0, 1, 1), timeout=20)


async def test_many_at_once() -> None:
    async def main(rank: int) -> None:
        arrays = [np.full(length, 1.0) for length in (3, 100_000, 1, 20_000) * 5]
        for work in [dist.all_reduce(array) for array in arrays]:
            await work
        assert all((array == 5).all() for array in arrays)

    await run_ranks(5, main, "shm", hosts=(0, 0, 0, 1, 1), timeout=20)


@pytest.mark.parametrize("late", [0, 1, 2, 3])
async def test_a_late_rank_enters_the_collective_that_the_others_told_it_of(late: int) -> None:
    """Those of its host have slept for so long that they said over the streams what they are in."""

    async def main(rank: int) -> None:
        await dist.barrier()
        for length in (5, 100_000):
            if rank == late:
                await until(lambda: bool(group()._announced))
            data = np.ones(length)
            await dist.all_reduce(data)
            assert (data == 4).all()
            await dist.barrier()

    await run_ranks(4, main, "shm", hosts=(0, 0, 1, 1), timeout=20)


@pytest.mark.parametrize("odd", [0, 1, 2, 3])
@pytest.mark.parametrize("length", [3, 100_000, IN_PIECES])
async def test_ranks_that_disagree_are_told_and_the_group_goes_on(odd: int, length: int) -> None:
    told: dict[int, BaseException | None] = {}

    async def main(rank: int) -> None:
        await dist.barrier()
        count = length + 1 if rank == odd else length
        told[rank] = await outcome(dist.all_reduce(np.ones(count)))
        data = np.ones(length)
        await dist.all_reduce(data)
        assert (data == 4).all()

    await run_ranks(4, main, "shm", hosts=(0, 0, 1, 1), timeout=20)
    assert all(isinstance(error, dist.CollectiveMismatchError) for error in told.values()), told


@pytest.mark.parametrize("target", [0, 3])
@pytest.mark.parametrize("length", [3, IN_PIECES])
async def test_blocks_of_another_length_are_told_inside_a_host_and_between_hosts(
    target: int, length: int
) -> None:
    told: dict[int, BaseException | None] = {}

    async def main(rank: int) -> None:
        await dist.barrier()
        blocks = [np.ones(length + (rank == 1 and r == target)) for r in range(4)]
        told[rank] = await outcome(dist.all_to_all([np.zeros(length) for _ in range(4)], blocks))
        data = np.ones(3)
        await dist.all_reduce(data)
        assert (data == 4).all()

    await run_ranks(4, main, "shm", hosts=(0, 0, 1, 1), timeout=20)
    assert isinstance(told[target], dist.CollectiveMismatchError), told


@pytest.mark.parametrize("hosts", [(0, 1), (0, 0, 1, 1)])
@pytest.mark.parametrize("length", [3, IN_PIECES])
async def test_two_roots_on_two_hosts_are_told(hosts: tuple[int, ...], length: int) -> None:
    """Each offers its data to the other host, and asks for none."""
    size = len(hosts)

    async def main(rank: int) -> list[BaseException | None]:
        await dist.barrier()
        root = size - 1 if rank == size - 1 else 0
        errors = [await outcome(dist.broadcast(np.ones(length), root))]
        errors += [await outcome(dist.barrier()) for _ in range(3)]
        data = np.ones(length)
        await dist.all_reduce(data)
        assert (data == size).all()
        return errors

    outcomes = await run_ranks(size, main, "shm", hosts=hosts, timeout=20)
    errors = [error for each in outcomes for error in each if error is not None]
    assert errors
    for error in errors:
        assert isinstance(error, dist.CollectiveMismatchError)
        assert "ranks disagree about operation 1 " in str(error)


@pytest.mark.parametrize("late", [1, 3])
@pytest.mark.parametrize("length", [3, 100_000, IN_PIECES])
async def test_after_a_timeout_the_group_goes_on(late: int, length: int) -> None:
    failed = asyncio.Event()

    async def main(rank: int) -> None:
        await dist.barrier()
        if rank == late:
            await failed.wait()
            error = await outcome(dist.all_reduce(np.ones(length)))
            assert isinstance(error, dist.CollectiveError)
        else:
            error = await outcome(dist.all_reduce(np.ones(length), timeout=0.1))
            assert isinstance(error, dist.CollectiveTimeoutError)
            assert list(error.waiting_for) == [late]
            failed.set()
        data = np.ones(length)
        await dist.all_reduce(data)
        assert (data == 4).all()

    await run_ranks(4, main, "shm", hosts=(0, 0, 1, 1), timeout=20)


@pytest.mark.parametrize("gone", [0, 1, 3])
@pytest.mark.parametrize("length", [100_000, IN_PIECES])
async def test_a_rank_that_leaves_is_missed_on_all_hosts(gone: int, length: int) -> None:
    async def main(rank: int) -> None:
        await dist.barrier()
        if rank != gone:
            error = await outcome(dist.all_reduce(np.ones(length)))
            assert isinstance(error, dist.PeerLostError)
            assert error.rank == gone

    await run_ranks(4, main, "shm", hosts=(0, 0, 1, 1), timeout=20)


@pytest.mark.parametrize("hosts", SHAPES)
@pytest.mark.parametrize(("length", "piece"), [(3, PIECE), (30_000, PIECE), (30_000, 64 << 10)])
async def test_every_collective_gives_the_result_of_one_host(
    hosts: tuple[int, ...], length: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(hosts)

    def shorter(*args: Any, **options: Any) -> Choice:
        choice = select(*args, **options)
        return choice._replace(chunk=min(choice.chunk, piece))

    monkeypatch.setattr(calls, "select", shorter)

    def of(rank: int, count: int = length) -> np.ndarray:
        return np.arange(count) * (rank + 1.0) + rank

    total = sum(of(rank) for rank in range(size))

    async def main(rank: int) -> None:
        for root in range(size):
            data = of(rank)
            await dist.broadcast(data, root)
            assert (data == of(root)).all()
            data = of(rank)
            await dist.reduce(data, root)
            assert (data == (total if rank == root else of(rank))).all()
            outs = [np.zeros(length) for _ in range(size)]
            await dist.gather(of(rank), outs if rank == root else None, root)
            assert rank != root or all((out == of(r)).all() for r, out in enumerate(outs))
            given = [of(r) for r in range(size)] if rank == root else None
            data = np.zeros(length)
            await dist.scatter(data, given, root)
            assert (data == of(rank)).all()
        uneven = [length + r for r in range(size)]
        outs = [np.zeros(count) for count in uneven]
        await dist.all_gather(outs, of(rank, uneven[rank]))
        assert all((out == of(r, uneven[r])).all() for r, out in enumerate(outs))
        given = [of(rank, count) for count in uneven]
        data = np.zeros(uneven[rank])
        await dist.reduce_scatter(data, given)
        assert (data == sum(of(r, uneven[rank]) for r in range(size))).all()
        assert all((mine == of(rank, uneven[r])).all() for r, mine in enumerate(given))
        outs = [np.zeros(length) for _ in range(size)]
        await dist.all_to_all(outs, [of(rank) + r for r in range(size)])
        assert all((out == of(r) + rank).all() for r, out in enumerate(outs))
        objects = [None] * size
        await dist.all_gather_object(objects, rank)
        assert objects == list(range(size))

    await run_ranks(size, main, "shm", hosts=hosts, timeout=30)


async def test_survivors_on_several_hosts_shrink_and_continue() -> None:
    async def main(rank: int) -> None:
        await dist.barrier()
        if rank == 1:
            return
        assert isinstance(await outcome(dist.all_reduce(np.ones(10))), dist.PeerLostError)
        smaller = await dist.shrink()
        assert engine_of(smaller).topology is not None
        assert (engine_of(smaller).communicator is not None) == (rank >= 2)
        data = np.full(50_000, float(rank))
        await dist.all_reduce(data, group=smaller)
        assert (data == 5).all()

    await run_ranks(4, main, "shm", hosts=(0, 0, 1, 1), timeout=20)


SURVIVE = """
    import os, sys
    import numpy as np
    import aiodist.sync as dist
    from aiodist.groups.world import current_world
    path, rank = sys.argv[1], int(sys.argv[2])
    os.environ["AIODIST_HOST_ID"] = f"host {rank // 2}"
    core = sorted(os.sched_getaffinity(0))[rank // 2 :][:1]
    os.sched_setaffinity(0, core or os.sched_getaffinity(0))  # hosts share no cores
    dist.init_process_group("gloo", "file://" + path, rank=rank, world_size=4, timeout=60)
    data = np.ones(1 << 22, np.float32)
    dist.all_reduce(data)
    assert current_world().default_group().communicator.members == [rank // 2 * 2, rank // 2 * 2 + 1]
    print("ready", flush=True)
    try:
        while True:
            data[:] = 1
            dist.all_reduce(data)
    except dist.PeerLostError as error:
        assert error.rank == 2, error
    dist.destroy_process_group()
    print("survived", flush=True)
"""


@pytest.mark.timeout(120)
def test_a_rank_killed_in_the_middle_is_missed_on_all_hosts(
    tmp_path: Path, scaled: Callable[[float], float]
) -> None:
    """The one by which its host crosses to the other, in the middle of everything."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SURVIVE))
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "store"), str(rank)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        ranks[2].send_signal(signal.SIGKILL)
        outputs = [rank.communicate(timeout=scaled(60))[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0, -signal.SIGKILL, 0]
    assert [output for output in outputs if output] == ["survived\n"] * 3
