"""An eager ring: a ring in the sender's segment for short messages to one receiver.

A message is its frame, head and payload in one piece, as a stream would carry it. Control words in
the table, beside those of the bulk ring, describe it::

    taken, sleep     messages this rank has taken, without a gap; 0, or the number of its sleep.
    entries          for each message that this rank has put: stamp, turn, offset, length, and how
                     many bytes of it are present.

The stamp is the message's number, from 1 on. It is stored after the head, so a reader that sees the
stamp also finds the head. The bytes of a long message may follow: a receiver copies some out while
the sender copies others in. The turn is the number of stream messages that come before the message,
so both paths together keep the order of sending. An empty ring starts again at its beginning, so
that messages that are taken one by one stay in the same few cache lines.

The rules for writing and for sleeping are those of bulk rings (`shm/bulk_ring.py`). The idea is
that of the "fastboxes" of MPI libraries (Buntinas, Mercier and Gropp, "Design and evaluation of
Nemesis, a scalable, low-latency, message-passing communication subsystem", 2006).
"""

from __future__ import annotations

from aiodist.alignment import EVERY, SHORT, up
from aiodist.copying import copy
from aiodist.errors import ProtocolError
from aiodist.shm.ring_end import RingEnd

DEPTH = 32
"""Messages in one eager ring that have not been taken."""

MIN_BYTES = 8 << 10
MAX_BYTES = (4 << 20) + 4096
"""The longest ring."""

_TAKEN = 0
_SLEEP = 1
_ENTRIES = 8
_WORDS = 5  # of an entry
LINES_BYTES = 8 * (_ENTRIES + _WORDS * DEPTH)
"""Bytes of the table for one other rank."""


class EagerRingWriter(RingEnd):
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
        super().__init__(rank, segment, mine, theirs)
        self._start = start
        self._nbytes = nbytes
        self._begins = [0] * DEPTH  # by entry, in the ring
        self._end = 0  # of the last message

    def put(self, turn: int, head: bytes, data: memoryview, piece: int) -> bool:
        """Put a message behind message number ``turn`` of the stream. Returns False if there is no
        room now.

        If ``data`` is longer than ``piece``, only the head is stored, and `fill` must follow.
        Raises ProtocolError if the peer's count is impossible.
        """
        count = self._count
        length = len(head) + len(data)
        skipped = -len(head) % EVERY if len(data) > SHORT else 0  # so that the data is aligned
        room = skipped + length
        waiting = count - self._theirs[_TAKEN]
        if waiting:
            at = self._place(waiting, room)
            if at < 0:
                return False
        elif room <= self._nbytes:
            at = 0
        else:
            return False
        self._count = count + 1
        self._begins[count % DEPTH] = at
        self._end = at + up(room)
        begin = self._start + at + skipped
        middle = begin + len(head)
        segment, there = self._segment, len(head)
        segment[begin:middle] = head
        if len(data) <= piece:
            there = length
            copy(segment[middle : begin + length], data)
        mine, entry = self._mine, _ENTRIES + count % DEPTH * _WORDS
        mine[entry + 1] = turn
        mine[entry + 2] = begin
        mine[entry + 3] = length
        mine[entry + 4] = there
        mine[entry] = count + 1
        return True

    @property
    def is_whole(self) -> bool:
        """Whether the last message is completely present."""
        mine, entry = self._mine, _ENTRIES + (self._count - 1) % DEPTH * _WORDS
        return mine[entry + 4] == mine[entry + 3]

    def fill(self, data: memoryview, piece: int) -> bool:
        """Copy the next ``piece`` bytes of the last message in. Returns whether more are missing
        then.

        ``data``: the whole payload of that message.
        """
        mine, entry = self._mine, _ENTRIES + (self._count - 1) % DEPTH * _WORDS
        begin, length, there = mine[entry + 2], mine[entry + 3], mine[entry + 4]
        start = there - length + len(data)
        part = data[start : start + piece]
        end = there + len(part)
        copy(self._segment[begin + there : begin + end], part)
        mine[entry + 4] = end
        return end < length

    def _place(self, waiting: int, length: int) -> int:
        """Return an offset in the ring with room for ``length`` bytes, or -1 if there is no room."""
        count, end = self._count, self._end
        if not 0 < waiting <= DEPTH:
            raise ProtocolError(
                f"rank {self.rank} has taken {count - waiting} messages out of shared memory, of "
                f"{count} that were put there for it"
            )
        if waiting == DEPTH:
            return -1
        oldest = self._begins[(count - waiting) % DEPTH]
        if end > oldest:  # the waiting messages do not wrap around
            if end + length <= self._nbytes:
                return end
            end = 0
        return end if end + length < oldest else -1

    def must_wake(self) -> bool:
        """Return whether the receiver of the last message sleeps and was not woken yet."""
        self._settle()
        sleep = self._theirs[_SLEEP]
        if sleep and sleep != self._told:
            self._told = sleep
            return True
        return False


