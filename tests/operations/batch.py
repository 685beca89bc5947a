"""Many cases of the matrix on one world of ranks, since starting one is what costs time."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.testing.in_process import run_ranks
from tests.operations.design import Case
from tests.operations.programs import PROGRAMS, Rank

SHOWN = 30


async def run_batch(number: int, batch: Sequence[Case]) -> list[str]:
    """What went wrong on rank ``number`` of the world that is there."""
    wrong: list[str] = []
    for case in batch:
        rank = Rank(case, number)
        try:
            await PROGRAMS[case.operation](rank)
        except Exception as error:
            error.add_note(f"{case}: rank {number}")
            raise
        wrong.extend(rank.wrong())
    return wrong


def complain(wrong: Sequence[str]) -> None:
    """Fail the test unless nothing is wrong."""
    assert not wrong, "\n".join([f"{len(wrong)} things are wrong:", *wrong[:SHOWN]])


def placing(transport: str, size: int) -> tuple[str, Sequence[int]]:
    """Transport and hosts of ``run_ranks`` for a transport of `design.TRANSPORTS`."""
    if transport != "hosts":
        return transport, ()
    return "shm", [2 * rank // (size + 1) for rank in range(size)]


async def check(
    size: int,
    batch: Sequence[Case],
    timeout: float,
    transport: str = "inproc",
    backend: str = "aiodist",
) -> None:
    """Run ``batch`` on ``size`` ranks in this process; fail the test where a result is wrong."""
    assert batch
    transport, hosts = placing(transport, size)
    wrong = await run_ranks(
        size,
        lambda number: run_batch(number, batch),
        transport,
        timeout=timeout,
        backend=backend,
        hosts=hosts,
    )
    complain([each for rank in wrong for each in rank])
