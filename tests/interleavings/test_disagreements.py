"""One rank calls another collective than the others at one place.

At least one rank learns of it, no rank waits for ever, and the other collectives that succeed are right.
"""

from __future__ import annotations

import random

import pytest

from aiodist.errors import CollectiveError, CollectiveMismatchError
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.group_engine import GroupEngine
from tests.interleavings import ranks
from tests.interleavings.clock import Clock
from tests.interleavings.operations import any_collective
from tests.interleavings.ranks import Rank
from tests.interleavings.scheduler import Stuck
from tests.interleavings.seeds import BLOCKS, WRONG, fails, seeds

pytestmark = pytest.mark.usefixtures("small_collectives")


def one_rank_differs(seed: int, clock: Clock) -> None:
    draw = random.Random(seed)
    size = draw.randint(2, 4)
    collectives = [any_collective(draw, size) for _ in range(draw.randint(1, 4))]
    place, odd_rank = draw.randrange(len(collectives)), draw.randrange(size)
    other = any_collective(draw, size)
    if other.fingerprint == collectives[place].fingerprint:
        return
    errors: list[Exception] = []

    def program(rank: Rank) -> None:
        for number, collective in enumerate(collectives):
            is_odd = (number, rank.number) == (place, odd_rank)
            begun = (other if is_odd else collective).begin(number, rank.number, size)
            try:
                rank.finish(rank.start(begun))
            except CollectiveError as error:
                errors.append(error)
            else:
                if number != place:
                    begun.check()
        rank.settle()
        found = rank.engine.disagreement()
        if found is not None:
            errors.append(found)

    what = f"{collectives}; number {place} on rank {odd_rank}: {other}"
    ranks.run(seed, size, clock, program, what, patience=2.0)
    is_noticed = any(isinstance(error, CollectiveMismatchError) for error in errors)
    assert is_noticed, f"seed {seed}, {size} ranks: {what}"


@pytest.mark.parametrize("block", BLOCKS)
def test_a_disagreement_is_noticed(block: int, clock: Clock) -> None:
    for seed in seeds(block, 200):
        one_rank_differs(seed, clock)


@pytest.mark.parametrize(
    ("owner", "step"),
    [
        pytest.param(CollectiveContext, "announce_awaited", id="a sleeper tells nothing"),
        pytest.param(GroupEngine, "disagreement", id="no slot is compared at the end"),
    ],
)
def test_without_one_comparison_a_disagreement_is_missed(
    owner: type, step: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, step, lambda *_: None)
    assert fails(lambda seed: one_rank_differs(seed, clock), range(1000), *WRONG, Stuck)
