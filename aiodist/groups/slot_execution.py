"""A collective of one slot a rank, before a context, a record or a coroutine is made for it.

It publishes the same words in the same places as `OperationShm`. So one rank may take this way while
another rank of the same operation takes its turn on the communicator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from aiodist.groups.shm_words import LAST_STEP, STEP_BITS, announce, stray
from aiodist.shm.group_area import ASLEEP, COPIED, PROGRESS, SLOT_TAGS, SLOTS

if TYPE_CHECKING:
    from aiodist.groups.fingerprint import Fingerprint
    from aiodist.groups.shm_communicator import ShmCommunicator

D = TypeVar("D")
Given = TypeVar("Given", contravariant=True)


class SlotExecution(Protocol[Given]):
    """What equal calls of such a collective have in common. Ranks are numbers on the communicator."""

    @property
    def fingerprint(self) -> Fingerprint: ...

    @property
    def nbytes(self) -> int:
        """What this rank publishes; -1 where it publishes nothing."""
        ...

    @property
    def room(self) -> int:
        """What a slot must hold: the same on all ranks, unless what is in a slot says how much it is."""
        ...

    @property
    def spin_bytes(self) -> int:
        """For how long to look for the others, as the bytes for whose copies one would: ``nbytes``."""
        ...

    @property
    def pieces(self) -> Sequence[slice]:
        """What is published in pieces, in this order, by the one rank that publishes anything, and read so
        while others follow; empty where all of it is published at once."""
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
        """Write what this rank publishes into its ``slot``. May be done again, as
        `ShmCommunicator.enter` does.
        """
        ...

    def fill_piece(self, piece: slice, slot: memoryview, given: Given) -> None:
        """Write one of `pieces`, as `fill`."""
        ...

    @property
    def go_ahead(self) -> Callable[[Given], None] | None:
        """What there is to do before the others are looked for, when it has been published."""
        ...

    def finish_piece(self, piece: slice, slot: memoryview, given: Given) -> None:
        """Take one of `pieces` out of the ``slot`` of who put it up. May be done again."""
        ...

    def finish(self, number: int, slots: Sequence[memoryview], given: Given) -> bool:
        """Make of the ranks' ``slots`` of that number what the caller gets.

        False: they do not fit together.
        """
        ...


def run_in_slots(
    communicator: ShmCommunicator, sequence: int, what: SlotExecution[D], given: D
) -> bool:
    """Carry out the collective ``sequence``, if all it needs is there at once and ranks agree.

    Returns False if a rank is not there yet, the communicator is not free, or ranks disagree. The operation
    then takes its turn on the communicator, and publishes the same again.
    """
    base = sequence + 1 << STEP_BITS
    # As long as another operation has the communicator, or waits for it, the last one has not ended there.
    if communicator.progress != base - 1 or what.room > communicator.room:
        return False
    slot, nbytes = sequence % SLOTS, what.nbytes
    tag, slots, peers, spin = SLOT_TAGS[slot], communicator.slots[slot], communicator.peers, None
    low, high = meta = what.fingerprint.words
    follows, reads = nbytes < 0 and bool(what.pieces), what.reads
    if nbytes >= 0:
        # A peer in operation n-1 no longer reads the slot of operation n-2, so it may be overwritten.
        if communicator.met != sequence - 1 and not _may_write(communicator, slot, what.spin_bytes):
            return False
        if what.pieces and not communicator.spin_policy.crowded:
            # Where ranks take turns on a core, a rank that finds anything shall find all of it.
            for piece in what.pieces:
                what.fill_piece(piece, slots[communicator.rank], given)
                announce(communicator.mine, tag, base, meta, nbytes, piece.stop)
        else:
            what.fill(slots[communicator.rank], given)
        announce(communicator.mine, tag, base, meta, nbytes)
        for _, words in peers:
            if words[ASLEEP]:
                communicator.wake(tag)
                break
        if what.go_ahead is not None:
            what.go_ahead(given)
    elif follows:
        if not _follow(communicator, slot, base, what, given):
            return False
        reads = ()  # all of it is here
    words_of = communicator.words
    for rank, length in reads:
        words = words_of[rank]
        if words[tag] != base:
            spin = spin or communicator.spin.begin(what.spin_bytes)
            if not spin.found_within(words, tag, base, base):
                return False
        if (
            words[tag + 1] != low
            or words[tag + 2] != high
            or (length >= 0 and words[tag + 3] != length)
        ):
            return False
    knows_all = what.knows_all
    if (
        knows_all
        and communicator.unread[slot - 1] is not None
        and not _agreed(communicator, slot - 1)
    ):
        return False
    if not follows and not what.finish(slot, slots, given):
        return False
    if knows_all:
        communicator.met = sequence
    else:
        communicator.unread[slot] = sequence, meta
    end = base | LAST_STEP
    if nbytes >= 0:
        communicator.slot_used[slot] = end
    communicator.advance(end)
    return True


def _may_write(communicator: ShmCommunicator, slot: int, spin_bytes: int) -> bool:
    """Whether all others have left what this rank has published in ``slot``, or do so in time, and were
    in the same operation if it has not looked at that."""
    spin, needed = communicator.spin.begin(spin_bytes), communicator.slot_used[slot]
    for _, words in communicator.peers:
        if words[PROGRESS] < needed and not spin.finds(words, PROGRESS, needed):
            return False
    return communicator.unread[slot] is None or _agreed(communicator, slot)


def _agreed(communicator: ShmCommunicator, slot: int) -> bool:
    """Return whether all ranks had published this rank's operation in a slot that it left unread."""
    unread = communicator.unread[slot]
    assert unread is not None
    for _, words in communicator.peers:
        if stray(words, *unread) is not None:
            return False
    communicator.unread[slot] = None
    return True


def _follow(
    communicator: ShmCommunicator, slot: int, base: int, what: SlotExecution[D], given: D
) -> bool:
    """Take what the one other rank has begun to publish, as it comes; whether all of it came in time."""
    tag, meta = SLOT_TAGS[slot], what.fingerprint.words
    for rank, length in what.reads:
        words = communicator.words[rank]
        spin, place = communicator.spin.begin(what.spin_bytes), communicator.slots[slot][rank]
        for piece in what.pieces:
            if not spin.found_within(words, tag + COPIED, base + piece.stop, base + length):
                return False
            if (words[tag + 1], words[tag + 2]) != meta or words[tag + 3] != length:
                return False
            what.finish_piece(piece, place, given)
            spin.begin(length)
    return True
