"""Whatever breaks, every operation on every surviving rank ends, within its bound, and says why.

By default as many cells as hold every pair of values once; all of them with ``-m matrix``
(``make matrix``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.cells import FAULTS, KERNEL_SECONDS, LARGE, Cell, all_cells, pairwise
from tests.faults.conftest import Nursery
from tests.faults.lateness import lateness
from tests.faults.report import Measured

LEAVE_SECONDS = 12.0
"""``destroy_process_group`` flushes for a bounded time (5 s) to a peer that does not answer."""

LOUD = ("Traceback", "never retrieved", "never awaited", "Exception ignored", "was destroyed")
"""What no survivor may have said on stderr."""


def _params() -> list[object]:
    cells = list(all_cells())
    # Half a minute each, by request alone.
    usual = [cell for cell in cells if (cell.fault, cell.phase) != ("slow rank", LARGE)]
    chosen = {*pairwise(usual), *(cell for cell in cells if cell.flag % 25 == 1)}
    return [
        pytest.param(cell, id=str(cell), marks=() if cell in chosen else pytest.mark.matrix)
        for cell in cells
    ]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("cell", _params())
def test_cell(cell: Cell, nursery: Nursery, scaled: Callable[[float], float]) -> None:
    answer = nursery.answer(cell)
    seconds, late = check(cell, answer, scaled)
    nursery.measured[cell] = Measured(seconds, seconds < cell.bound, answer["load"], late)


def time_of_the_fault(cell: Cell, culprit: dict[str, Any]) -> float:
    """When it struck; for a process that ends, when it had ended: Python takes its time over it."""
    struck: float = culprit["struck"]["at"]
    return max(struck, culprit["gone"]) if FAULTS[cell.fault].exits else struck


def late_by(cell: Cell, answer: dict[str, Any]) -> dict[int, float]:
    """Seconds that the machine kept each survivor from its end, or from the news.

    What it kept ranks waiting before the nursery, which only listens, had a turn to look, it kept the
    nursery waiting too.
    """
    before = {int(rank): turns for rank, turns in answer["turns"].items()}
    after = {rank: answer["ranks"][str(rank)]["done"]["turns"] for rank in cell.survivors}
    unseen = answer["heard"] - answer["ranks"][str(cell.culprit)]["struck"]["at"]
    return {rank: late + unseen for rank, late in lateness(before, after).items()}


def check(
    cell: Cell, answer: dict[str, Any], scaled: Callable[[float], float]
) -> tuple[float, float]:
    """All that a cell promises; returns how long the last survivor took, and what was allowed it."""
    fault = FAULTS[cell.fault]
    ranks = {int(rank): said for rank, said in answer["ranks"].items()}
    assert not any("broken" in said for said in ranks.values()), answer
    assert "struck" in ranks[cell.culprit], answer
    struck = time_of_the_fault(cell, ranks[cell.culprit])
    for rank in cell.survivors:
        assert "done" in ranks[rank], f"rank {rank} never came to an end: {answer}"
    late = late_by(cell, answer)
    usual = cell.bound if cell.bound == KERNEL_SECONDS else scaled(cell.bound)
    for rank in cell.survivors:
        done = ranks[rank]["done"]
        leaving = done.get("leaving")
        # A damaged fingerprint that no rank has read is found when the group is destroyed.
        assert leaving is None or not leaving["error"] or cell.fault == "corrupted byte", answer
        for what in (done, done.get("later"), leaving):
            if what is not None and what["error"] is not None:
                assert not fault.succeeds, answer
                assert what["typed"], answer
                slow = "it needs more time" in what["text"]  # as it may on a busy machine
                assert slow or set(what["blames"]) & cell.may_diagnose(rank), answer
        if fault.ends:
            later = done.get("later", {"error": None})
            assert done["error"] or later["error"], f"rank {rank} noticed nothing: {answer}"
        took = done["ended"] - struck
        assert took < max(usual, cell.bound + late[rank]), (
            f"{took} s, the machine was late by {late}: {answer}"
        )
        assert done["left"] - done["ended"] < scaled(LEAVE_SECONDS), answer
        assert done["leftovers"] == [], answer
        assert ranks[rank]["code"] == 0, answer
        words = ranks[rank]["stderr"]
        assert not any(loud in words for loud in LOUD), words
    took = max(0.0, *(ranks[rank]["done"]["ended"] - struck for rank in cell.survivors))
    return took, max(late.values())
