"""Collectives in shared memory, in each order of the ranks' loads and stores that a seed draws.

Every result has to be right, and no rank may sleep for ever.
"""

from __future__ import annotations

import random

import pytest

from aiodist.groups.shm_collective import ShmCollective
from aiodist.groups.shm_communicator import ShmCommunicator
from tests.interleavings import ranks
from tests.interleavings.clock import Clock
from tests.interleavings.operations import any_collective
from tests.interleavings.ranks import Rank
from tests.interleavings.scheduler import Stuck
from tests.interleavings.seeds import BLOCKS, WRONG, fails, seeds

pytestmark = pytest.mark.usefixtures("small_collectives")


def one_after_the_other(seed: int, clock: Clock) -> None:
    draw = random.Random(seed)
    size = draw.randint(2, 4)
    collectives = [any_collective(draw, size) for _ in range(draw.randint(2, 8))]

    def program(rank: Rank) -> None:
        for number, collective in enumerate(collectives):
            begun = collective.begin(number, rank.number, size)
            rank.finish(rank.start(begun))
            begun.check()

    ranks.run(seed, size, clock, program, collectives)


def several_at_once(seed: int, clock: Clock) -> None:
    """Each rank waits for its operations in their order, and begins later ones before."""
    draw = random.Random(seed)
    size = draw.randint(2, 4)
    collectives = [any_collective(draw, size) for _ in range(draw.randint(2, 8))]

    def program(rank: Rank) -> None:
        pace, under_way = random.Random(seed * size + rank.number), []
        for number, collective in enumerate(collectives):
            begun = collective.begin(number, rank.number, size)
            under_way.append((begun, rank.start(begun)))
            is_last = number == len(collectives) - 1
            while under_way and (is_last or pace.random() < 0.5):
                begun, work = under_way.pop(0)
                rank.finish(work)
                begun.check()

    ranks.run(seed, size, clock, program, collectives)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("run", [one_after_the_other, several_at_once])
def test_collectives_end_with_the_right_results(run: ranks.Run, block: int, clock: Clock) -> None:
    for seed in seeds(block, 150):
        run(seed, clock)


@pytest.mark.parametrize(
    ("owner", "step", "kinds"),
    [
        pytest.param(ShmCollective, "_slot_in_use", WRONG, id="slots are used again too early"),
        pytest.param(ShmCollective, "free", WRONG, id="chunks are used again too early"),
        pytest.param(ShmCollective, "posted", WRONG, id="chunks are read too early"),
        pytest.param(ShmCommunicator, "wake", (Stuck,), id="no rank is woken"),
        pytest.param(ShmCommunicator, "_settle", (Stuck,), id="a sleeper has no fence"),
    ],
)
@pytest.mark.parametrize("run", [one_after_the_other, several_at_once])
def test_without_one_step_of_the_protocol_a_run_fails(
    run: ranks.Run,
    owner: type,
    step: str,
    kinds: tuple[type[Exception], ...],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, step, lambda *_: None)
    assert fails(lambda seed: run(seed, clock), range(300), *kinds)
