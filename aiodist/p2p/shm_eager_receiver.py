"""Receive short messages from one peer of this host through its eager ring.

`shm/eager_ring.py` has the memory, `p2p/shm_eager_sender.py` the sender's half. A message in the
ring is an eager message that takes no credit: an unexpected one waits in the ring, which bounds the
memory, as an `EagerMessage`.

Both sides count the messages that go over the stream as turns, and each ring message carries the
turn behind which it was sent. Invariant: a ring message is delivered after all messages that were
sent before it and before all that were sent later, on either path.

A long message with a posted receive is copied out while the sender copies it in, as a
`p2p.shm_progress.ProgressSource`. The next message waits for its end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING

from aiodist.copying import copy
from aiodist.errors import ProtocolError
from aiodist.p2p.partial_message import PartialMessage
from aiodist.wire.frames import MESSAGES, Frame, decode

if TYPE_CHECKING:
    from aiodist.p2p.inbox import Inbox, Source
    from aiodist.p2p.shm_progress import ShmProgress
    from aiodist.p2p.spin_policy import BoundedSpin
    from aiodist.shm.eager_ring import EagerRingReader

NEAR_SECONDS = 200e-6
"""Seconds to poll for the next bytes of a message that has begun: the sender is copying them."""

Broken = Callable[[BaseException], None]


class EagerMessage:
    """A message that waits in an eager ring."""

    __slots__ = ("_data", "_eager_ring", "_number")

    def __init__(self, eager_ring: EagerRingReader, number: int, data: memoryview) -> None:
        self._eager_ring = eager_ring
        self._number = number
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def open(self) -> memoryview:
        """Return the payload, which is valid until `discard`."""
        return self._data

    def discard(self) -> None:
        """Release the message's place in the ring."""
        self._data.release()
        if not self._eager_ring.is_closed:
            self._eager_ring.take(self._number)


def _copy(eager_ring: EagerRingReader, message: memoryview, start: int, into: memoryview) -> bool:
    """Copy ``message`` from ``start`` on while it arrives. Returns False if no byte came for a
    while.
    """
    end, done, until = len(message), start, 0.0
    while done < end:
        there = eager_ring.there()
        if done < there <= end:
            copy(into[done - start : there - start], message[done:there])
            done, until = there, 0.0
        elif not until:
            until = perf_counter() + NEAR_SECONDS
        elif perf_counter() > until:
            return False
    return True


