"""Every Python block of the README and the docs runs on ranks, and prints what the page says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiodist.launch import reserve_port
from tests.docs.blocks import BLOCKS, Block
from tests.forked_ranks import ForkServer, failures


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("tests.docs.ranks") as server:
        yield server


@pytest.mark.timeout(120)
@pytest.mark.parametrize("block", BLOCKS, ids=[block.name for block in BLOCKS])
def test_a_block_runs_and_prints_what_stands_below_it(server: ForkServer, block: Block) -> None:
    if block.reason:
        pytest.skip(block.reason)
    with reserve_port() as reservation:
        answers = server.run(f"{reservation.port}\n{block.source}", block.ranks)
    if failed := failures(answers, (block.dies,)):
        pytest.fail(f"{block.source}\n{failed}", pytrace=False)
    if block.prints:
        printed = [
            f"[{rank}] {line}" for rank, answer in enumerate(answers) for line in answer.value or ()
        ]
        # One rank's lines keep their order; those of several ranks come as they come.
        assert printed == sorted(block.prints, key=lambda line: line.split()[0])
