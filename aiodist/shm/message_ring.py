"""A message ring: a byte ring in the sender's segment, through which frames go to one receiver.

A record in the ring is a frame as a stream would carry it, head and payload in one piece, behind
three words: its length, the unused bytes in front of it, and its turn. The turn is the number of
messages that went to the receiver over the stream before it, so both paths together keep the order
of sending.

The control words stand in the table behind the head of each segment, which has four cache lines for
each other rank of the host. Positions count all bytes of the ring since its beginning; the offset
in the ring is the remainder by its length::

    written           position up to which the sender has stored bytes
    start, nbytes     where the ring is in the sender's segment
    restart           position at which the sender has last begun anew, with an empty ring
    withdrawals       announced messages that the sender has taken back
    taken             position up to which the receiver needs no bytes any more
    sleep             0, or the number of the receiver's current sleep
    read              which announced messages the receiver has read in the sender's memory

Invariants:

- A rank writes only to its own segment. The sender stores a record before it raises ``written``.
- Records follow each other. A length of 0 means that the next record is at the begin of the ring.
- A sender that finds the ring empty goes to the begin, too, unless it is near, so that messages
  that are taken one by one stay in the cache. It stores that position in ``restart`` before it raises
  ``written``. The receiver has read everything then, so no record stands before ``restart``.
- A record may grow: ``written`` covers at least its head, and its payload follows in pieces, which
  the receiver copies out meanwhile. The next record comes after its last byte.
- A rank that is about to sleep stores that first and then looks once more. Its peer stores first
  and then looks whether the rank sleeps. An atomic instruction between the two steps, on both
  sides, keeps the processor from swapping them, so no wake-up is lost.

The idea is that of the "fastboxes" of MPI libraries (Buntinas, Mercier and Gropp, "Design and
evaluation of Nemesis, a scalable, low-latency, message-passing communication subsystem", 2006).
"""

from __future__ import annotations

import threading

from aiodist.alignment import EVERY, SHORT
from aiodist.copying import copy
from aiodist.errors import ProtocolError

MIN_BYTES = 8 << 10
MAX_BYTES = (4 << 20) + 4096
"""The longest ring."""

WRITTEN, START, NBYTES, RESTART, WITHDRAWALS = range(5)
TAKEN, SLEEP, READ = 8, 9, 10
"""The control words by their index."""

_READ_WORDS = 22
_IDS_A_WORD = 32
"""A word of ``read`` has so many ids, one after the other: a bit for each below the number of the first."""

SPREAD = (_READ_WORDS - 1) * _IDS_A_WORD
"""Ids of announced messages that are not further from each other than this have bits of their own."""

LINES_BYTES = 256
"""Bytes of the table for one other rank."""

RECORD_BYTES = 24
"""Bytes of a record in front of its frame and of the unused bytes."""

_ALIGNED = EVERY  # records begin at multiples of this

_NEAR = 16 << 10
"""An empty ring goes on up to this offset, and begins anew beyond it: these bytes stay in the first
cache."""


def _place_of(id: int) -> tuple[int, int, int]:
    """Return the word of ``read`` for a message, the number of that word, and the message's bit."""
    number, bit = divmod(id, _IDS_A_WORD)
    return READ + number % _READ_WORDS, number & 0xFFFFFFFF, 1 << bit


class RingEnd:
    """What both ends have: the control words of this pair of ranks, and the sender's segment."""

    def __init__(
        self, rank: int, segment: memoryview, mine: memoryview, theirs: memoryview
    ) -> None:
        """Create an end. ``rank``: the rank at the other end."""
        self.rank = rank
        self.is_closed = False
        self._segment = segment
        self._mine = mine
        self._theirs = theirs
        self.position = 0
        """Position up to which this end has written, or looked at, records."""
        self._told = 0
        self._fence = threading.Lock()

    def _settle(self) -> None:
        # A memory fence: earlier stores are visible before any later load.
        with self._fence:
            pass

    def close(self) -> None:
        """Release the memory. Idempotent."""
        self.is_closed = True
        for view in (self._segment, self._mine, self._theirs):
            view.release()


