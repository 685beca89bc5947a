"""The actors and their learner: it learns, also when an actor is killed."""

from __future__ import annotations

import re

import pytest

pytestmark = [pytest.mark.examples, pytest.mark.slow, pytest.mark.timeout(180)]


def reward_of(output):
    return float(re.search(r"mean reward (\S+) after", output)[1])


async def test_the_learner_finds_the_way_through_the_corridor(start):
    async with start(3, "actor_learner.py", "--episodes", "2000") as job:
        code, output = await job.end()
    assert code == 0, output
    assert reward_of(output) > 0.7  # 0.83 is the best, 0.3 that of chance


async def test_an_actor_that_is_killed_takes_only_its_own_episodes_with_it(start):
    arguments = ("--episodes", "12000")
    async with start(3, "actor_learner.py", *arguments, options=("--keep-going",)) as job:
        await job.printed("500 episodes")
        job.kill(1)
        await job.printed("without actor 1: it died")
        _, output = await job.end()
    assert reward_of(output) > 0.7
    assert "rank 1 failed first: SIGKILL" in output
    assert "ranks 0, 2 returned with exit code 0" in output
