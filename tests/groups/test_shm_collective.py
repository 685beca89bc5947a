"""What a rank makes of words that another one is just writing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aiodist.completion import Pending
from aiodist.groups.shm_collective import ShmCollective, announce
from aiodist.groups.shm_words import STEP_BITS
from aiodist.shm.group_area import CONTROL_BYTES, COPIED, PROGRESS, SLOT_TAGS

SEQUENCE = 5
HERE, THERE = (1, 2), (3, 4)


@pytest.mark.parametrize(
    ("after", "disagrees"), [("nothing", True), ("tag", False), ("all", False)]
)
def test_a_slot_that_is_written_anew_is_no_disagreement(after: str, disagrees: bool) -> None:
    """Rank 1's slot has the tag of operation 5, which rank 0 left without a look, and another
    fingerprint: its own, or half or all of what rank 1 publishes for operation 7."""
    words = memoryview(bytearray(CONTROL_BYTES)).cast("Q")
    tag = SLOT_TAGS[SEQUENCE % len(SLOT_TAGS)]
    announce(words, tag, SEQUENCE + 1 << STEP_BITS, THERE, 8)
    if after == "tag":
        words[tag] = 0  # the first thing of all that `announce` does
    elif after == "all":
        announce(words, tag, SEQUENCE + 3 << STEP_BITS, THERE, 8)
    late: list[tuple[int, int, tuple[int, int]]] = []
    words[PROGRESS] = (SEQUENCE + 2 << STEP_BITS) - 1  # rank 1 has left operation 5
    unread = [None, (SEQUENCE, HERE)]
    communicator: Any = SimpleNamespace(peers=[(1, words)], group_ranks=[0, 1], unread=unread)
    shm = ShmCollective(communicator)
    if disagrees:  # without a context there is nothing to tell it to: it stays unread
        assert not shm._agreed(SEQUENCE % len(SLOT_TAGS))
    shm.context = SimpleNamespace(late_mismatch=lambda *what: late.append(what))  # type: ignore[assignment]
    assert shm._agreed(SEQUENCE % len(SLOT_TAGS))
    assert unread == [None, None]
    assert late == ([(SEQUENCE, 1, THERE)] if disagrees else [])


def test_only_pieces_count_the_bytes_that_are_copied() -> None:
    """A whole may have more bytes than there are steps, and would meet the count of a later operation."""
    words = memoryview(bytearray(CONTROL_BYTES)).cast("Q")
    tag, base = SLOT_TAGS[0], 5 << STEP_BITS
    announce(words, tag, base, HERE, 40 << 20)
    assert (words[tag], words[tag + 3], words[tag + COPIED]) == (base, 40 << 20, 0)


def test_the_tag_goes_first_and_comes_last() -> None:
    """A reader that finds the tag finds the words that belong to it."""
    written: list[tuple[int, int]] = []

    class Words(dict[int, int]):
        def __setitem__(self, word: int, value: int) -> None:
            written.append((word, value))
            super().__setitem__(word, value)

    words = Words({0: 4, 1: 1, 2: 2, 3: 0})
    announce(words, 0, 12, THERE, 8)  # type: ignore[arg-type]  # words by number, as a view has them
    assert written == [(0, 0), (1, 3), (2, 4), (3, 8), (0, 12)]
    written.clear()
    announce(words, 0, 12, THERE, 8)  # type: ignore[arg-type]
    assert (0, 0) not in written  # unchanged, so the tag must not vanish meanwhile
    written.clear()
    announce(words, 0, 16, THERE, 8, 5)  # type: ignore[arg-type]
    assert written == [(0, 0), (1, 3), (2, 4), (3, 8), (COPIED, 21)]  # and no tag as yet


def test_a_chunk_is_free_when_all_ranks_have_released_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if one does so while it is looked for, and another one does not."""
    areas = [memoryview(bytearray(CONTROL_BYTES)).cast("Q") for _ in range(3)]
    shm = ShmCollective(SimpleNamespace())  # type: ignore[arg-type]
    shm.depth, shm._chunks_before, shm._base = 4, 9, 100 << STEP_BITS
    shm._peers = [*enumerate(areas)]
    asked: list[int] = []
    absent = Pending[None]()

    def until(
        shm: ShmCollective, rank: int, word: int, low: int, high: int
    ) -> Pending[None] | None:
        assert (word, low) == (PROGRESS, 9)
        asked.append(rank)
        return absent if rank == 2 else None

    monkeypatch.setattr(ShmCollective, "_until", until)
    areas[0][PROGRESS] = 9
    assert shm.free(3) is absent
    assert asked == [1, 2]
    for words in areas:
        words[PROGRESS] = 9
    assert shm.free(3) is None
    assert asked == [1, 2]
