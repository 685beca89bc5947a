"""The parameter server: it trains, and workers come and go meanwhile."""

from __future__ import annotations

import re

import pytest

pytestmark = [pytest.mark.examples, pytest.mark.slow, pytest.mark.timeout(180)]


def loss_of(output):
    return float(re.search(r"updates, loss (\S+)", output)[1])


async def test_workers_train_together(start):
    options = ("--max-restarts", "1")
    async with start(3, "parameter_server.py", "--updates", "400", options=options) as job:
        code, output = await job.end()
    assert code == 0, output
    assert loss_of(output) < 0.4


async def test_a_killed_worker_is_replaced_while_the_others_go_on(start):
    options, arguments = ("--max-restarts", "3"), ("--updates", "400", "--replacements", "1")
    async with start(3, "parameter_server.py", *arguments, options=options) as job:
        await job.printed("update 5")
        job.kill(1)
        # The server meets the death in its streams and shrinks, or in `grow`, which does it at once.
        await job.printed("ranks (1,) came")
        code, output = await job.end()
    assert code == 0, output
    assert loss_of(output) < 0.4