class RingWriter(RingEnd):
    """The sender's end; ``rank`` receives. The ring is ``nbytes`` from ``start`` on in the segment."""

    def __init__(
        self,
        rank: int,
        segment: memoryview,
        mine: memoryview,
        theirs: memoryview,
        start: int,
        nbytes: int,
    ) -> None:
        super().__init__(rank, segment[start : start + nbytes], mine, theirs)
        self.start = start
        self.nbytes = nbytes
        self._words = self._segment.cast("Q")
        self._payload = 0  # position of the last record's payload
        self._emptied = 0  # position at which the ring was empty when the sender last began anew
        self._restart = 0  # position at which it then began
        self._withdrawals = 0
        mine[START] = start
        mine[NBYTES] = nbytes

    @property
    def untaken(self) -> int:
        """Return how many bytes the receiver has not taken. Raises ProtocolError if that is impossible."""
        taken = self._theirs[TAKEN]
        untaken = self.position - (self._restart if taken == self._emptied else taken)
        if not 0 <= untaken <= self.nbytes:
            raise ProtocolError(
                f"rank {self.rank} has taken {taken} bytes out of shared memory, of "
                f"{self.position} that were put there for it"
            )
        return untaken

    def put(self, turn: int, head: bytes, data: memoryview, piece: int) -> bool:
        """Put a frame behind message number ``turn`` of the stream. Returns False if there is no room now.

        If ``data`` is longer than ``piece``, only the head is stored, and `fill` must follow.
        Raises ProtocolError if the peer's count is impossible.
        """
        position, nbytes = self.position, self.nbytes
        at, size = position % nbytes, len(data)
        length = len(head) + size
        skipped = -(RECORD_BYTES + len(head)) % EVERY if size > SHORT else 0  # aligns the payload
        record = RECORD_BYTES + skipped + length + _ALIGNED - 1 & -_ALIGNED
        if position == self._theirs[TAKEN]:
            if record > nbytes:
                return False
            if at >= _NEAR or at + record > nbytes:
                self._emptied = position
                position += nbytes - at
                at = 0
                self._restart = self._mine[RESTART] = position
        else:
            rest = nbytes - at if at + record > nbytes else 0  # too short for this record
            if self.untaken + rest + record > nbytes:
                return False
            if rest:
                self._words[at >> 3] = 0
                position += rest
                at = 0
        words, place = self._words, at >> 3
        words[place] = length
        words[place + 1] = skipped
        words[place + 2] = turn
        begin = at + RECORD_BYTES + skipped
        middle = begin + len(head)
        self._segment[begin:middle] = head
        if size <= SHORT:
            self._segment[middle : begin + length] = data
        elif size <= piece:
            copy(self._segment[middle : begin + length], data)
        # Only now: what a signal's handler raises in a call above leaves no record behind.
        self.position = position + record
        if size > SHORT and size > piece:
            self._payload = self._mine[WRITTEN] = position + RECORD_BYTES + skipped + len(head)
        else:
            self._mine[WRITTEN] = self.position
        return True

    @property
    def is_whole(self) -> bool:
        """Whether the last record is completely present."""
        return bool(self._mine[WRITTEN] == self.position)

    def fill(self, data: memoryview, piece: int) -> bool:
        """Copy the next ``piece`` bytes of the last record in. Returns whether more are missing then.

        ``data``: the whole payload of that record.
        """
        written = self._mine[WRITTEN]
        done = written - self._payload
        part = data[done : done + piece]
        at = written % self.nbytes
        copy(self._segment[at : at + len(part)], part)
        is_last = done + len(part) == len(data)
        self._mine[WRITTEN] = self.position if is_last else written + len(part)
        return not is_last

    def must_wake(self) -> bool:
        """Return whether the receiver of the last record sleeps and was not woken yet."""
        self._settle()
        sleep = self._theirs[SLEEP]
        if sleep and sleep != self._told:
            self._told = sleep
            return True
        return False

    def withdraw(self) -> int:
        """Record that an announced message is taken back, before its memory changes. Returns how many
        were.
        """
        self._withdrawals += 1
        self._mine[WITHDRAWALS] = self._withdrawals
        self._settle()
        return self._withdrawals

    def has_read(self, id: int) -> bool:
        """Return whether the receiver has read announced message ``id``."""
        word, number, bit = _place_of(id)
        read = self._theirs[word]
        return read >> _IDS_A_WORD == number and bool(read & bit)

    def close(self) -> None:
        self._words.release()
        super().close()


