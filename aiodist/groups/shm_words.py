"""What the ranks of a group write into the words of their areas, and read there.

A word of progress has the operation's number in its upper 40 bits and a step in its lower 24. So what one
operation publishes is never taken for another's, also after failures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodist.completion import Pending
from aiodist.shm.group_area import SLOT_TAGS, SLOTS

if TYPE_CHECKING:
    from aiodist.groups.fingerprint import Words

STEP_BITS = 24
LAST_STEP = (1 << STEP_BITS) - 1


class Wait(Pending[None]):
    """Until ``low <= words[word] <= high`` in the area of ``rank``."""

    __slots__ = ("asleep", "high", "low", "rank", "word", "words")

    def __init__(self, rank: int, words: memoryview, word: int, low: int, high: int) -> None:
        super().__init__()
        self.rank = rank
        self.words = words
        self.word = word
        self.low = low
        self.high = high
        self.asleep = False

    def is_over(self) -> bool:
        return self.low <= self.words[self.word] <= self.high


def stray(words: memoryview, sequence: int, meta: Words) -> Words | None:
    """Return the fingerprint that ``words`` have for an operation, where it is not ``meta``."""
    tag, base = SLOT_TAGS[sequence % SLOTS], sequence + 1 << STEP_BITS
    if words[tag] != base:
        return None
    theirs = words[tag + 1], words[tag + 2]
    # The tag still says so: its owner has not begun to publish the next one in this slot.
    return None if theirs == meta or words[tag] != base else theirs
