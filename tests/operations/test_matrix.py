"""Every operation against numpy, over all the cases of `design`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aiodist.testing.in_process import run_ranks
from tests.operations.design import SIZES, TRANSPORTS, cases
from tests.operations.programs import PROGRAMS, Rank

SHOWN = 30


@pytest.mark.timeout(180)
@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_matrix(transport: str, size: int, scaled: Callable[[float], float]) -> None:
    """One world of ranks for all cases of a size, since starting one is what costs time."""
    batch = [case for case in cases() if case.size == size and case.transport == transport]
    assert batch
    wrong: list[str] = []

    async def on_rank(number: int) -> None:
        for case in batch:
            rank = Rank(case, number)
            try:
                await PROGRAMS[case.operation](rank)
            except Exception as error:
                error.add_note(f"{case}: rank {number}")
                raise
            wrong.extend(rank.wrong())

    await run_ranks(size, on_rank, transport, timeout=scaled(30))
    assert not wrong, "\n".join([f"{len(wrong)} things are wrong:", *wrong[:SHOWN]])
