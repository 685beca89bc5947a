"""Ranks that wait for each other in different collectives are told, though they exchange no message."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.work import Work
from aiodist.p2p.endpoint import Endpoint
from aiodist.p2p.spin_policy import SUSPICION_SECONDS
from aiodist.testing.in_process import run_ranks
from tests.engine.conftest import engine_of, outcome
from tests.limits import scaled, until

LENGTHS = (0, 1, 7, 500, 5000, 40_001, 300_001)
"""What goes in one message or slot, in several, and in chunks."""

ROOTED = ("broadcast", "reduce", "gather", "scatter")
OTHERS = ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")


class Call(NamedTuple):
    """One collective; what the operation does not take is left out."""

    kind: str
    length: int = 3
    root: int = 0
    op: str = "SUM"
    dtype: str = "f8"

    def start(self, rank: int, size: int) -> Work[Any]:
        """Start it on ``rank`` of ``size``."""

        def array() -> np.ndarray:
            return np.ones(self.length, self.dtype)

        blocks = [array() for _ in range(size)]
        at_root = blocks if rank == self.root else None
        starts: dict[str, Callable[[], Work[Any]]] = {
            "barrier": dist.barrier,
            "broadcast": lambda: dist.broadcast(array(), self.root),
            "reduce": lambda: dist.reduce(array(), self.root, self.op),
            "gather": lambda: dist.gather(array(), at_root, self.root),
            "scatter": lambda: dist.scatter(array(), at_root, self.root),
            "all_reduce": lambda: dist.all_reduce(array(), self.op),
            "all_gather": lambda: dist.all_gather(blocks, array()),
            "reduce_scatter": lambda: dist.reduce_scatter(array(), blocks, self.op),
            "all_to_all": lambda: dist.all_to_all([array() for _ in range(size)], blocks),
        }
        return starts[self.kind]()


class Disagreement(NamedTuple):
    """Ranks that call different collectives. ``hosts``: each rank's; empty: streams alone."""

    hosts: tuple[int, ...]
    calls: tuple[Call, ...]
    met: bool = True

    async def outcomes(self) -> list[BaseException | None]:
        """Return how the collective ends on each rank."""
        size = len(self.calls)
        over = asyncio.Barrier(size)

        async def main(rank: int) -> BaseException | None:
            if self.met:
                await dist.barrier()
            error = await outcome(self.calls[rank].start(rank, size))
            await over.wait()  # a rank that has left is an error for the others, too
            try:
                await dist.destroy_process_group()
            except dist.CollectiveMismatchError:
                assert error is None  # its part had ended well
            return error

        transport = "shm" if self.hosts else "inproc"
        return await run_ranks(size, main, transport, hosts=self.hosts, timeout=scaled(10))


def alternating(odd: tuple[int, ...], common: Call, other: Call, size: int) -> tuple[Call, ...]:
    return tuple(other if rank in odd else common for rank in range(size))


FOUND = {
    # Each root waits for the other's message, and a root sends none.
    "two roots of a gather": Disagreement(
        (1, 0, 1, 0, 0), alternating((4,), Call("gather", 0, 2), Call("gather", 0, 4), 5)
    ),
    "a root of a gather, one of a reduce": Disagreement(
        (0, 1, 2), alternating((1,), Call("gather", 1, 0), Call("reduce", 40_001, 1), 3)
    ),
    # The root's host waits for rank 2's message, and rank 2 for one of rank 0, the host's leader.
    "two roots of a reduce by stripes": Disagreement(
        (0, 0, 1),
        alternating((2,), Call("reduce", 300_001, 0), Call("reduce", 300_001, 2), 3),
        False,
    ),
    # Rank 0 waits for rank 3's message, rank 2 for rank 0's; ranks 1 and 3 for slots of these.
    "two roots of a broadcast, none of which takes itself for it": Disagreement(
        (1, 1, 0, 0),
        alternating((2, 3), Call("broadcast", 5000, 3), Call("broadcast", 5000, 0), 4),
    ),
    # The root of the broadcast has sent to the leader of the other host alone, and has ended.
    "a scatter from a root that has ended": Disagreement(
        (0, 0, 1, 0), alternating((3,), Call("broadcast", 500, 1), Call("scatter", 300_001, 1), 4)
    ),
    "two receivers of a scatter": Disagreement(
        (1, 1, 0), alternating((2,), Call("scatter", 5000, 2), Call("scatter", 40_001, 1), 3)
    ),
    "two roots of a reduce, over streams alone": Disagreement(
        (), alternating((1,), Call("reduce", 3, 0), Call("reduce", 3, 1), 2)
    ),
}


