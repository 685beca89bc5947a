"""A collective of one slot a rank, before a line, a record or a coroutine is made for it.

What is put up, and where, is what `board.LineBoard` would put up: a rank that goes this way and one
that takes its turn on the plane as ever cannot tell the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

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

    @property
    def knows_all(self) -> bool:
        """Whether those are all other ranks."""
        ...

    def fill(self, slot: memoryview, given: Given) -> None:
        """Write what this rank puts up into its ``slot``. May be done again, as `Plane.enter` does."""
        ...

    def fill_piece(self, piece: slice, slot: memoryview, given: Given) -> None:
        """The same of one of `pieces`."""
        ...

    @property
    def go_ahead(self) -> Callable[[Given], None] | None:
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
    # As long as another operation has the plane, or waits for it, the last one has not ended there.
    if plane.progress != base - 1 or what.room > plane.room:
        return False
    slot, nbytes = sequence % SLOTS, what.nbytes
    tag, slots, peers, glance = SLOT_TAGS[slot], plane.slots[slot], plane.peers, None
    low, high = meta = what.fingerprint.words
    follows, reads = nbytes < 0 and bool(what.pieces), what.reads
    if nbytes >= 0:
        # Whoever is in the last operation has left the one before it, and what that put up here.
        if plane.met != sequence - 1 and not _may_write(plane, slot, what.worth):
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
        if what.go_ahead is not None:
            what.go_ahead(given)
    elif follows:
        if not _follow(plane, slot, base, what, given):
            return False
        reads = ()  # all of it is here
    words_of = plane.words
    for rank, length in reads:
        words = words_of[rank]
        if words[tag] != base:
            glance = glance or plane.glance.begin(what.worth)
            if not glance.finds_within(words, tag, base, base):
                return False
        if (
            words[tag + 1] != low
            or words[tag + 2] != high
            or (length >= 0 and words[tag + 3] != length)
        ):
            return False
    knows_all = what.knows_all
    if knows_all and plane.unread[slot - 1] is not None and not _agreed(plane, slot - 1):
        return False
    if not follows and not what.finish(slot, slots, given):
        return False
    if knows_all:
        plane.met = sequence
    else:
        plane.unread[slot] = sequence, meta
    end = base | LAST_STEP
    if nbytes >= 0:
        plane.slot_used[slot] = end
    plane.advance(end)
    return True


def _may_write(plane: Plane, slot: int, worth: int) -> bool:
    """Whether all others have left what this rank has put up in ``slot``, or do so in time, and were
    in the same operation if it has not looked at that."""
    glance, needed = plane.glance.begin(worth), plane.slot_used[slot]
    for _, words in plane.peers:
        if words[PROGRESS] < needed and not glance.finds(words, PROGRESS, needed):
            return False
    return plane.unread[slot] is None or _agreed(plane, slot)


def _agreed(plane: Plane, slot: int) -> bool:
    """Whether nobody had put up another operation than this rank did, in a slot that it left unread."""
    unread = plane.unread[slot]
    assert unread is not None
    for _, words in plane.peers:
        if stray(words, *unread) is not None:
            return False
    plane.unread[slot] = None
    return True


def _follow(plane: Plane, slot: int, base: int, what: Swap[D], given: D) -> bool:
    """Take what the one other rank has begun to put up, as it comes; whether all of it came in time."""
    tag, meta = SLOT_TAGS[slot], what.fingerprint.words
    for rank, length in what.reads:
        words = plane.words[rank]
        glance, place = plane.glance.begin(what.worth), plane.slots[slot][rank]
        for piece in what.pieces:
            if not glance.finds_within(words, tag + COPIED, base + piece.stop, base + length):
                return False
            if (words[tag + 1], words[tag + 2]) != meta or words[tag + 3] != length:
                return False
            what.finish_piece(piece, place, given)
            glance.begin(length)
    return True


class Glance:
    """A short look for words of other ranks, one after the other, with one limit in all."""

    __slots__ = ("_end", "_lookout", "_times", "_worth")

    def __init__(self, lookout: Lookout) -> None:
        self._lookout = lookout
        self._times = 0
        self._end = 0.0  # of `time.perf_counter`; 0 before the first look
        self._worth = 0

    def begin(self, worth: int) -> Self:
        """This: from here on it takes the time for `Swap.worth` bytes."""
        self._end = 0.0
        self._worth = worth
        return self

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
