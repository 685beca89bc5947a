"""One operation's turn on the shared-memory communicator: the `collectives.ShmContext` of a collective."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from aiodist.completion import Pending, completed
from aiodist.errors import DistError
from aiodist.groups.shm_words import LAST_STEP, STEP_BITS, Wait, announce, stray
from aiodist.shm.group_area import CHUNK_TAGS, PROGRESS, SLOT_TAGS, SLOTS

if TYPE_CHECKING:
    from aiodist.groups.fingerprint import Words
    from aiodist.groups.shm_communicator import ShmCommunicator

_EVER = (1 << 64) - 1

TURN_SECONDS = 1e-3
"""How long an operation may keep the loop busy before others have their turn."""

NEAR_SECONDS = 200e-6
"""How long to look for another rank's next step before sleeping."""

_HERE = completed(None)
_NOTHING = memoryview(b"")


class OperationStreams(Protocol):
    """What an operation in shared memory needs of its `CollectiveContext`: group ranks, and streams."""

    @property
    def meta_words(self) -> Words:
        """The operation's fingerprint."""
        ...

    def disagreement(self, src: int, words: Words, came: int, expected: int) -> DistError:
        """Return the error for what group rank ``src`` has published: another operation, or length."""
        ...

    def late(self, src: int, sequence: int, words: Words) -> DistError | None:
        """Report that group rank ``src`` had published another operation than this rank's ``sequence``.

        Returns the error that this operation is to fail with; None where it was reported before.
        """
        ...

    def lost(self, src: int, wait: Pending[None]) -> bool:
        """Return whether group rank ``src`` is gone; ``wait`` has failed then."""
        ...

    def listen(self) -> None:
        """Fail with a message for this operation from a rank that is in another one."""
        ...

    def tell(self) -> None:
        """Tell the others over the streams, once, what this rank is in: it has slept for long."""
        ...