@pytest.mark.parametrize("name", FOUND)
async def test_ranks_that_wait_for_each_other_in_different_collectives_are_told(name: str) -> None:
    check(await FOUND[name].outcomes())


def check(errors: list[BaseException | None]) -> None:
    """A rank may have ended its part before; all others name both sides."""
    told = [error for error in errors if error is not None]
    assert told
    for error in told:
        assert isinstance(error, dist.CollectiveMismatchError), errors
        assert "ranks disagree about operation" in str(error)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.extended) for seed in (2, 3))]
)
async def test_random_disagreements_end_by_no_timeout(seed: int) -> None:
    """Among these are some in which no rank sends what another one could compare."""
    choices = random.Random(seed)
    for _ in range(18):
        disagreement = some_disagreement(choices)
        errors = await disagreement.outcomes()
        if any(errors):  # else each rank's part had ended: such as that of each root of a broadcast
            check(errors)


def some_disagreement(choices: random.Random) -> Disagreement:
    size, n_hosts = choices.randint(3, 6), choices.randint(2, 3)
    hosts = [*range(n_hosts), *(choices.randrange(n_hosts) for _ in range(size - n_hosts))]
    choices.shuffle(hosts)

    def some_call() -> Call:
        kind = choices.choice(choices.choice((ROOTED, ROOTED, OTHERS)))
        length, root = choices.choice(LENGTHS), choices.randrange(size)
        return Call(kind, length, root, choices.choice(("SUM", "MAX")))

    odd = tuple(choices.sample(range(size), choices.choice((1, 1, 1, 2))))
    calls = alternating(odd, some_call(), some_call(), size)
    return Disagreement(
        tuple(hosts) if choices.random() < 0.8 else (), calls, choices.random() < 0.7
    )


@pytest.mark.parametrize("hosts", [(), (0, 0), (0, 1)])
async def test_a_rank_that_comes_late_is_told_though_its_part_ends_at_once(
    hosts: tuple[int, ...],
) -> None:
    """The root of a small broadcast waits for no rank, neither in memory nor over streams."""

    async def main(rank: int) -> BaseException | None:
        await dist.barrier()
        group = engine_of()
        if rank == 0:
            return await outcome(dist.gather_object(1, [None, None], 0))
        await until(lambda: bool(group._announced))
        assert await outcome(dist.broadcast(np.ones(3), 1)) is None
        assert not group._announced
        return None

    transport = "shm" if hosts else "inproc"
    try:
        error, _ = await run_ranks(2, main, transport, hosts=hosts, timeout=scaled(10))
    except dist.CollectiveMismatchError as at_the_end:  # the root hears of it as the group ends
        error = at_the_end
    assert isinstance(error, dist.CollectiveMismatchError)


async def test_a_rank_is_told_in_a_group_that_it_has_not_made_yet() -> None:
    async def main(rank: int) -> BaseException | None:
        if rank == 1:
            world = engine_of().world
            await until(lambda: bool(world._early_fingerprints))  # type: ignore[attr-defined]
        group = await dist.new_group([0, 1], use_local_synchronization=True)
        error = await outcome(dist.reduce(np.ones(1), rank, group=group))
        await over.wait()
        return error

    over = asyncio.Barrier(2)
    check(await run_ranks(2, main, timeout=scaled(10)))


@pytest.mark.parametrize("hosts", [(), (0, 0, 1, 1)])
async def test_ranks_that_agree_and_wait_for_a_late_one_say_so_once(
    hosts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank to each that it waits for; and nothing fails."""
    told: list[tuple[int, int]] = []
    tell = Endpoint.send_fingerprint

    def note(endpoint: Endpoint, rank: int, *what: Any) -> None:
        told.append((endpoint.rank, rank))
        tell(endpoint, rank, *what)

    monkeypatch.setattr(Endpoint, "send_fingerprint", note)

    async def main(rank: int) -> None:
        await dist.barrier()
        told.clear()
        if rank == 3:
            await until(lambda: told)
            await asyncio.sleep(6 * SUSPICION_SECONDS)  # several looks, which tell no more
            assert len(set(told)) == len(told)
        data = np.ones(5)
        await dist.all_reduce(data)
        assert (data == 4).all()

    await run_ranks(4, main, "shm" if hosts else "inproc", hosts=hosts, timeout=scaled(10))
    assert told
