"""Which rank watches which."""

from __future__ import annotations

import itertools
import random

import pytest

from aiodist.liveness.watch_ring import REACH, neighbours, ring_order


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 9, 64])
def test_the_relation_is_mutual_and_has_a_bound(size: int) -> None:
    ring = ring_order(["host"] * size)
    assert sorted(ring) == list(range(size))
    of = {rank: neighbours(ring, rank, ()) for rank in range(size)}
    for rank, others in of.items():
        assert rank not in others
        assert len(set(others)) == len(others) == min(size - 1, 2 * REACH)
        assert all(rank in of[other] for other in others)


def test_when_ranks_go_the_others_move_together_and_no_pair_is_dissolved() -> None:
    ring = ring_order([f"host{rank % 3}" for rank in range(12)])
    going = list(range(12))
    random.Random(4).shuffle(going)
    gone: set[int] = set()
    before = {rank: set(neighbours(ring, rank, gone)) for rank in ring}
    for leaver in going[:-1]:
        gone.add(leaver)
        now = {rank: set(neighbours(ring, rank, gone)) for rank in ring if rank not in gone}
        for rank, others in now.items():
            assert before[rank] - {leaver} <= others
            assert not others & gone
        before = now
    assert before == {going[-1]: set()}


@pytest.mark.parametrize(("hosts", "each"), [(2, 8), (4, 2), (3, 5)])
def test_each_rank_is_watched_from_another_host(hosts: int, each: int) -> None:
    names = [f"host{host}" for host, _ in itertools.product(range(hosts), range(each))]
    ring = ring_order(names)
    for rank, name in enumerate(names):
        assert any(names[other] != name for other in neighbours(ring, rank, ()))