class ShmEagerReceiver:
    """Take the messages of one peer out of its eager ring."""

    def __init__(
        self, source: Source, inbox: Inbox, shm_progress: ShmProgress, broken: Broken
    ) -> None:
        """Create a receiver. ``broken(error)`` is called if the peer breaks the protocol."""
        self._source = source
        self._inbox = inbox
        self._shm_progress = shm_progress
        self.broken = broken
        self._turn = 0  # messages that came over the stream
        self._eager_ring: EagerRingReader | None = None
        self._closed = False
        self._incoming: PartialMessage | None = None  # a message of which a part is there
        self._begin = 0  # offset of its payload in the ring's bytes
        self._engaged = False  # a message is being handled, and the next one has to wait
        self._armed = False
        self.bytes_taken = 0
        self.is_prompt = False
        """Whether the last message came without a sleep: the next one may be a moment away, too."""

    @property
    def eager_ring(self) -> EagerRingReader | None:
        """The peer's ring, or None if the peer shares no memory with this rank or is lost."""
        eager_ring, memory = self._eager_ring, self._shm_progress.memory
        if eager_ring is None and not self._closed and memory is not None:
            self._eager_ring = eager_ring = memory.eager_reader_from(self._source.rank)
            self._closed = eager_ring is None
        return None if eager_ring is None or eager_ring.is_closed else eager_ring

    def overtaken(self) -> None:
        """Deliver the ring messages that were sent before a message that has just come over the
        stream.

        Raises ProtocolError for malformed data, which ends the stream that is being read.
        """
        while self._incoming is not None:
            if not self.step():
                raise ProtocolError(
                    f"rank {self._source.rank} sent another frame in the middle of a message"
                )
        self._look_at_all(wanted=False)
        self._turn += 1
        eager_ring = self._eager_ring
        if eager_ring is not None and not eager_ring.is_closed and eager_ring.has_next:
            self._arm()  # a ring message sent after this one may have woken this rank too early

    def poll(self) -> None:
        """Deliver the ring messages whose turn has come, while a receive waits for them."""
        if not self._engaged:  # a callback of one message must not start on the next
            self._engaged = True
            try:
                self._look(wanted=True)
            finally:
                self._engaged = self._incoming is not None
            if self._incoming is not None:
                self._shm_progress.enlist(self)

    def take(self, head: bytes, frame: Frame, into: memoryview, spin: BoundedSpin | None) -> bool:
        """Copy the next message ``into``, if it has the header ``head`` and exactly that many
        bytes.

        Call it only while no earlier message could match the same receive. ``frame``: the decoded
        header. ``spin``: how to poll for a message that is not there yet; None returns at once.
        Returns False on a miss.
        """
        eager_ring = self.eager_ring
        if eager_ring is None or self._engaged:
            return False
        if spin is not None:
            self.is_prompt = spin.finds(eager_ring.words, *eager_ring.next_stamp())
            if not self.is_prompt:
                return False
        try:
            found = eager_ring.next_message(self._turn)
        except ProtocolError:  # the next look raises the error again
            return False
        start = len(head)
        if found is None or len(found) != start + len(into) or found[:start] != head:
            return False
        if not _copy(eager_ring, found, start, into):
            return False
        eager_ring.take(eager_ring.advance())
        self._source.last = frame
        self.bytes_taken += len(into)
        if eager_ring.is_asleep and not self._is_wanted():
            eager_ring.disarm()
        return True

    def watch(self) -> None:
        """Look for messages because a receive waits for the peer; ask to be woken if there are
        none.
        """
        self.poll()
        if self.eager_ring is not None and self._is_wanted():
            self._arm()

    def woken(self) -> None:
        """Look at the ring: the peer put a message in and woke this rank."""
        if self._incoming is None:
            self.poll()
        else:
            self._shm_progress.enlist(self)
        self.is_prompt = False
        self._sleep_if_waiting()

    def close(self, error: BaseException) -> None:
        """Copy the complete messages out of the ring of a lost peer, whose memory goes soon."""
        if self._incoming is not None:
            with suppress(ProtocolError):
                self.step()
        self._look(wanted=False)
        self._closed = True
        self._eager_ring = None
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            self._inbox.interrupted(incoming.target, error)
            self._shm_progress.work()  # removes this source, which has nothing to do any more
        self._inbox.empty_eager_ring(self._source.rank)

    # -- p2p.shm_progress.ProgressSource

    owes = False

    @property
    def is_busy(self) -> bool:
        return self._incoming is not None

    is_near = is_busy

    def step(self) -> bool:
        eager_ring, incoming = self.eager_ring, self._incoming
        if eager_ring is None or incoming is None:
            return False
        message = eager_ring.next_message(self._turn)
        if message is None or len(message) != self._begin + incoming.length:
            raise ProtocolError(
                f"rank {self._source.rank} withdrew a message that had begun in its eager ring"
            )
        there = eager_ring.there()
        if there > len(message):
            raise ProtocolError(
                f"rank {self._source.rank} has put {there} bytes of a message into its eager ring, "
                f"but the message has only {len(message)}"
            )
        if there <= self._begin + incoming.got:
            return False
        piece = message[self._begin + incoming.got : there]
        incoming.add(piece)
        self.bytes_taken += len(piece)
        if incoming.is_whole:
            eager_ring.take(eager_ring.advance())
            self._incoming = None
            self._inbox.eager_done(self._source, incoming.target)
            self._engaged = False
            self.poll()
            self._arm()
        return True

    def arm(self) -> bool:
        eager_ring, incoming = self.eager_ring, self._incoming
        if eager_ring is None or incoming is None:
            return True
        eager_ring.arm()
        if eager_ring.there() <= self._begin + incoming.got:
            return True
        eager_ring.disarm()
        return False

    # -- inside

    def _look(self, wanted: bool) -> None:
        try:
            self._look_at_all(wanted)
        except ProtocolError as error:
            self.broken(error)

    def _look_at_all(self, wanted: bool) -> None:
        """Deliver messages in order; with ``wanted``, only while a receive waits. The rest stays
        for `take`.
        """
        try:
            while (eager_ring := self.eager_ring) is not None and (
                found := eager_ring.next_message(self._turn)
            ) is not None:
                if wanted and not self._is_wanted():
                    break
                if eager_ring.there() == len(found):
                    self._look_at(eager_ring, found)
                    continue
                if wanted:
                    self._begin_with(found)
                break
        except ProtocolError:
            self._closed = True
            self._eager_ring = None
            raise

    def _look_at(self, eager_ring: EagerRingReader, message: memoryview) -> None:
        frame, begin = self._read(message)
        number = eager_ring.advance()
        self.bytes_taken += frame.length
        self.is_prompt = True
        self._shm_progress.note_progress()
        self._inbox.eager_message(
            self._source, frame, EagerMessage(eager_ring, number, message[begin:])
        )

    def _begin_with(self, message: memoryview) -> None:
        """Copy an incomplete message out while it arrives, if a receive waits for it; else leave it
        there.
        """
        frame, begin = self._read(message)
        incoming = PartialMessage(frame.length)
        if self._inbox.coming(self._source, frame, incoming):
            self._incoming, self._begin = incoming, begin
            self.is_prompt = True

    def _read(self, message: memoryview) -> tuple[Frame, int]:
        """Return the decoded header of a message and the offset of its payload."""
        frame, begin = decode(message)
        if frame.kind not in MESSAGES or frame.length != len(message) - begin:
            raise ProtocolError(
                f"rank {self._source.rank} has put malformed data into its eager ring"
            )
        return frame, begin

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._shm_progress.call_in_next_turn(self._fall_asleep)

    def _fall_asleep(self) -> None:
        self._armed = False
        self.poll()
        self._sleep_if_waiting()

    def _sleep_if_waiting(self) -> None:
        """Sleep while a receive waits. A rank that was woken for a message is not woken for it
        again.
        """
        eager_ring = self.eager_ring
        if eager_ring is None or self._incoming is not None:  # the progress engine takes care of it
            return
        if not self._is_wanted():
            eager_ring.disarm()
            return
        self.is_prompt = False
        eager_ring.arm()
        self.poll()

    def _is_wanted(self) -> bool:
        return self._inbox.matcher.waits_for(self._source.rank)
