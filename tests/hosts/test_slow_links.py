"""Hosts whose links are slow and distant, by a switch of the tests' own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.hosts import hosts
from tests.hosts.delaying_switch import delaying_switch
from tests.hosts.world import HOSTS, SIZE, World

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(120)]

ONE_WAY_SECONDS = 0.02
BYTES_PER_SECOND = 125e6  # 1 Gbit/s
PATIENT = {"AIODIST_LIVENESS_TIMEOUT": "60"}


@pytest.mark.parametrize("streams", ["1", "4"])
def test_operations_succeed_between_distant_hosts(streams: str) -> None:
    with (
        hosts(HOSTS) as network,
        delaying_switch(network, ONE_WAY_SECONDS, BYTES_PER_SECOND),
        World(
            network, "-m", "tests.hosts.distant_rank", AIODIST_STREAMS=streams, **PATIENT
        ) as world,
    ):
        answers = world.go_on(range(SIZE))
    # The first rank to enter waits for a message that the last one sends, so the switch delays indeed.
    assert max(answer["barrier"] for answer in answers.values()) > ONE_WAY_SECONDS, answers
    assert max(answer["reduction"] for answer in answers.values()) < 60, answers


def test_compression_and_seldom_meetings_between_distant_hosts(tmp_path: Path) -> None:
    with (
        hosts(2) as network,
        delaying_switch(network, ONE_WAY_SECONDS, BYTES_PER_SECOND),
        World(
            network, "-m", "tests.hosts.distant_training", str(tmp_path), per_host=1, **PATIENT
        ) as world,
    ):
        first, second = (json.loads(world.output_of(rank)) for rank in range(2))
    for rank in (first, second):
        plain, fp16 = rank["gradients"]
        assert plain["bytes"] == 2 * fp16["bytes"]
        assert fp16["gradients"] == pytest.approx(plain["gradients"], rel=1e-2)
    assert [each["gradients"] for each in first["gradients"]] == [
        each["gradients"] for each in second["gradients"]
    ]
    assert first["meetings"] == [8, 1]
