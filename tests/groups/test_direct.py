"""Collectives that read the other ranks' tensors where they are: results, and who may not, and ends."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.collectives import all_to_all_shared
from aiodist.collectives.select import MANY, Choice, Rule
from aiodist.collectives.shared import ALGORITHMS
from aiodist.collectives.tables import encode
from aiodist.completion import Pending
from aiodist.groups.board import LineBoard
from aiodist.shared.area import PROGRESS
from aiodist.shared.memory import SharedMemory
from aiodist.shared.reading import Window
from aiodist.testing.in_process import run_ranks

OPERATIONS = ("all_reduce", "reduce_scatter", "all_to_all", "uneven")
COUNTS = (1, 7, 300_001)
"""Elements of four bytes: less than ranks, a few, some chunks."""


@pytest.fixture(autouse=True)
def direct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the length."""
    rows = {
        operation: [Rule(MANY, MANY, Choice("direct"))]
        for operation, names in ALGORITHMS.items()
        if "direct" in names
    }
    path = tmp_path / "table.json"
    path.write_text(encode({}, {name: _each(rows[name]) for name in rows}, {}))
    monkeypatch.setenv("AIODIST_TABLE", str(path))
    monkeypatch.setattr(all_to_all_shared, "READ_FROM", 0)


def _each(rules: list[Rule]) -> list[Rule]:
    """A table's rows are for numbers of ranks."""
    return [rule._replace(ranks=ranks, least=ranks) for ranks in (2, 3, 5) for rule in rules]


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Which rank has read of which."""
    seen: list[tuple[int, int]] = []
    pull = LineBoard.pull

    def noted(board: LineBoard, rank: int, start: int, into: memoryview) -> Awaitable[None]:
        seen.append((board.rank, rank))
        return pull(board, rank, start, into)

    monkeypatch.setattr(LineBoard, "pull", noted)
    return seen


def numbers(rank: int, count: int) -> np.ndarray:
    """So far apart that every order of adding gives other bits."""
    rng = np.random.default_rng(rank)
    return (rng.standard_normal(count) * 10.0 ** rng.integers(-4, 4, count)).astype(np.float32)


async def results(operation: str, rank: int, size: int) -> list[np.ndarray]:
    found = []
    for count in COUNTS:
        mine = numbers(rank, count)
        if operation == "all_reduce":
            out = mine.copy()
            await dist.all_reduce(out)
            found.append(out)
        elif operation == "reduce_scatter":
            out = np.empty_like(mine)
            await dist.reduce_scatter(out, [mine * (place + 1) for place in range(size)])
            found.append(out)
        else:
            # Uneven: what some ranks have fits into a slot, and what others have does not.
            lengths = [count if operation == "all_to_all" else count * (r % 2) for r in range(size)]
            places = [np.empty(lengths[other], np.float32) for other in range(size)]
            await dist.all_to_all(places, [numbers(rank, lengths[rank]) + 1] * size)
            found += places
        assert (mine == numbers(rank, count)).all()
    return found


async def run(operation: str, size: int, single_copy: bool = True) -> list[list[bytes]]:
    """The bits of the results, by rank."""
    found = await run_ranks(
        size, lambda rank: results(operation, rank, size), "shm", single_copy=single_copy
    )
    return [[each.tobytes() for each in of_rank] for of_rank in found]


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_the_same_bits_as_in_chunks(
    operation: str, size: int, pulls: list[tuple[int, int]]
) -> None:
    directly = await run(operation, size)
    having = range(1, size, 2) if operation == "uneven" else range(size)
    assert set(pulls) == {
        (rank, other) for rank in range(size) for other in having if other != rank
    }
    pulls.clear()
    assert await run(operation, size, single_copy=False) == directly
    assert not pulls


@pytest.mark.parametrize("what", ["no right", "no memory that can be read"])
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_where_one_rank_cannot_no_rank_does(
    operation: str, what: str, pulls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "no right":
        window = SharedMemory.window
        monkeypatch.setattr(
            SharedMemory,
            "window",
            lambda memory, ranks: None if memory.rank == 1 else window(memory, ranks),
        )
    else:
        monkeypatch.setattr(Window, "address", lambda window, data: 0)
    found = await run(operation, 3)
    assert not pulls
    monkeypatch.undo()
    assert await run(operation, 3) == found


async def test_what_cannot_be_read_after_all_is_an_error_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(*_: Any) -> None:
        raise OSError(errno.EFAULT, "process_vm_readv: Bad address")

    async def rank(number: int) -> None:
        data = np.ones(COUNTS[-1], np.float32)
        with pytest.raises(dist.CollectiveError, match="AIODIST_SINGLE_COPY=0") as caught:
            await dist.all_reduce(data)
        assert "cannot be read where it is" in str(caught.value)

    monkeypatch.setattr(Window, "read", read)
    await run_ranks(3, rank, "shm")


@pytest.mark.parametrize("operation", OPERATIONS[:3])
async def test_nobody_takes_what_a_rank_has_after_it_has_failed(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 is cancelled in the middle. Rank 0 reads of it just then, before it hears of that."""
    pull = LineBoard.pull
    go: Pending[None] = Pending()
    unended: list[bool] = []

    async def until_told() -> None:
        await go
        raise asyncio.CancelledError

    def patched(board: LineBoard, rank: int, start: int, into: memoryview) -> Awaitable[None]:
        if board.rank == 1:
            return until_told()
        # As one that leaves does, first of all.
        board._plane.areas[rank].words[PROGRESS] = board.end
        pulled = pull(board, rank, start, into)
        assert isinstance(pulled, Pending)
        unended.append(not pulled.done)
        go.complete(None)
        return pulled

    async def rank(number: int) -> None:
        given = np.ones(COUNTS[-1], np.float32)
        outs = [np.ones(COUNTS[-1], np.float32) for _ in range(2)]
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "all_reduce": lambda: dist.all_reduce(given),
            "reduce_scatter": lambda: dist.reduce_scatter(outs[0], [given, given]),
            "all_to_all": lambda: dist.all_to_all(outs, [given, given]),
        }
        with pytest.raises((asyncio.CancelledError, dist.CollectiveCancelledError)):
            await calls[operation]()

    monkeypatch.setattr(LineBoard, "pull", patched)
    await run_ranks(2, rank, "shm")
    assert unended == [True]
