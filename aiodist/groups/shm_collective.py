"""One collective in shared memory: an object that holds where it stands, and is advanced step by step.

The caller's thread advances it first, before a context, a record and a coroutine are made for it, and looks
for the others for a bounded time. Mostly that is to its end. If it has to wait, it gets a context, and the
communicator advances the same object from the same step when it is woken.

States, in order; ``n`` is the operation's number:

1. *unpublished*: the own slot may still be read by a peer in operation n-2.
2. *reading*: the slot is published; the others' slots are read one after the other.
3. *met*: all slots that matter are read. The steps in chunks follow, if any (`ScheduleRun`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from aiodist.collectives.schedule import ScheduleRun
from aiodist.collectives.shm_exchange import Exchange, T, UnexpectedLength
from aiodist.completion import Pending, completed
from aiodist.errors import DistError
from aiodist.groups.shm_words import LAST_STEP, STEP_BITS, Wait, stray
from aiodist.p2p.spin_policy import DRIVE_SECONDS, TURN_SECONDS
from aiodist.shm.group_area import ASLEEP, CHUNK_TAGS, COPIED, PROGRESS, SLOT_TAGS, SLOTS

if TYPE_CHECKING:
    from aiodist.groups.fingerprint import Words
    from aiodist.groups.shm_communicator import ShmCommunicator

caller_overlaps: ContextVar[bool] = ContextVar("aiodist_caller_overlaps", default=False)
"""Whether the caller has something else to do meanwhile: then it is no longer than for others."""

_EVER = (1 << 64) - 1
_UNPUBLISHED, _MET = -1, 1 << 30
"""States; a number between them counts the slots that are read."""

_HERE = completed(None)
_NOTHING = memoryview(b"")


class OperationStreams(Protocol):
    """What an operation in shared memory needs of its `CollectiveContext`: group ranks, and streams."""

    def disagreement(self, src: int, words: Words, came: int, expected: int) -> DistError:
        """Return the error for what group rank ``src`` has published: another operation, or length."""

    def late_mismatch(self, sequence: int, src: int, words: Words) -> DistError | None:
        """Report that group rank ``src`` had published another operation than this rank's ``sequence``.

        Returns the error that this operation is to fail with; None where it was reported before.
        """

    def lost(self, src: int, wait: Pending[None]) -> bool:
        """Return whether group rank ``src`` is gone; ``wait`` has failed then."""

    def listen(self) -> None:
        """Fail with a message for this operation from a rank that is in another one."""


class ShmCollective:
    """One operation that has the communicator to itself; see `collectives.shm_exchange.ShmContext`.

    Without a ``context`` it waits for no rank and reports nothing: it then returns from `advance`, and
    repeats the step when it has one.
    """

    __slots__ = (
        "_at",
        "_base",
        "_chunks",
        "_chunks_before",
        "_end",
        "_exchange",
        "_given",
        "_has_published",
        "_mine",
        "_peers",
        "_run",
        "_seen",
        "_since",
        "_turn_seconds",
        "_wait",
        "_words",
        "communicator",
        "context",
        "depth",
        "first",
        "meta",
        "sequence",
    )

    _chunks: Sequence[Sequence[memoryview]]
    _exchange: Exchange[Any]
    _given: Any
    _peers: Sequence[tuple[int, memoryview]]
    _words: Sequence[memoryview]

    def __init__(self, communicator: ShmCommunicator) -> None:
        self.communicator = communicator
        self.context: OperationStreams | None = None
        self.first = 0
        self._has_published = False
        self._run: ScheduleRun | None = None
        self._seen = 0  # how many others' slots have been read
        self._wait: Wait | None = None

    def begin_with(self, sequence: int, meta: Words, context: OperationStreams) -> None:
        """Make it the operation ``sequence`` of ``context``, which will `run` it.

        ``meta``: its fingerprint.
        """
        self.sequence, self.meta, self.context = sequence, meta, context
        self._base = sequence + 1 << STEP_BITS
        self._turn_seconds = TURN_SECONDS
        # Operations before this one that did not enter the shared memory are over.
        self.communicator.advance(self._base - 1)

    @property
    def end(self) -> int:
        """The progress that its end makes."""
        return self._base | LAST_STEP

    def advance(self) -> Pending[None] | None:
        """Go as far as possible. Returns what it waits for: call again when that is done. None: the end.

        Raises CollectiveMismatchError, and what reducing and copying raise.
        """
        if self._at == _MET:
            return self._advance_steps()
        return self.exchange(self.sequence, self.meta, self._exchange, self._given, self._at)

    # -- the exchange of slots

    def exchange(
        self, sequence: int, meta: Words, exchange: Exchange[T], given: T, at: int = _UNPUBLISHED
    ) -> Pending[None] | None:
        """Be the operation ``sequence`` and `advance`. ``meta``: its fingerprint. ``at``: its state."""
        communicator, looks = self.communicator, self.context is None
        base = sequence + 1 << STEP_BITS
        slot, nbytes = sequence % SLOTS, exchange.nbytes
        tag, slots, unread = SLOT_TAGS[slot], communicator.slots[slot], communicator.unread
        self.sequence, self.meta, self._base = sequence, meta, base
        has_all = False
        if at < 0:
            # Invariant: a peer in operation n-1 no longer reads the slot of operation n-2. So the slot may
            # be overwritten if this rank has seen all others in n-1, or once they have left operation n-2.
            if nbytes >= 0 and communicator.met != sequence - 1:
                waiting = self._slot_in_use(slot, exchange.spin_bytes)
                if waiting is not None:
                    return self._stay(at, exchange, given, waiting)
            # Invariant: a rank that published without reading all others compares what they publish until
            # all of them have left that operation, and before its own part is overwritten. So of two ranks
            # that disagreed, at least one sees the other's.
            if unread[slot] is not None and not self._agreed(slot):
                return self._stay(at, exchange, given, _HERE)
            if nbytes >= 0:
                mine = slots[communicator.rank]
                if exchange.pieces and not communicator.spin_policy.oversubscribed:
                    # Where ranks take turns on a core, a rank that finds anything shall find all of it.
                    for piece in exchange.pieces:
                        exchange.fill_piece(piece, mine, given)
                        announce(communicator.mine, tag, base, meta, nbytes, piece.stop)
                elif nbytes:
                    exchange.fill(mine, given)
                    if exchange.pieces:
                        announce(communicator.mine, tag, base, meta, nbytes, nbytes)
                announce(communicator.mine, tag, base, meta, nbytes)
                communicator.slot_used[slot] = base | LAST_STEP
                # Invariant: the flag is up before sleepers are looked for.
                for _, words in communicator.peers:
                    if words[ASLEEP]:
                        communicator.wake(tag)
                        break
                if exchange.begins_early:
                    # Invariant: no rank reads a chunk before it has seen its owner in the operation.
                    self._schedule(slots, exchange, given).begin()
            elif exchange.pieces and looks:
                has_all = self._follow(slot, exchange, given)
                looks = False
            at = 0
        low, high = meta
        reads, words_of, spin = exchange.reads, communicator.words, None
        for rank, length in reads[at:] if at else reads if not has_all else ():
            words = words_of[rank]
            if words[tag] != base:
                if looks:
                    spin = spin or communicator.spin.begin(exchange.spin_bytes)
                if spin is None or not spin.found_within(words, tag, base, base):
                    return self._stay(at, exchange, given, self._wait_for(rank, tag, base, base))
            # Invariant: a slot is used after its fingerprint has been compared.
            if (
                words[tag + 1] != low
                or words[tag + 2] != high
                or (length >= 0 and words[tag + 3] != length)
            ):
                theirs = words[tag + 1], words[tag + 2]
                waiting = self._disagrees(rank, theirs, words[tag + 3], length)
                return self._stay(at, exchange, given, waiting)
            at += 1
        knows_all = exchange.knows_all
        if knows_all and unread[slot - 1] is not None and not self._agreed((slot + 1) % SLOTS):
            return self._stay(at, exchange, given, _HERE)
        has_more = False
        if not has_all:
            try:
                has_more = exchange.finish(slot, slots, given)
            except UnexpectedLength as error:
                waiting = self._disagrees(error.rank, meta, error.came, error.expected)
                return self._stay(at, exchange, given, waiting)
        if has_more or not looks:
            self._at = _MET
            self._seen += len(reads)
            if has_more:
                if self._run is None:
                    self._schedule(slots, exchange, given)
                self._begin_chunks()
            return self._advance_steps()
        # As in `close`, for the many that end here.
        if knows_all:
            communicator.met = sequence
        elif nbytes >= 0:
            unread[slot] = sequence, meta
        communicator.advance(base | LAST_STEP)
        return None

    def _stay(
        self, at: int, exchange: Exchange[T], given: T, waiting: Pending[None]
    ) -> Pending[None]:
        """Note where it stands, and return what it waits for there."""
        self._at, self._exchange, self._given = at, exchange, given
        return waiting

    def _slot_in_use(self, slot: int, spin_bytes: int) -> Pending[None] | None:
        """Return a `Pending` until one more peer has left what this rank has published in ``slot``."""
        communicator = self.communicator
        needed, spin = communicator.slot_used[slot], None
        for rank, words in communicator.peers:
            if words[PROGRESS] < needed:
                if self.context is None:
                    spin = spin or communicator.spin.begin(spin_bytes)
                if spin is None or not spin.finds(words, PROGRESS, needed):
                    return self._wait_for(rank, PROGRESS, needed, _EVER)
        return None

    def _agreed(self, slot: int) -> bool:
        """Compare what the others published in a slot that this rank left without reading it.

        Forgets the operation once all others have left it. Returns False if one was in another operation
        and there is no context to report it. Raises CollectiveMismatchError unless that was reported
        before.
        """
        communicator = self.communicator
        unread = communicator.unread[slot]
        assert unread is not None
        end, is_over = (unread[0] + 1 << STEP_BITS) | LAST_STEP, True
        for rank, words in communicator.peers:
            # Invariant: a peer that has left the operation has published before what it publishes there.
            is_over = is_over and words[PROGRESS] >= end
            theirs = stray(words, *unread)
            if theirs is not None:
                if self.context is None:
                    return False
                error = self.context.late_mismatch(
                    unread[0], communicator.group_ranks[rank], theirs
                )
                if error is not None:
                    communicator.unread[slot] = None
                    raise error
        if is_over:
            communicator.unread[slot] = None
        return True

    def _follow(self, slot: int, exchange: Exchange[T], given: T) -> bool:
        """Take what the one other rank has begun to publish, as it comes.

        Returns whether all of it came in time, and is what this rank expects. If not, it waits for the
        slot's tag as if it had taken nothing.
        """
        communicator = self.communicator
        base, tag = self._base, SLOT_TAGS[slot]
        for rank, length in exchange.reads:
            words = communicator.words[rank]
            spin = communicator.spin.begin(exchange.spin_bytes)
            place = communicator.slots[slot][rank]
            for piece in exchange.pieces:
                if not spin.found_within(words, tag + COPIED, base + piece.stop, base + length):
                    return False
                if (words[tag + 1], words[tag + 2]) != self.meta or words[tag + 3] != length:
                    return False
                exchange.finish_piece(piece, place, given)
                spin.begin(length)
        return True

    def _disagrees(self, rank: int, words: Words, came: int, expected: int) -> Pending[None]:
        """Raise CollectiveMismatchError; without a context, come back for it when there is one."""
        if self.context is None:
            return _HERE
        raise self.context.disagreement(self.communicator.group_ranks[rank], words, came, expected)

    def take_back(self) -> None:
        """Remove what this rank published: the ranks disagree, and all are told of it by messages."""
        mine, tag = self.communicator.mine, SLOT_TAGS[self.sequence % SLOTS]
        if len(mine) and mine[tag] == self._base:
            mine[tag] = 0

    def close(self) -> None:
        """Give back the memory: the operation is over, well or badly."""
        communicator = self.communicator
        if self._seen == communicator.size - 1:
            communicator.met = self.sequence
        elif communicator.slot_used[self.sequence % SLOTS] == self.end:  # it has published there
            communicator.unread[self.sequence % SLOTS] = self.sequence, self.meta
        self._seen = 0
        self._given = None
        if self._run is not None:
            self._run.drop()
            self._run = None
            # An error may hold this by its frames, and is not to hold the memory that ranks share.
            self._mine, self._words, self._peers, self._chunks = _NOTHING, (), (), ()

    # -- with a context

    def take_up(self, context: OperationStreams) -> None:
        """Continue with ``context``: the operation has to wait, or to report a disagreement."""
        self.context = context
        self._turn_seconds = TURN_SECONDS
        self.communicator.current = self
        wait, self._wait = self._wait, None
        if wait is not None:
            self._sleep_over(wait)

    async def run(self, exchange: Exchange[T], given: T) -> None:
        """See `ShmContext.run`."""
        self._exchange, self._given = exchange, given
        self._at = 0 if self._has_published else _UNPUBLISHED
        self._has_published = self._has_published or exchange.nbytes >= 0
        if self._run is not None:
            self.first += self._run.released
            self._run = None
        await self.run_to_end(_HERE)

    async def run_to_end(self, waiting: Pending[None] | None, owner: object = None) -> None:
        """Advance it to its end, when ``waiting`` is done. ``owner``: of its memory, held until then."""
        try:
            while waiting is not None:
                await waiting
                waiting = self.advance()
        except BaseException:
            if self._run is not None:
                self._run.drop()
            raise
        finally:
            self._given = None
        del owner

    def fell_asleep(self) -> None:
        """Listen on the streams while the operation sleeps: what comes for it means that ranks disagree."""
        assert self.context is not None
        self.context.listen()

    # -- collectives.shm_layout.ShmLayout

    @property
    def rank(self) -> int:
        return self.communicator.rank

    @property
    def size(self) -> int:
        return self.communicator.size

    @property
    def slot_bytes(self) -> int:
        return self.communicator.shape.slot_bytes

    @property
    def chunk_bytes(self) -> int:
        return self.communicator.shape.chunk_bytes

    @property
    def oversubscribed(self) -> bool:
        return self.communicator.shape.oversubscribed

    def chunk(self, rank: int, step: int) -> memoryview:
        return self._chunks[rank][(self.first + step) % self.depth]

    # -- collectives.shm_layout.ChunkWords

    def _schedule(
        self, slots: Sequence[memoryview], exchange: Exchange[T], given: T
    ) -> ScheduleRun:
        """Make the schedule of steps in chunks."""
        communicator = self.communicator
        self._mine, self._words = communicator.mine, communicator.words
        self._peers, self._chunks = communicator.peers, communicator.chunks
        self._end, self.depth = self.end, communicator.shape.depth
        if not self.first:
            self._chunks_before = communicator.chunks_before(self._end)
        self._run = run = ScheduleRun(self, exchange.schedule(self, slots, given))
        return run

    def _begin_chunks(self) -> None:
        self._since = perf_counter()
        if self.context is None:
            self._turn_seconds = TURN_SECONDS if caller_overlaps.get() else DRIVE_SECONDS
        self.communicator.use_chunks(self._end)

    def _advance_steps(self) -> Pending[None] | None:
        run = self._run
        waiting = None if run is None else run.advance()
        if waiting is None and self.context is None:
            self.close()
            self.communicator.advance(self.end)
        return waiting

    def may_begin(self) -> bool:
        for _, words in self._peers:
            if words[PROGRESS] < self._chunks_before:
                return False
        # The others may read it from now on, whatever becomes of this operation here.
        self.communicator.use_chunks(self._end)
        return True

    def free(self, step: int) -> Pending[None] | None:
        # Invariant: a chunk is overwritten when all others have released the step that it held.
        depth = self.depth
        needed = self._chunks_before if step < depth else self._base + step - depth + 1
        for rank, words in self._peers:
            if words[PROGRESS] < needed:
                waiting = self._until(rank, PROGRESS, needed, _EVER)
                if waiting is not None:
                    return waiting
        return None

    def post(self, step: int, phase: int = 0) -> None:
        tag = CHUNK_TAGS[step % self.depth]
        self._mine[tag] = self._base + 2 * step + 1 + phase
        self.communicator.wake(tag)

    def posted(self, rank: int, step: int, phase: int = 0) -> Pending[None] | None:
        low, tag = self._base + 2 * step + 1 + phase, CHUNK_TAGS[step % self.depth]
        if low <= self._words[rank][tag] <= self._end:
            return None
        return self._until(rank, tag, low, self._end)

    def release(self, steps: int) -> None:
        self.communicator.advance(min(self._base + steps, self._end - 1))

    def turn(self) -> Pending[None] | None:
        now = perf_counter()
        if now - self._since < self._turn_seconds:
            return None
        self._since = now
        return self.communicator.group.next_turn()

    # -- waiting

    def _until(self, rank: int, word: int, low: int, high: int) -> Pending[None] | None:
        """Return a `Wait` for a word of a chunk, unless it comes soon.

        The wait has failed already where that rank is lost: so a wait that is done is no step that came.
        """
        # All ranks that it needs are in the operation, so what is missing is mostly a step away.
        if self.communicator.spin.finds_near(self._words[rank], word, low, high):
            return None
        return self._wait_for(rank, word, low, high)

    def _wait_for(self, rank: int, word: int, low: int, high: int) -> Pending[None]:
        wait = Wait(rank, self.communicator.words[rank], word, low, high)
        if self.context is None:
            self._wait = wait
        else:
            self._sleep_over(wait)
        return wait

    def _sleep_over(self, wait: Wait) -> None:
        assert self.context is not None
        if not self.context.lost(self.communicator.group_ranks[wait.rank], wait):
            self.communicator.wait(wait)


def announce(
    mine: memoryview, tag: int, base: int, meta: Words, nbytes: int, copied: int | None = None
) -> None:
    """Write into this rank's words what it has published in a slot for an operation.

    ``base``: the progress at which the operation begins. ``copied``: so many bytes of it are there yet, for
    readers that begin with that; the tag follows.

    Each rank compares what others left in that slot (`stray`) before it announces anew: all of them have
    announced by then. It also compares what a rank left in the other slot when it reads what that rank
    announced next. So if two ranks disagreed and did not look at each other's slots then, at least one of
    them sees it.
    """
    if mine[tag] != base:
        mine[tag] = 0
    mine[tag + 1], mine[tag + 2] = meta
    mine[tag + 3] = nbytes
    if copied is None:
        mine[tag] = base
    else:
        mine[tag + COPIED] = base + copied
