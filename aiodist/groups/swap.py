"""A collective of one slot a rank, before a line, a record or a coroutine is made for it.

What is put up, and where, is what `board.LineBoard` would put up: a rank that goes this way and one
that takes its turn on the plane as ever cannot tell the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, TypeVar

from aiodist.groups.board import LAST_STEP, STEP_BITS, announce, stray
from aiodist.shared.area import ASLEEP, COPIED, PROGRESS, SLOT_TAGS, SLOTS

if TYPE_CHECKING:
    from aiodist.groups.fingerprint import Fingerprint
    from aiodist.groups.plane import Plane
    from aiodist.mesh.lookout import Lookout

D = TypeVar("D")
Given = TypeVar("Given", contravariant=True)

AT_ONCE_SECONDS = 80e-6
"""How long to look for the others before an operation gets a line, a record and a driver.

About what those cost on a slow machine: so whoever looks in vain has lost as much again, and no more.
"""

CROWDED_SECONDS = 1e-3
"""The same where ranks outnumber cores: giving way each time, so that the others get there."""

BYTE_SECONDS = 4e-10
"""More for each byte that a rank puts up, where each has a core: the others' copies take time too."""


class Swap(Protocol[Given]):
    """What equal calls of such a collective have in common. Ranks are numbers on the plane."""

    @property
    def fingerprint(self) -> Fingerprint: ...

    @property
    def nbytes(self) -> int:
        """What this rank puts up; -1 where it puts up nothing."""
        ...

    @property
    def room(self) -> int:
        """What a slot must hold: the same on all ranks, unless what is in a slot says how much it is."""
        ...

    @property
    def worth(self) -> int:
        """For how long to look for the others, as the bytes for whose copies one would: ``nbytes``."""
        ...

    @property
    def pieces(self) -> Sequence[slice]:
        """What is put up in pieces, in this order, by the one rank that puts up anything, and read so
        while others follow; empty where all of it is put up at once."""
        ...

    @property
    def reads(self) -> Sequence[tuple[int, int]]:
        """The other ranks whose slots this one reads, and their bytes; -1: as many as there are."""
        ...

    def fill(self, slot: memoryview, given: Given) -> None:
        """Write what this rank puts up into its ``slot``. May be done again, as `Plane.enter` does."""
        ...

    def fill_piece(self, piece: slice, slot: memoryview, given: Given) -> None:
        """The same of one of `pieces`."""
        ...

    def go_ahead(self, given: Given) -> None:
        """What there is to do before the others are looked for, when it has been put up."""
        ...

    def finish_piece(self, piece: slice, slot: memoryview, given: Given) -> None:
        """Take one of `pieces` out of the ``slot`` of who put it up. May be done again."""
        ...

    def finish(self, number: int, slots: Sequence[memoryview], given: Given) -> bool:
        """Make of the ranks' ``slots`` of that number what the caller gets.

        False: they do not fit together.
        """
        ...


