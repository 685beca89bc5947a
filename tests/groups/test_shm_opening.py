"""Which members of a group are neighbours while they come to share memory."""

from __future__ import annotations

import pytest

from aiodist.groups.naming import neighbours
from aiodist.groups.shm_opening import (
    FIRST_LOOK_SECONDS,
    LAST_LOOK_SECONDS,
    NEAR,
    until_next_look,
)


@pytest.mark.parametrize("size", [1, 2, 5, 17, 18, 33, 64, 200])
def test_neighbours_are_mutual_and_news_reaches_all_in_a_logarithm_of_steps(size: int) -> None:
    near = [neighbours(place, size, NEAR) for place in range(size)]
    logarithm = (size - 1).bit_length()

    assert all(place in near[other] for place in range(size) for other in near[place])
    assert max(map(len, near)) <= 2 * (NEAR + logarithm)
    from_peer, steps = {0}, 0
    while len(from_peer) < size:
        from_peer |= {other for place in from_peer for other in near[place]}
        steps += 1
    assert steps <= logarithm


def test_in_a_group_of_up_to_17_all_are_neighbours() -> None:
    for size in range(1, 2 * NEAR + 2):
        assert {len(neighbours(place, size, NEAR)) for place in range(size)} == {size - 1}
    assert len(neighbours(0, 2 * NEAR + 3, NEAR)) < 2 * NEAR + 2


def test_a_sleeper_looks_after_a_second_then_less_and_less_often_and_never_stops() -> None:
    looks, waited = [], 0.05
    for _ in range(6):
        looks.append(until_next_look(waited))
        waited += looks[-1]

    assert looks[0] == FIRST_LOOK_SECONDS
    assert looks == sorted(looks)
    assert looks[2] > 2 * FIRST_LOOK_SECONDS
    assert looks[-1] == LAST_LOOK_SECONDS
