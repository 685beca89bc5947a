"""Read announced messages of a peer of this host out of the sender's memory, with one copy.

A REQUEST says where the message is in the sender's process. The receiver reads it from there
(`shm.process_memory`) and answers RELEASE, and no byte goes through a ring or a stream. MPI
libraries call it cross memory attach (Vienne, "Benefits of Cross Memory Attach for MPI libraries on
HPC clusters", 2014). Here more threads of the receiver take pieces from the message's end meanwhile:
the sender waits, so its core is idle, and there may be others.

Invariants:

- A rank writes to no memory of another rank. So a receive that is cancelled, or fails, stops its
  own threads, and the caller may use its memory again.
- A sender may take a message back at any time, and change it. It first raises the number of messages
  that it has taken back, and then looks whether the receiver has noted this one as read. A receiver
  that has read a whole message notes it, and then looks at that number. With a fence between the two
  steps on both sides, at least one of the ranks sees the other. If the sender does, the message has
  gone. If the number is not that of the last WITHDRAW frame, the receiver waits for the frame, which
  names the message or none.
- A message that was noted is not read again: its sender's program may have its memory back. If its
  receive is cancelled, the next one has it sent, and the sender keeps a copy if it was taken back.
- A sender that gives up, or ends, raises that number too, closes its segment, or says that it leaves.
  So what was read counts if the segment is still there afterwards.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from aiodist.errors import summary_of
from aiodist.shm.process_memory import ProcessMemory
from aiodist.tensors.raw_memory import address_of

if TYPE_CHECKING:
    from aiodist.p2p.inbox import Inbox, Source
    from aiodist.p2p.matching import Arrival, Recv
    from aiodist.p2p.shm_progress import ShmProgress

PIECE_BYTES = 512 << 10
"""Bytes that a thread reads at a time, in some 50 us. A receive that is cancelled waits as long."""

MOST_HELPERS = 3
"""Threads beside the one that receives. With more of them the memory is what is busy."""


class DirectReceiver:
    """Read the messages of one peer."""

    def __init__(self, source: Source, inbox: Inbox, shm_progress: ShmProgress) -> None:
        self.source = source
        self.inbox = inbox
        self.shm_progress = shm_progress
        self.bytes_taken = 0
        self.is_refused = False
        """Whether the system does not allow it: nothing more is read."""
        self._memory: ProcessMemory | None = None
        self._withdrawals = 0  # by the last WITHDRAW frame
        self.uncertain: dict[_DirectReceive, None] = {}
        """Those that have read all, and wait for the next WITHDRAW."""

    def begin(self, recv: Recv, address: int) -> bool:
        """Start to read the message at ``address`` into ``recv``, which names the request.

        Returns False if that cannot be.
        """
        shared, into = self.shm_progress.memory, recv.into
        if self.is_refused or shared is None or self.source.shm_receiver.ring is None or not into:
            return False
        if self._memory is None:
            self._memory = ProcessMemory(shared.pid_of(self.source.rank))
        helpers = self.shm_progress.helpers
        n_helpers = min(helpers.limit, MOST_HELPERS, (len(into) - 1) // PIECE_BYTES)
        copy = _Copy(self._memory, address, into, n_helpers)
        direct = _DirectReceive(self, recv, copy)
        recv.reader = direct  # before any thread reads: it can stop them
        helpers.do(copy.helpers)
        self.shm_progress.activate(direct)
        return True

    def withdrawn(self, number: int) -> None:
        """The sender has taken ``number`` messages back. The receives of all of them were stopped."""
        self._withdrawals = number
        uncertain, self.uncertain = self.uncertain, {}
        for direct in uncertain:
            direct.end()

    def is_not_withdrawn(self) -> bool:
        """Return whether the sender has taken no message back but those that this rank knows of."""
        ring, shared = self.source.shm_receiver.ring, self.shm_progress.memory
        return (
            ring is not None
            and ring.withdrawals == self._withdrawals
            and shared is not None
            and not shared.is_gone(self.source.rank)
        )


class _Copy:
    """The pieces of a message. One thread takes them from its begin, ``helpers`` more from its end."""

    def __init__(self, memory: ProcessMemory, there: int, into: memoryview, n_helpers: int) -> None:
        self._memory = memory
        self._there = there
        self._here = address_of(into)
        self._into = into  # which must live
        self._claim = threading.Lock()
        # A helper holds its lock while it reads a piece.
        self._reading = [threading.Lock() for _ in range(n_helpers)]
        self._begin, self._end = 0, len(into)  # of what is left to be taken
        self.error: OSError | None = None

    def read_first(self) -> bool:
        """Read the first piece that is left. Returns False if none is."""
        return self._read(self._take_first)

    @property
    def helpers(self) -> list[Callable[[], None]]:
        """What each helper is to do: read the last piece, and so on until none is left."""
        return [partial(self._help, reading) for reading in self._reading]

    def stop(self) -> None:
        """Leave no piece to be taken."""
        with self._claim:
            self._begin = self._end

    def wait(self) -> None:
        """Return when no thread reads any more: after one piece at most. No piece is left."""
        struck: BaseException | None = None
        for reading in self._reading:
            waits = True
            while waits:
                try:
                    with reading:
                        waits = False
                except BaseException as error:  # noqa: BLE001  # of a signal's handler: raised below
                    struck = error
        if struck is not None:
            raise struck

    def _help(self, reading: threading.Lock) -> None:
        left = True
        while left:
            with reading:
                try:
                    left = self._read(self._take_last)
                except BaseException:  # noqa: BLE001  # it is in `error`, and the thread is for others, too
                    left = False

    def _take_first(self) -> tuple[int, int]:
        with self._claim:
            begin = self._begin
            self._begin = min(begin + PIECE_BYTES, self._end)
            return begin, self._begin

    def _take_last(self) -> tuple[int, int]:
        with self._claim:
            end = self._end
            self._end = max(end - PIECE_BYTES, self._begin)
            return self._end, end

    def _read(self, take: Callable[[], tuple[int, int]]) -> bool:
        try:
            begin, end = take()
            if begin == end:
                return False
            self._memory.read(self._there + begin, self._here + begin, end - begin)
        except OSError as error:
            self._fail(error)
        except BaseException as error:  # of a signal's handler: the piece may not be there
            self._fail(InterruptedError(f"the copy was cut short by {summary_of(error)}"))
            raise
        return True

    def _fail(self, error: OSError) -> None:
        self.error = error
        self.stop()


class _DirectReceive:
    """A receive whose message is being read: a `p2p.shm_progress.ProgressSource` and a
    `p2p.matching.Reader`.
    """

    def __init__(self, receiver: DirectReceiver, recv: Recv, copy: _Copy) -> None:
        self._receiver = receiver
        self._recv = recv
        self._copy: _Copy | None = copy  # until all pieces were read
        self._is_over = False

    # -- p2p.shm_progress.ProgressSource

    @property
    def is_busy(self) -> bool:
        return self._copy is not None

    def step(self) -> bool:
        copy = self._copy
        if copy is None:
            return False
        if not copy.read_first():
            copy.wait()
            if copy.error is None and self._recv.offer is not None:
                self._recv.offer.address = 0
                if (ring := self._receiver.source.shm_receiver.ring) is not None:
                    ring.note_read(self._recv.send_id)
            self.end(copy.error)
            self._copy = None  # last: what a signal's handler strikes is done once more
        return True

    def arm(self) -> bool:
        return True

    # -- p2p.matching.Reader

    def redirect(self, target: Recv | Arrival | None, destination: memoryview | None) -> None:
        """Stop. Nothing of the message has left its sender, so there is no rest to read."""
        self._is_over = True
        self._receiver.uncertain.pop(self, None)
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.stop()
            copy.wait()

    # -- inside

    def end(self, error: OSError | None = None) -> None:
        """Complete the receive if what was read counts. Have the message sent if it cannot be read."""
        receiver, recv = self._receiver, self._recv
        if self._is_over:
            return
        if isinstance(error, ProcessLookupError):
            return  # the end of the stream tells of it
        if error is not None:
            if isinstance(error, PermissionError) or error.errno == errno.ENOSYS:
                receiver.is_refused = True
            self._is_over = True
            recv.reader = None
            receiver.inbox.grant(receiver.source, recv)
        elif receiver.is_not_withdrawn():
            self._is_over = True
            receiver.bytes_taken += len(recv.into or b"")
            receiver.shm_progress.note_progress()
            receiver.inbox.read_directly(receiver.source, recv)
        else:
            receiver.uncertain[self] = None