class OperationShm:
    """See `collectives.shm_context.ShmContext`."""

    def __init__(
        self, communicator: ShmCommunicator, sequence: int, context: OperationStreams | None = None
    ) -> None:
        """``sequence``: of the operation. ``context``: None while the operation needs to wait for no
        rank, and knows that all ranks that it needs are in it (`take_up`).
        """
        self.rank = communicator.rank
        self.size = communicator.size
        self.chunk_bytes = communicator.shape.chunk_bytes
        self.slot_bytes = communicator.shape.slot_bytes
        self.context = context
        self.communicator = communicator
        self._mine = communicator.mine
        self._words = communicator.words
        self._peers = communicator.peers
        self._chunks = communicator.chunks
        self.depth = communicator.shape.depth
        self.crowded = communicator.shape.crowded
        self.sequence = sequence
        self._base = base = sequence + 1 << STEP_BITS
        self.end = base | LAST_STEP
        self._slot = slot = sequence % SLOTS
        self._tag = SLOT_TAGS[slot]
        self._met = False
        self._told = False
        self._reads = 0  # how many others' slots
        self._chunks_before = communicator.chunks_before(self.end)
        self._since = 0.0
        self._turn_seconds = TURN_SECONDS
        self._wait: Wait | None = None
        if (
            communicator.progress != base - 1
        ):  # some operation before was not this shared-memory context's: it is over
            communicator.advance(base)

    # -- slots

    async def slot(self, nbytes: int) -> memoryview:
        communicator = self.communicator
        needed = communicator.slot_used[self._slot]
        unread = communicator.unread[self._slot]
        for rank, words in enumerate(communicator.words):
            if words[PROGRESS] < needed and rank != self.rank:
                await self._until(rank, PROGRESS, needed, _EVER)
            if unread is not None:
                self._compare(rank, self._slot)
        communicator.unread[self._slot] = None
        return communicator.areas[self.rank].slots[self._slot][:nbytes]

    def publish(self, nbytes: int) -> None:
        communicator, tag = self.communicator, self._tag
        announce(communicator.mine, tag, self._base, self._context.meta_words, nbytes)
        communicator.slot_used[self._slot] = self.end
        communicator.wake(tag)

    async def slot_of(self, rank: int, nbytes: int = -1) -> memoryview:
        communicator, tag = self.communicator, self._tag
        words = communicator.words[rank]
        if words[tag] != self._base:
            await self._until(rank, tag, self._base, self._base)
        self._reads += 1
        self._compare(rank, (self._slot + 1) % SLOTS)
        length = words[tag + 3]
        if (words[tag + 1], words[tag + 2]) != self._context.meta_words or (
            nbytes >= 0 and length != nbytes
        ):
            raise self._disagreement(rank, (words[tag + 1], words[tag + 2]), length, nbytes)
        return communicator.areas[rank].slots[self._slot][:length]

    def expect(self, rank: int, came: int, expected: int) -> None:
        if came != expected:
            raise self._disagreement(rank, self._context.meta_words, came, expected)

    def _disagreement(
        self, rank: int, words: tuple[int, int], came: int, expected: int
    ) -> DistError:
        return self._context.disagreement(self.communicator.seats[rank], words, came, expected)

    def _compare(self, rank: int, slot: int) -> None:
        """Compare what ``rank`` published in a slot that this rank left without reading it.

        Raises CollectiveMismatchError where that was another one.
        """
        unread = self.communicator.unread[slot]
        theirs = None if unread is None else stray(self.communicator.words[rank], *unread)
        if unread is not None and theirs is not None and rank != self.rank:
            error = self._context.late(self.communicator.seats[rank], unread[0], theirs)
            if error is not None:
                self.communicator.unread[slot] = None
                raise error

    def take_back(self) -> None:
        """Remove what this rank published: the ranks disagree, and all are told of it by messages."""
        if self._mine[self._tag] == self._base:
            self._mine[self._tag] = 0

    def close(self) -> None:
        """Give back the memory: the operation is over."""
        if self._reads < self.size - 1:
            self.communicator.unread[self._slot] = self.sequence, self._context.meta_words
        # An error may hold this by its frames, and is not to hold the memory that ranks share.
        self._mine, self._words, self._peers, self._chunks = _NOTHING, [], [], []

    # -- chunks

    async def enter(self) -> None:
        if self._met:
            return
        await self.slot(0)
        self.publish(0)

    def may_begin(self) -> bool:
        if self._met or self.has_begun():
            return False
        for _, words in self._peers:
            if words[PROGRESS] < self._chunks_before:
                return False
        # The others may read it from now on, whatever becomes of this operation here.
        self.communicator.use_chunks(self.end)
        return True

    def has_begun(self) -> bool:
        return self._mine[CHUNK_TAGS[0]] == self._base + 1

    async def wait_for_peers(self, peers: Sequence[int] | None = None) -> None:
        if self._met:
            return
        for rank in range(self.size) if peers is None else peers:
            if rank != self.rank:
                await self.slot_of(rank, 0)
        self.begin_chunks()

    def begin_alone(self, seconds: float, reads: int) -> None:
        """Begin without a context: the slots of so many others have been read, of all that have to be
        there.

        The first turn that others have is after ``seconds``.
        """
        self._turn_seconds = seconds
        self._reads = reads
        self.begin_chunks()

    def begin_chunks(self) -> None:
        self._met = True
        self._since = perf_counter()
        self.communicator.use_chunks(self.end)

    def free(self, step: int) -> Pending[None]:
        depth = self.depth
        needed = self._chunks_before if step < depth else self._base + step - depth + 1
        for rank, words in self._peers:
            if words[PROGRESS] < needed:
                gone = self._until(rank, PROGRESS, needed, _EVER)
                if not gone.done:
                    return gone
        return _HERE

    def chunk(self, rank: int, step: int) -> memoryview:
        return self._chunks[rank][step % self.depth]

    def post(self, step: int, phase: int = 0) -> None:
        tag = CHUNK_TAGS[step % self.depth]
        self._mine[tag] = self._base + 2 * step + 1 + phase
        self.communicator.wake(tag)

    def posted(self, rank: int, step: int, phase: int = 0) -> Pending[None]:
        low, tag = self._base + 2 * step + 1 + phase, CHUNK_TAGS[step % self.depth]
        if low <= self._words[rank][tag] <= self.end:
            return _HERE
        return self._until(rank, tag, low, self.end)

    def release(self, steps: int) -> None:
        self.communicator.advance(self._base + steps)

    def release_all(self) -> None:
        self.communicator.advance(self.end - 1)

    def turn(self) -> Pending[None]:
        now = perf_counter()
        if now - self._since < self._turn_seconds:
            return _HERE
        self._since = now
        return self.communicator.group.next_turn()

    # -- waiting

    def _until(self, rank: int, word: int, low: int, high: int) -> Pending[None]:
        """Return a `Wait` for a word that a look has just found too small."""
        communicator = self.communicator
        words = communicator.words[rank]
        if self._met and communicator.spin_policy.active:
            # All ranks that it needs are in it, so what is missing is mostly a step away.
            end = perf_counter() + NEAR_SECONDS
            times = 0
            while perf_counter() < end:
                communicator.spin_policy.give_way(times)
                times += 1
                if low <= words[word] <= high:
                    return _HERE
        wait = Wait(rank, words, word, low, high)
        if self.context is None:
            self._wait = wait
        else:
            self._sleep_over(wait)
        return wait

    def _sleep_over(self, wait: Wait) -> None:
        communicator = self.communicator
        if not self._context.lost(communicator.seats[wait.rank], wait):
            communicator.wait(wait)

    def take_up(self, context: OperationStreams) -> None:
        """Continue with ``context``: the operation has to wait, for another rank or for its turn.

        Until now it has written and read chunks alone, after an empty slot had been published.
        """
        self.context = context
        self._turn_seconds = TURN_SECONDS
        self.communicator.current = self
        self.communicator.slot_used[self._slot] = self.end
        self.communicator.unread[self._slot] = None
        wait, self._wait = self._wait, None
        if wait is not None:
            self._sleep_over(wait)

    @property
    def _context(self) -> OperationStreams:
        assert self.context is not None  # that of an operation which publishes slots or waits
        return self.context

    def fell_asleep(self) -> None:
        """Listen on the streams while the operation sleeps: what comes for it means that ranks disagree."""
        self._context.listen()

    def tell(self) -> None:
        """Tell the others over the streams, once, what this rank is in: it has slept for long."""
        if not self._told:
            self._told = True
            self._context.tell()