def swap(plane: Plane, sequence: int, what: Swap[D], given: D) -> bool:
    """Carry out the collective ``sequence``, if all it needs is there at once and ranks agree.

    False: somebody is not there yet, or the plane is not free, or ranks disagree. The operation
    then takes its turn as ever, and puts up the same again.
    """
    base = sequence + 1 << STEP_BITS
    words_of = plane.words
    if (
        not words_of
        or plane.current is not None
        or plane.queue
        or plane.progress != base - 1
        or what.room > plane.shape.slot_bytes
    ):
        return False
    slot, end, nbytes = sequence % SLOTS, base | LAST_STEP, what.nbytes
    slots, tag = plane.slots[slot], SLOT_TAGS[slot]
    meta = what.fingerprint.words
    low, high = meta
    glance, peers = plane.glance, plane.peers
    glance.begin(what.worth)
    if nbytes >= 0:
        needed = plane.slot_used[slot]
        unread = plane.unread[slot]
        if needed or unread is not None:
            for _, words in peers:
                if words[PROGRESS] < needed and not glance.finds(words, PROGRESS, needed):
                    return False
                if unread is not None and stray(words, *unread) is not None:
                    return False
        if what.pieces and not plane.lookout.crowded:
            # Where ranks take turns on a core whoever finds anything shall find all of it.
            for piece in what.pieces:
                what.fill_piece(piece, slots[plane.rank], given)
                announce(plane.mine, tag, base, meta, nbytes, piece.stop)
        else:
            what.fill(slots[plane.rank], given)
        announce(plane.mine, tag, base, meta, nbytes)
        for _, words in peers:
            if words[ASLEEP]:
                plane.wake(tag)
                break
        what.go_ahead(given)
    follows = nbytes < 0 and bool(what.pieces)
    for rank, length in what.reads:
        words = words_of[rank]
        if words[tag] != base and not (
            glance.finds_within(words, tag + COPIED, base + what.pieces[0].stop, base + length)
            if follows
            else glance.finds_within(words, tag, base, base)
        ):
            return False
        if (
            words[tag + 1] != low
            or words[tag + 2] != high
            or (length >= 0 and words[tag + 3] != length)
        ):
            return False
        if follows and not _follow(glance, words, tag + COPIED, base, slots[rank], what, given):
            return False
    before, knows_all = (sequence + 1) % SLOTS, len(what.reads) == len(peers)
    unread = plane.unread[before]
    if knows_all and unread is not None:
        for _, words in peers:
            if stray(words, *unread) is not None:
                return False
    if not follows and not what.finish(slot, slots, given):
        return False
    if knows_all:
        # All are in this operation, so they have left the one before and what it put up.
        plane.slot_used[before] = 0
        plane.unread[slot] = plane.unread[before] = None
    else:
        plane.unread[slot] = sequence, meta
    if nbytes >= 0:
        plane.slot_used[slot] = end
    plane.advance(end)
    return True


def _follow(
    glance: Glance,
    words: memoryview,
    word: int,
    base: int,
    slot: memoryview,
    what: Swap[D],
    given: D,
) -> bool:
    """Take what another rank has begun to put up, as it comes; whether all of it came in time."""
    last = what.pieces[-1].stop
    glance.begin(last)
    for piece in what.pieces:
        if not glance.finds_within(words, word, base + piece.stop, base + last):
            return False
        what.finish_piece(piece, slot, given)
    return True


class Glance:
    """A short look for words of other ranks, one after the other, with one limit in all."""

    __slots__ = ("_end", "_lookout", "_times", "_worth")

    def __init__(self, lookout: Lookout) -> None:
        self._lookout = lookout
        self._times = 0
        self._end = 0.0  # of `time.perf_counter`; 0 before the first look
        self._worth = 0

    def begin(self, worth: int) -> None:
        """From here on it takes the time for `Swap.worth` bytes."""
        self._end = 0.0
        self._worth = worth

    def finds_within(self, words: memoryview, word: int, least: int, most: int) -> bool:
        """Whether ``words[word]`` is between these two before the time is up."""
        return (words[word] >= least or self.finds(words, word, least)) and words[word] <= most

    def finds(self, words: memoryview, word: int, least: int) -> bool:
        """Whether ``words[word]`` is at least ``least`` before the time is up."""
        lookout = self._lookout
        if not (lookout.active or lookout.crowded):
            return words[word] >= least
        if not self._end:
            self._times = 0
            self._end = perf_counter() + (
                CROWDED_SECONDS if lookout.crowded else AT_ONCE_SECONDS + BYTE_SECONDS * self._worth
            )
        while words[word] < least:
            now = perf_counter()
            if now > self._end:
                lookout.neighbours.step_aside(now)
                return False
            if lookout.crowded:
                lookout.give_way(self._times)
                self._times += 1
        return True
