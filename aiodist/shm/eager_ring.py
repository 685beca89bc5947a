"""An eager ring: a ring in one rank's segment for the short messages that it sends to one other.

A message is its frame, head and payload in one piece, as a stream would carry it. Where it is stands
in words of the table beside those of the bulk ring::

    taken, nap       how many messages this rank has taken out of the other's eager ring, from the first one
                     on without a gap, and whether it sleeps until there is another
    entries          for each message put into this rank's eager ring: stamp, turn, offset, bytes, and how
                     many of these are there

The stamp is the message's number, from 1 on, and written when the head is there. The bytes of a long one
may follow: a receiver who waits for them copies some out while others are copied in. The turn says behind
how many messages that went over the stream it comes, so that the two ways together keep the order in which
the messages were sent. A ring that has been emptied begins anew, so that the same few lines of the cache
serve a row of messages that are taken one by one.

Who writes what, and how a sleeper and whoever has something for him do not miss each other, is as with
bulk rings. The idea is that of the "fastboxes" of MPI libraries (Buntinas, Mercier and Gropp, "Design and
evaluation of Nemesis, a scalable, low-latency, message-passing communication subsystem", 2006).
"""

from __future__ import annotations

from aiodist.alignment import EVERY, SHORT, up
from aiodist.copying import copy
from aiodist.errors import ProtocolError
from aiodist.shm.ring_end import RingEnd

DEPTH = 32
"""Messages of one eager ring that have not been taken."""

MIN_BYTES = 8 << 10
MAX_BYTES = (4 << 20) + 4096
"""Of an eager ring's ring."""

_TAKEN = 0
_NAP = 1
_ENTRIES = 8
_WORDS = 5  # of an entry
LINES_BYTES = 8 * (_ENTRIES + _WORDS * DEPTH)
"""Of the table, for one other rank."""


class EagerRingWriter(RingEnd):
    """The sender's end; ``rank`` receives. The ring: ``nbytes`` from ``start`` on in the segment."""

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
        """Put a message in, behind ``turn`` of the stream's; False where there is no room now.

        Of data longer than ``piece`` only the head: `fill` is to follow. Raises ProtocolError where
        the other end counts nonsense.
        """
        count = self._count
        length = len(head) + len(data)
        skipped = -len(head) % EVERY if len(data) > SHORT else 0  # so that the data begins well
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
        """Whether all of the message put in last is there."""
        mine, entry = self._mine, _ENTRIES + (self._count - 1) % DEPTH * _WORDS
        return mine[entry + 4] == mine[entry + 3]

    def fill(self, data: memoryview, piece: int) -> bool:
        """Copy the next ``piece`` bytes in of the message put in last; whether more are missing then.

        ``data``: all of its data.
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
        """Where in the ring there is room for ``length`` bytes beside what waits; -1: nowhere."""
        count, end = self._count, self._end
        if not 0 < waiting <= DEPTH:
            raise ProtocolError(
                f"rank {self.rank} has taken {count - waiting} messages out of shared memory, of "
                f"{count} that were put there for it"
            )
        if waiting == DEPTH:
            return -1
        oldest = self._begins[(count - waiting) % DEPTH]
        if end > oldest:  # what waits is in one piece
            if end + length <= self._nbytes:
                return end
            end = 0
        return end if end + length < oldest else -1

    def must_ring(self) -> bool:
        """Whether the receiver, for whom something was put in, sleeps and was not rung for yet."""
        self._settle()
        nap = self._theirs[_NAP]
        if nap and nap != self._told:
            self._told = nap
            return True
        return False


class EagerRingReader(RingEnd):
    """The receiver's end; ``rank`` sends, and ``segment`` is all of its segment.

    Messages are looked at in order, and taken in any.
    """

    def __init__(
        self, rank: int, segment: memoryview, mine: memoryview, theirs: memoryview
    ) -> None:
        super().__init__(rank, segment, mine, theirs)
        self.is_asleep = False
        self._taken = 0
        self._ahead: set[int] = set()  # taken, while an earlier one is not
        self._naps = 0

    @property
    def words(self) -> memoryview:
        """Where stamps of messages are to be waited for."""
        return self._theirs

    @property
    def has_next(self) -> bool:
        """Whether another message is there."""
        word, stamp = self.next_stamp()
        return self._theirs[word] == stamp

    def next_stamp(self) -> tuple[int, int]:
        """The word of the next message's stamp, and what it says once the message is there."""
        return _ENTRIES + self._count % DEPTH * _WORDS, self._count + 1

    def there(self) -> int:
        """How many bytes of the next message are there, which has `begun`."""
        return self._theirs[_ENTRIES + self._count % DEPTH * _WORDS + 4]

    def begun(self, turn: int) -> memoryview | None:
        """Where the next message will be, head and all, of which the head is there.

        None where it has not begun, or comes behind more than ``turn`` messages of the stream.
        Raises ProtocolError for what is outside the sender's segment.
        """
        count, theirs = self._count, self._theirs
        entry = _ENTRIES + count % DEPTH * _WORDS
        stamp = theirs[entry]
        if stamp <= count and count - stamp < DEPTH:  # the stamp of the one before in this place
            return None
        begin, length = theirs[entry + 2], theirs[entry + 3]
        end = begin + length
        if stamp != count + 1 or not begin < end <= len(self._segment):
            raise ProtocolError(
                f"rank {self.rank} speaks of bytes {begin} to {end} of its shared memory, which has "
                f"{len(self._segment)}, in message {stamp}; number {count + 1} is the next"
            )
        return self._segment[begin:end] if theirs[entry + 1] <= turn else None

    def looked(self) -> int:
        """The next message has been looked at, and waits to be taken under the number returned."""
        number = self._count
        self._count = number + 1
        return number

    def take(self, number: int) -> None:
        """That message is not needed any more."""
        if number == self._taken:
            number += 1
            ahead = self._ahead
            while number in ahead:
                ahead.remove(number)
                number += 1
            self._taken = self._mine[_TAKEN] = number
        else:
            self._ahead.add(number)

    def nap(self) -> None:
        """Ask to be woken by the next message; look once more before sleeping."""
        self.is_asleep = True
        self._naps += 1
        self._mine[_NAP] = self._naps
        self._settle()

    def wake(self) -> None:
        """This rank looks by itself now, or waits for nothing."""
        if self.is_asleep:
            self.is_asleep = False
            self._mine[_NAP] = 0
