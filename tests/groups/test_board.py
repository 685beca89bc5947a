"""What a rank makes of words that another one is just writing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aiodist.groups.board import LAST_STEP, STEP_BITS, LineBoard
from aiodist.shared.area import CONTROL_BYTES, PROGRESS, SLOT_TAGS

SEQUENCE = 5
HERE, THERE = (1, 2), (3, 4)


@pytest.mark.parametrize(("ended", "disagrees"), [(SEQUENCE, True), (SEQUENCE + 1, False)])
def test_a_slot_that_may_be_written_anew_is_no_disagreement(ended: int, disagrees: bool) -> None:
    """Rank 1's slot has the tag of operation 5, which rank 0 left without a look, and another
    fingerprint: its own, or half of what rank 1 puts up for operation 7."""
    words = memoryview(bytearray(CONTROL_BYTES)).cast("Q")
    tag = SLOT_TAGS[SEQUENCE % len(SLOT_TAGS)]
    words[tag] = SEQUENCE + 1 << STEP_BITS
    words[tag + 1], words[tag + 2] = THERE
    words[PROGRESS] = ended + 1 << STEP_BITS | LAST_STEP
    late: list[tuple[int, int, tuple[int, int]]] = []
    board = LineBoard.__new__(LineBoard)
    board.rank, board._tag = 0, tag
    board._plane = SimpleNamespace(words=[words, words], seats=[0, 1])  # type: ignore[assignment]
    board.line = SimpleNamespace(late=lambda *what: late.append(what))  # type: ignore[assignment]
    board._compare(1, SEQUENCE, HERE)
    assert late == ([(1, SEQUENCE, THERE)] if disagrees else [])