class EagerRingReader(RingEnd):
    """The receiver's end; ``rank`` sends, and ``segment`` is its whole segment.

    Messages are looked at in order, and taken in any order.
    """

    def __init__(
        self, rank: int, segment: memoryview, mine: memoryview, theirs: memoryview
    ) -> None:
        super().__init__(rank, segment, mine, theirs)
        self.is_asleep = False
        self._taken = 0
        self._ahead: set[int] = set()  # taken, while an earlier one is not
        self._sleeps = 0

    @property
    def words(self) -> memoryview:
        """The control words in which `next_stamp` waits."""
        return self._theirs

    @property
    def has_next(self) -> bool:
        """Whether another message is present."""
        word, stamp = self.next_stamp()
        return self._theirs[word] == stamp

    def next_stamp(self) -> tuple[int, int]:
        """Return the word of the next message's stamp, and its value once the message is present."""
        return _ENTRIES + self._count % DEPTH * _WORDS, self._count + 1

    def there(self) -> int:
        """Return how many bytes of the next message are present. Call it after `next_message`."""
        return self._theirs[_ENTRIES + self._count % DEPTH * _WORDS + 4]

    def next_message(self, turn: int) -> memoryview | None:
        """Return the memory of the next message, head and payload, once its head is present.

        Returns None if the message has not begun, or comes after more than ``turn`` messages of the
        stream. Raises ProtocolError if it lies outside the sender's segment.
        """
        count, theirs = self._count, self._theirs
        entry = _ENTRIES + count % DEPTH * _WORDS
        stamp = theirs[entry]
        if stamp <= count and count - stamp < DEPTH:  # still the entry's previous stamp
            return None
        begin, length = theirs[entry + 2], theirs[entry + 3]
        end = begin + length
        if stamp != count + 1 or not begin < end <= len(self._segment):
            raise ProtocolError(
                f"rank {self.rank} names bytes {begin} to {end} of its shared segment, which has "
                f"only {len(self._segment)} bytes, in message {stamp} instead of {count + 1}"
            )
        return self._segment[begin:end] if theirs[entry + 1] <= turn else None

    def advance(self) -> int:
        """Go on to the message after the next. Returns the number under which the next one can be
        taken.
        """
        number = self._count
        self._count = number + 1
        return number

    def take(self, number: int) -> None:
        """Release that message's place."""
        if number == self._taken:
            number += 1
            ahead = self._ahead
            while number in ahead:
                ahead.remove(number)
                number += 1
            self._taken = self._mine[_TAKEN] = number
        else:
            self._ahead.add(number)

    def arm(self) -> None:
        """Ask to be woken by the next message. The caller must look once more before it sleeps."""
        self.is_asleep = True
        self._sleeps += 1
        self._mine[_SLEEP] = self._sleeps
        self._settle()

    def disarm(self) -> None:
        """Record that this rank polls again, or waits for nothing."""
        if self.is_asleep:
            self.is_asleep = False
            self._mine[_SLEEP] = 0
