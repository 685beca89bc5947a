"""Hosts whose links are slow and distant, by a switch of the tests' own."""

from __future__ import annotations

import pytest

from tests.faults.hosts import hosts
from tests.hosts.delaying_switch import delaying_switch
from tests.hosts.world import HOSTS, SIZE, World

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(120)]

ONE_WAY_SECONDS = 0.02
BYTES_PER_SECOND = 12.5e6  # 100 Mbit/s


@pytest.mark.parametrize("streams", ["1", "4"])
def test_operations_succeed_between_distant_hosts(streams: str) -> None:
    with (
        hosts(HOSTS) as network,
        delaying_switch(network, ONE_WAY_SECONDS, BYTES_PER_SECOND),
        World(
            network,
            "tests.hosts.distant_rank",
            AIODIST_STREAMS=streams,
            AIODIST_LIVENESS_TIMEOUT="60",
        ) as world,
    ):
        answers = world.go_on(range(SIZE))
    # Two rounds at least between four hosts, so the switch delays indeed.
    assert min(answer["barrier"] for answer in answers.values()) > ONE_WAY_SECONDS, answers
    assert max(answer["reduction"] for answer in answers.values()) < 60, answers
