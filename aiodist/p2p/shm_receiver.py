"""Receive from one peer of this host through its message ring.

`shm/message_ring.py` has the memory, `p2p/shm_sender.py` the sender's half. A message in the ring
is an eager message that takes no credit: an unexpected one waits in the ring, which bounds the
memory, as an `EagerMessage`.

Both sides count the messages that go over the stream as turns, and each record carries the turn
behind which it was sent. Invariant: a record is delivered after all messages that were sent before
it and before all that were sent later, on either path. A message of the stream counts once its
header has come, because it is matched then.

A long message with a posted receive is copied out while the sender copies it in, as a
`p2p.shm_progress.ProgressSource`. The next record waits for its end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING

from aiodist.alignment import SHORT
from aiodist.copying import copy
from aiodist.errors import ProtocolError
from aiodist.p2p.partial_message import PartialMessage
from aiodist.p2p.spin_policy import NEAR_SECONDS
from aiodist.shm.message_ring import EagerMessage
from aiodist.wire.frames import HEADER_BYTES, MESSAGES, Frame, FrameType, ShortHeaders, decode

if TYPE_CHECKING:
    from aiodist.p2p.inbox import Inbox, Source
    from aiodist.p2p.shm_progress import ShmProgress
    from aiodist.p2p.spin_policy import BoundedSpin
    from aiodist.shm.message_ring import RingReader

MESSAGES_A_LOOK = 64
"""Messages that are delivered before other callbacks of the loop have their turn."""

Broken = Callable[[BaseException], None]


def _copy(ring: RingReader, message: memoryview, start: int, into: memoryview) -> bool:
    """Copy ``message`` from ``start`` on while it arrives. Returns False if no byte came for a
    while.
    """
    end, done, until = len(message), start, 0.0
    while done < end:
        there = ring.there()
        if done < there <= end:
            copy(into[done - start : there - start], message[done:there])
            done, until = there, 0.0
        elif not until:
            until = perf_counter() + NEAR_SECONDS
        elif perf_counter() > until:
            return False
    return True


class ShmReceiver:
    """Take the messages of one peer out of its ring."""

    def __init__(
        self, source: Source, inbox: Inbox, shm_progress: ShmProgress, broken: Broken
    ) -> None:
        """Create a receiver. ``broken(error)`` is called if the peer breaks the protocol."""
        self._source = source
        self._inbox = inbox
        self._shm_progress = shm_progress
        self.broken = broken
        self._turn = 0  # messages that came over the stream
        self._ring: RingReader | None = None
        self._closed = False
        self._incoming: PartialMessage | None = None  # a message of which a part is there
        self._begin = 0  # offset of its payload in the record's frame
        self._engaged = False  # a message is being handled, and the next one has to wait
        self._armed = False
        self.bytes_taken = 0
        self.is_prompt = False
        """Whether the last message came without a sleep: the next one may be a moment away, too."""

    @property
    def ring(self) -> RingReader | None:
        """The peer's ring, or None if the peer shares no memory with this rank or is lost."""
        ring, memory = self._ring, self._shm_progress.memory
        if ring is None and not self._closed and memory is not None:
            self._ring = ring = memory.ring_reader_from(self._source.rank)
            self._closed = ring is None
        return None if ring is None or ring.is_closed else ring

    def drain_before_stream(self) -> None:
        """Deliver the records that were sent before a message that comes over the stream, and count it.

        Raises ProtocolError for malformed data, which ends the stream that is being read.
        """
        while self._incoming is not None:
            if not self._go_on():
                raise ProtocolError(
                    f"rank {self._source.rank} sent another frame in the middle of a message"
                )
        while self._next(wanted=False):
            pass
        self._turn += 1  # records that were sent after it may be delivered
        ring = self.ring
        if ring is not None and (ring.has_next or self.is_busy):
            self._arm()  # a record sent after this one may have woken this rank too early

    def poll(self) -> None:
        """Deliver the records whose turn has come, while a receive waits for them."""
        if self._engaged:  # a callback of one message must not start on the next
            return
        self._engaged = True
        try:
            for _ in range(MESSAGES_A_LOOK):
                if not self._next(wanted=True):
                    break
            else:
                self._arm()
        except ProtocolError as error:
            self.broken(error)
        finally:
            self._engaged = self._incoming is not None
        if self.is_busy:
            self._shm_progress.activate(self)

    def take(self, head: bytes, frame: Frame, into: memoryview, spin: BoundedSpin | None) -> bool:
        """Copy the next message ``into``, if it has the header ``head`` and exactly that many
        bytes.

        Call it only while no earlier message could match the same receive. ``frame``: the decoded
        header. ``spin``: how to poll for a message that is not there yet; None returns at once.
        Returns False on a miss.
        """
        ring = self.ring
        if ring is None or self._engaged:
            return False
        if spin is not None:
            self.is_prompt = spin.finds(ring.words, *ring.next_stamp())
            if not self.is_prompt:
                return False
        try:
            found = ring.next_message(self._turn)
        except ProtocolError:  # the next look raises the error again
            return False
        start = len(head)
        if found is None or len(found) != start + len(into) or found[:start] != head:
            return False
        if not _copy(ring, found, start, into):
            return False
        self._took(ring, frame, frame.length)
        return True

    def take_short(self, heads: ShortHeaders) -> bytes | None:
        """Return the payload of the next message, if it is short and has one of the ``heads``.

        Call it only while no earlier message could match the same receive. Returns None on a miss.
        """
        ring = self.ring
        if ring is None or self._engaged or not ring.has_next:
            return None
        try:
            found = ring.next_message(self._turn)
        except ProtocolError:  # the next look raises the error again
            return None
        if found is None:
            return None
        length = len(found) - HEADER_BYTES
        if not 0 <= length <= SHORT or found[:HEADER_BYTES] != heads.of(length):
            return None
        if ring.there() < len(found):
            return None
        data = bytes(found[HEADER_BYTES:])
        self._took(ring, heads.frame, length)
        self.is_prompt = True
        return data

    def watch(self) -> None:
        """Look for records because a receive waits for the peer, or ask to be woken by the next."""
        ring = self.ring
        if ring is None:
            return
        if ring.has_next:
            self.poll()
        if not self._armed and self._is_wanted():
            self._arm()

    def woken(self) -> None:
        """Look at the ring: the peer put something in and woke this rank."""
        if self._incoming is not None:
            self._shm_progress.activate(self)
        elif self._is_wanted():
            self.poll()
        self.is_prompt = False
        self._sleep_if_waiting()

    def close(self, error: BaseException) -> None:
        """Copy the complete messages out of the ring of a lost peer, whose memory goes soon."""
        with suppress(ProtocolError):
            if self._incoming is not None:
                self._go_on()
        if self._incoming is None:
            try:
                while self._next(wanted=False):
                    pass
            except ProtocolError as broken:
                self.broken(broken)
        self._closed = True
        self._ring = None
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            self._inbox.interrupted(incoming.target, error)
        self._shm_progress.work()  # removes this source, which has nothing to do any more
        self._inbox.empty_ring(self._source.rank)

    # -- p2p.shm_progress.ProgressSource

    @property
    def is_busy(self) -> bool:
        return self._incoming is not None

    def step(self) -> bool:
        try:
            return self._go_on()
        except ProtocolError as error:
            self._closed = True
            self._ring = None
            self.broken(error)
            return False

    def arm(self) -> bool:
        ring, incoming = self.ring, self._incoming
        if ring is None or incoming is None:
            return True
        ring.arm()
        is_new = ring.there() > self._begin + incoming.got
        if is_new:
            ring.disarm()
        return not is_new

    # -- inside

    def _next(self, wanted: bool) -> bool:
        """Deliver the next record. Returns False if it cannot be delivered now.

        With ``wanted``, only while a receive waits, and the rest stays for `take`; an incomplete
        message is begun. Raises ProtocolError.
        """
        ring = self.ring
        if ring is None:
            return False
        try:
            found = ring.next_message(self._turn)
            if found is None or (wanted and not self._is_wanted()):
                return False
            frame, begin = self._read(found)
            if ring.there() == len(found):
                self._deliver(ring, frame, found[begin:])
                return True
            if wanted:
                self._begin_with(frame, begin)
            return False
        except ProtocolError:
            self._closed = True
            self._ring = None
            raise

    def _deliver(self, ring: RingReader, frame: Frame, data: memoryview) -> None:
        record = ring.advance()
        self.bytes_taken += frame.length
        self.is_prompt = True
        self._shm_progress.note_progress()
        self._inbox.eager_message(self._source, frame, EagerMessage(ring, record, data))

    def _begin_with(self, frame: Frame, begin: int) -> None:
        """Copy an incomplete message out while it arrives, if a receive waits for it; else leave it
        there.
        """
        incoming = PartialMessage(frame.length)
        if self._inbox.coming(self._source, frame, incoming):
            self._incoming, self._begin = incoming, begin
            self.is_prompt = True

    def _go_on(self) -> bool:
        """Copy what has come of the incoming message. Returns False if nothing has."""
        ring, incoming = self.ring, self._incoming
        if ring is None or incoming is None:
            return False
        message = ring.next_message(self._turn)
        if message is None or len(message) != self._begin + incoming.length:
            raise ProtocolError(
                f"rank {self._source.rank} withdrew a message that had begun in its ring"
            )
        there = ring.there()
        if there <= self._begin + incoming.got:
            return False
        piece = message[self._begin + incoming.got : there]
        incoming.add(piece)
        self.bytes_taken += len(piece)
        if incoming.is_whole:
            ring.take(*ring.advance())
            self._incoming = None
            self._inbox.eager_done(self._source, incoming.target)
            self._engaged = False
            self.poll()
            self._arm()
        return True

    def _took(self, ring: RingReader, frame: Frame, length: int) -> None:
        """Release the next record, whose payload of ``length`` bytes was copied."""
        ring.take(*ring.advance())
        self.bytes_taken += length
        self._source.last = frame
        if ring.is_asleep and not self._is_wanted():
            ring.disarm()

    def _read(self, found: memoryview) -> tuple[Frame, int]:
        """Return the decoded header of a record and the offset of its payload."""
        frame, begin = decode(found)
        if (
            frame.length != len(found) - begin
            or frame.type != FrameType.EAGER
            or frame.kind not in MESSAGES
        ):
            raise ProtocolError(f"rank {self._source.rank} has put malformed data into its ring")
        return frame, begin

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._shm_progress.call_in_next_turn(self._fall_asleep)

    def _fall_asleep(self) -> None:
        self._armed = False
        self.poll()
        if not self._armed:  # else there is more to look at
            self._sleep_if_waiting()

    def _sleep_if_waiting(self) -> None:
        """Sleep while a receive waits. A rank that was woken for a message is not woken for it
        again.
        """
        ring = self.ring
        if ring is None or self._incoming is not None:  # the progress engine takes care of it
            return
        if not self._is_wanted():
            ring.disarm()
            return
        self.is_prompt = False
        ring.arm()
        self.poll()

    def _is_wanted(self) -> bool:
        return self._inbox.matcher.waits_for(self._source.rank)