class RingReader(RingEnd):
    """The receiver's end; ``rank`` sends, and ``segment`` is its whole segment.

    Records are looked at in order, and taken in any order.
    """

    def __init__(
        self, rank: int, segment: memoryview, mine: memoryview, theirs: memoryview
    ) -> None:
        super().__init__(rank, segment, mine, theirs)
        self.is_asleep = False
        self._ring = segment[:0]
        self._words = self._ring
        self._nbytes = 0
        self._frame = 0  # position of the next record's frame, once `next_message` has found it
        self._length = 0  # of that frame
        self._end = 0  # position behind that record
        self._taken = 0
        self._ahead: dict[int, int] = {}  # begin and end of what is taken behind what is not
        self._sleeps = 0

    @property
    def words(self) -> memoryview:
        """The control words of the sender."""
        return self._theirs

    @property
    def has_next(self) -> bool:
        """Whether another record is present."""
        return bool(self._theirs[WRITTEN] != self.position)

    @property
    def withdrawals(self) -> int:
        """How many announced messages the sender has taken back."""
        return self._theirs[WITHDRAWALS]

    def note_read(self, id: int) -> None:
        """Record that announced message ``id`` was read. Compare ``withdrawals`` afterwards."""
        word, number, bit = _place_of(id)
        read = self._mine[word]
        others = read if read >> _IDS_A_WORD == number else number << _IDS_A_WORD
        self._mine[word] = others | bit
        self._settle()

    def next_stamp(self) -> tuple[int, int]:
        """Return the word that changes with the next record, and its least value then."""
        return WRITTEN, self.position + 1

    def there(self) -> int:
        """Return how many bytes of the next frame are present. Call it after `next_message`."""
        written = self._theirs[WRITTEN]
        return self._length if written >= self._end else min(written - self._frame, self._length)

    def next_message(self, turn: int) -> memoryview | None:
        """Return the memory of the next frame, once its head is present.

        Returns None if the frame has not begun, or comes after more than ``turn`` messages of the
        stream. Raises ProtocolError if it lies outside the ring.
        """
        position, theirs = self.position, self._theirs
        written = theirs[WRITTEN]
        if written == position:
            return None
        nbytes = self._nbytes or self._attach()
        restart, words = theirs[RESTART], self._words
        if restart > position:
            position = restart & -_ALIGNED
        at = position % nbytes
        place = at >> 3
        if not words[place]:
            position += nbytes - at
            at = place = 0
        length, skipped = words[place], words[place + 1]
        begin = at + RECORD_BYTES + skipped
        end = begin + length
        if not (begin < end <= nbytes and RECORD_BYTES < written - position <= nbytes):
            raise ProtocolError(
                f"rank {self.rank} names bytes {begin} to {end} of its message ring of {nbytes} "
                f"bytes, of which {written - position} are new"
            )
        if words[place + 2] > turn:
            return None
        self._frame = position + RECORD_BYTES + skipped
        self._length = length
        self._end = position + (RECORD_BYTES + skipped + length + _ALIGNED - 1 & -_ALIGNED)
        return self._ring[begin:end]

    def advance(self) -> tuple[int, int]:
        """Go on to the record after the next. Returns what `take` needs to release the next one."""
        begin, self.position = self.position, self._end
        return begin, self._end

    def take(self, begin: int, end: int) -> None:
        """Release a record's bytes. Arguments: as `advance` returned them."""
        if begin == self._taken:
            ahead = self._ahead
            while end in ahead:
                end = ahead.pop(end)
            self._taken = self._mine[TAKEN] = end
        else:
            self._ahead[begin] = end

    def arm(self) -> None:
        """Ask to be woken by the next record. The caller must look once more before it sleeps."""
        self.is_asleep = True
        self._sleeps += 1
        self._mine[SLEEP] = self._sleeps
        self._settle()

    def disarm(self) -> None:
        """Record that this rank polls again, or waits for nothing.

        The caller must look once more: a record that came before may have made no wake-up.
        """
        if self.is_asleep:
            self.is_asleep = False
            self._mine[SLEEP] = 0
            self._settle()

    def close(self) -> None:
        self._words.release()
        self._ring.release()
        super().close()

    def _attach(self) -> int:
        """Find the ring in the sender's segment. Returns its length."""
        start, nbytes = self._theirs[START], self._theirs[NBYTES]
        if not (MIN_BYTES <= nbytes <= MAX_BYTES and start + nbytes <= len(self._segment)) or (
            start % 8 or nbytes % _ALIGNED
        ):
            raise ProtocolError(
                f"rank {self.rank} names a message ring of {nbytes} bytes from byte {start} on in "
                f"its shared segment, which has only {len(self._segment)} bytes"
            )
        self._ring = self._segment[start : start + nbytes]
        self._words = self._ring.cast("Q")
        self._nbytes = int(nbytes)
        return self._nbytes


class EagerMessage:
    """A message that waits in a ring."""

    __slots__ = ("_begin", "_data", "_end", "_ring")

    def __init__(self, ring: RingReader, record: tuple[int, int], data: memoryview) -> None:
        """``record``: as `RingReader.advance` returned it. ``data``: the payload in it."""
        self._ring = ring
        self._begin, self._end = record
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def open(self) -> memoryview:
        """Return the payload, which is valid until `discard`."""
        return self._data

    def discard(self) -> None:
        """Release the message's place in the ring."""
        self._data.release()
        if not self._ring.is_closed:
            self._ring.take(self._begin, self._end)
