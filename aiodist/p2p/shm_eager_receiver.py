"""Short messages from one other rank of the host, which come through memory and not over a stream.

`shm/eager_ring.py` has the memory, the sender's half is in the outbox. A message in the eager ring is
one like an eager one, but takes no credit: what nobody has asked for waits in the eager ring, which
bounds it, and
`EagerMessage` is the place where it waits. Messages that went over the stream count as turns on both sides,
so a message is looked at when all that were sent before it have come, and before any that was sent later.

A long one that a receive waits for is copied out while it is copied in, as
`p2p.shm_progress.ProgressSource`; the next is looked at after it.
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
"""How long to look for the next bytes of a message that has begun: the sender is copying them."""

Broken = Callable[[BaseException], None]


class EagerMessage:
    """Where a message waits in an eager ring."""

    __slots__ = ("_data", "_eager_ring", "_number")

    def __init__(self, eager_ring: EagerRingReader, number: int, data: memoryview) -> None:
        self._eager_ring = eager_ring
        self._number = number
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def open(self) -> memoryview:
        """The payload; good until `discard`."""
        return self._data

    def discard(self) -> None:
        """It is not needed any more."""
        self._data.release()
        if not self._eager_ring.is_closed:
            self._eager_ring.take(self._number)


def _copy(eager_ring: EagerRingReader, message: memoryview, start: int, into: memoryview) -> bool:
    """Copy what ``message`` has from ``start`` on as it comes. False: for a while nothing came."""
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
    """What one other rank puts into its eager ring for this one."""

    def __init__(
        self, source: Source, inbox: Inbox, shm_progress: ShmProgress, broken: Broken
    ) -> None:
        """``broken(error)`` is called where the other rank does not keep to the protocol."""
        self._source = source
        self._inbox = inbox
        self._shm_progress = shm_progress
        self.broken = broken
        self._turn = 0  # messages that came over the stream
        self._eager_ring: EagerRingReader | None = None
        self._closed = False
        self._incoming: PartialMessage | None = None  # a message of which a part is there
        self._begin = 0  # of its payload, in what the eager ring has of it
        self._engaged = False  # with a message, so that the next one has to wait
        self._armed = False
        self.bytes_taken = 0
        self.is_prompt = False
        """Whether nobody had to sleep for the last message: the next one may be a moment away, too."""

    @property
    def eager_ring(self) -> EagerRingReader | None:
        """None where the other rank shares no memory with this one, or is gone."""
        eager_ring, memory = self._eager_ring, self._shm_progress.memory
        if eager_ring is None and not self._closed and memory is not None:
            self._eager_ring = eager_ring = memory.eager_reader_from(self._source.rank)
            self._closed = eager_ring is None
        return None if eager_ring is None or eager_ring.is_closed else eager_ring

    def overtaken(self) -> None:
        """A message has come over the stream: what was sent before it is looked at before it.

        Raises ProtocolError for what is no message, which ends the stream that is being read.
        """
        while self._incoming is not None:
            if not self.step():
                raise ProtocolError(f"rank {self._source.rank} went on in the middle of a message")
        self._look_at_all(wanted=False)
        self._turn += 1
        eager_ring = self._eager_ring
        if eager_ring is not None and not eager_ring.is_closed and eager_ring.has_next:
            self._arm()  # it was sent after this message, and may have rung in vain

    def poll(self) -> None:
        """Look at what is in the eager ring and whose turn has come, while a receive waits for it."""
        if not self._engaged:  # what one message sets off is not to end in looking at the next
            self._engaged = True
            try:
                self._look(wanted=True)
            finally:
                self._engaged = self._incoming is not None
            if self._incoming is not None:
                self._shm_progress.enlist(self)

    def take(self, head: bytes, frame: Frame, into: memoryview, spin: BoundedSpin | None) -> bool:
        """Copy the next message ``into``, if it has that head and just as many bytes.

        Only where nothing that came before could be meant for the same receive. ``frame``: what the
        head says. ``spin``: how to look for a message that is not there yet; None for not at all.
        """
        eager_ring = self.eager_ring
        if eager_ring is None or self._engaged:
            return False
        if spin is not None:
            self.is_prompt = spin.finds(eager_ring.words, *eager_ring.next_stamp())
            if not self.is_prompt:
                return False
        try:
            found = eager_ring.begun(self._turn)
        except ProtocolError:  # which the next look says as well
            return False
        start = len(head)
        if found is None or len(found) != start + len(into) or found[:start] != head:
            return False
        if not _copy(eager_ring, found, start, into):
            return False
        eager_ring.take(eager_ring.looked())
        self._source.last = frame
        self.bytes_taken += len(into)
        if eager_ring.is_asleep and not self._is_wanted():
            eager_ring.wake()
        return True

    def watch(self) -> None:
        """A receive waits that the other rank could answer: look, and be woken if that is in vain."""
        self.poll()
        if self.eager_ring is not None and self._is_wanted():
            self._arm()

    def rung(self) -> None:
        """Something was put in for this rank, which slept."""
        if self._incoming is None:
            self.poll()
        else:
            self._shm_progress.enlist(self)
        self.is_prompt = False
        self._nap()

    def close(self, error: BaseException) -> None:
        """The other rank is gone, and its memory soon: what has come whole is kept elsewhere."""
        if self._incoming is not None:
            with suppress(ProtocolError):
                self.step()
        self._look(wanted=False)
        self._closed = True
        self._eager_ring = None
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            self._inbox.interrupted(incoming.target, error)
            self._shm_progress.work()  # which notices that there is nothing to be done
        self._inbox.unbox(self._source.rank)

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
        message = eager_ring.begun(self._turn)
        if message is None or len(message) != self._begin + incoming.length:
            raise ProtocolError(
                f"rank {self._source.rank} has taken a message back that had begun in its eager ring"
            )
        there = eager_ring.there()
        if there > len(message):
            raise ProtocolError(
                f"rank {self._source.rank} has put {there} bytes of a message into its eager ring, "
                f"which is {len(message)} long"
            )
        if there <= self._begin + incoming.got:
            return False
        piece = message[self._begin + incoming.got : there]
        incoming.add(piece)
        self.bytes_taken += len(piece)
        if incoming.is_whole:
            eager_ring.take(eager_ring.looked())
            self._incoming = None
            self._inbox.eager_done(self._source, incoming.target)
            self._engaged = False
            self.poll()
            self._arm()
        return True

    def rest(self) -> bool:
        eager_ring, incoming = self.eager_ring, self._incoming
        if eager_ring is None or incoming is None:
            return True
        eager_ring.nap()
        if eager_ring.there() <= self._begin + incoming.got:
            return True
        eager_ring.wake()
        return False

    # -- inside

    def _look(self, wanted: bool) -> None:
        try:
            self._look_at_all(wanted)
        except ProtocolError as error:
            self.broken(error)

    def _look_at_all(self, wanted: bool) -> None:
        """``wanted``: only while a receive waits. What is not looked at can still be taken at once."""
        try:
            while (eager_ring := self.eager_ring) is not None and (
                found := eager_ring.begun(self._turn)
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
        number = eager_ring.looked()
        self.bytes_taken += frame.length
        self.is_prompt = True
        self._shm_progress.hear()
        self._inbox.eager_message(
            self._source, frame, EagerMessage(eager_ring, number, message[begin:])
        )

    def _begin_with(self, message: memoryview) -> None:
        """Copy it out as it comes, if a receive waits for it; without one it is left to come whole."""
        frame, begin = self._read(message)
        incoming = PartialMessage(frame.length)
        if self._inbox.coming(self._source, frame, incoming):
            self._incoming, self._begin = incoming, begin
            self.is_prompt = True

    def _read(self, message: memoryview) -> tuple[Frame, int]:
        """What the head of a message says, and where its payload begins."""
        frame, begin = decode(message)
        if frame.kind not in MESSAGES or frame.length != len(message) - begin:
            raise ProtocolError(
                f"rank {self._source.rank} has put into its eager ring what is no message"
            )
        return frame, begin

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._shm_progress.later(self._fall_asleep)

    def _fall_asleep(self) -> None:
        self._armed = False
        self.poll()
        self._nap()

    def _nap(self) -> None:
        """Sleep while a receive waits; whoever has been woken once is not woken again for it."""
        eager_ring = self.eager_ring
        if (
            eager_ring is None or self._incoming is not None
        ):  # of which the progress engine takes care
            return
        if not self._is_wanted():
            eager_ring.wake()
            return
        self.is_prompt = False
        eager_ring.nap()
        self.poll()

    def _is_wanted(self) -> bool:
        return self._inbox.matcher.waits_for(self._source.rank)
