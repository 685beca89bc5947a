"""A group of ranks: its numbers, its operations under way, and what ends them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from operator import itemgetter
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from aiodist.collectives.shm_exchange import Exchange
from aiodist.completion import Pending, T
from aiodist.deadline import to_seconds
from aiodist.errors import (
    CollectiveMismatchError,
    DistError,
    GroupClosedError,
    GroupRevokedError,
    PeerLostError,
)
from aiodist.groups.collective_backend import Start
from aiodist.groups.completed_work import CompletedWork
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.diagnostics import mismatch
from aiodist.groups.fingerprint import Fingerprint, encoded_of
from aiodist.groups.group_agreements import GroupAgreements
from aiodist.groups.group_lifecycle import WHOLE_GROUP, GroupSpec
from aiodist.groups.messaging import Messaging, through_gate
from aiodist.groups.messenger import Messenger
from aiodist.groups.mismatch_detector import MismatchDetector
from aiodist.groups.operation import Operation
from aiodist.groups.shm_collective import ShmCollective
from aiodist.groups.shm_words import STEP_BITS
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord
from aiodist.p2p.inbox import Inbox
from aiodist.wire.frames import COLLECTIVE, Key

if TYPE_CHECKING:
    from aiodist.collectives.host_topology import HostTopology
    from aiodist.groups.group_facts import RankWorld
    from aiodist.groups.shm_communicator import ShmCommunicator

log = logging.getLogger("aiodist")


REMEMBERED = 256
"""Collectives that have ended."""


class ShmPlan(NamedTuple, Generic[T]):
    """What equal collectives in shared memory have in common; ``T`` is the memory of one of them."""

    fingerprint: Fingerprint
    slots: Exchange[T]
    chunks: Exchange[T]
    """In place of ``slots`` where these have less room."""
    room: int
    """What a slot must hold for ``slots``: the same on all ranks, unless slots say what they have."""


class CompletedOperations:
    """The last `REMEMBERED` of them, by number.

    ``ring[number % REMEMBERED]`` is ``number, fingerprint``. `GroupEngine.start_plan` writes it there.
    """

    __slots__ = ("ring",)

    def __init__(self) -> None:
        self.ring: list[tuple[int, Fingerprint] | None] = [None] * REMEMBERED

    def get(self, sequence: int) -> Fingerprint | None:
        """Return what collective ``sequence`` was; None if it is not remembered."""
        found = self.ring[sequence % REMEMBERED]
        return None if found is None or found[0] != sequence else found[1]

    def add(self, sequence: int, fingerprint: Fingerprint) -> None:
        """Remember a collective that has ended."""
        self.ring[sequence % REMEMBERED] = sequence, fingerprint

    def pop(self, sequence: int) -> Fingerprint | None:
        """Return what `get` does, and remember it no more."""
        found = self.get(sequence)
        if found is not None:
            self.ring[sequence % REMEMBERED] = None
        return found

    def last(self) -> tuple[int, Fingerprint] | None:
        """Return the one of the highest number."""
        return max(filter(None, self.ring), default=None, key=itemgetter(0))


class GroupEngine(Messaging):
    """Some of the world's ranks, in an order of their own.

    ``rank`` is this process's number among the group's ``size``; ``ranks[i]`` is the global
    rank of group rank i. Operations on one group start in the same order on all its ranks. Different
    groups are independent of each other.
    """

    def __init__(self, world: RankWorld, spec: GroupSpec) -> None:
        super().__init__(world, spec)
        self.n_started = 0
        """How many collectives have started on this rank."""
        self._active: dict[int, Work[Any]] = {}
        self._failures: dict[int, DistError] = {}  # of collectives that have not started here
        self._known_failures: set[int] = set()  # failures of collectives that all the others know
        self._finished = CompletedOperations()
        self._failed = CompletedOperations()
        self._turns: list[Pending[None]] = []
        self._next_error: Exception | None = None  # of the next collective, which fails with it
        self._earlier: Sequence[int] = ()  # collectives whose ends the next one waits for
        self._awaited: dict[int, list[Pending[None]]] = {}
        """By collective: what its end completes, for later ones that wait for it."""
        self._idle: ShmCollective | None = None  # the object of the next one in shared memory
        self._disputed: tuple[int, DistError] | None = None  # the last that others say was another
        self._announced: dict[int, tuple[int, bytes]] = {}
        """By global rank: the collective, not begun here, in which that rank waits for this one."""
        self._mismatch_detector = MismatchDetector(world.loop, self)
        self.agreements = GroupAgreements(self)
        self.communicator: ShmCommunicator | None = None
        """What the members share memory for, or those on this host, where they may."""
        self.topology: HostTopology | None = None
        """Where the members live, if on several hosts of which some have several."""

    # -- operations

    def start(
        self,
        operation: Operation[T],
        timeout: float | timedelta | None = None,
        begin: Start | None = None,
    ) -> Work[T]:
        """Start ``operation``. Every API starts it by this, or by the backend's `start` itself.

        ``timeout``: a timedelta or seconds; the group's where None. ``begin``: what the backend has
        prepared for the operation. Raises ValueError or TypeError for an invalid timeout, and what
        `CollectiveBackend.start` raises.
        """
        if timeout is not None:
            timeout = to_seconds(timeout)
        done = (begin or self.backend.start)(operation, timeout)
        if isinstance(done, tuple):  # as `completed`, without its call
            return CompletedWork(self._loop, done, self._spin_policy.turn_is_due(done[-1]))
        done._called_here()
        return done

    def collective(
        self,
        fingerprint: Fingerprint,
        body: Callable[[CollectiveContext], Coroutine[Any, Any, T]],
        timeout: float | None = None,
        *,
        shares: bool = False,
        messenger: Messenger | None = None,
    ) -> Work[T]:
        """Start a collective: takes the next sequence number and runs ``body`` to its first wait.

        ``timeout`` in seconds; the group's where None. ``shares``: where the members share memory
        the context gets a ``shm``, when that is free, and ``topology``. ``messenger``: what
        carries it, where not the group's own. Raises what closed or broke the group.
        """
        self.check_open()
        sequence = self.n_started
        self.n_started = sequence + 1
        context = CollectiveContext(self, messenger or self.messenger, sequence, fingerprint)
        record = self.world.recorder.begin(self.label, sequence, fingerprint)
        work: Work[T] = Work(self.world.loop, context, record)
        self._active[sequence] = work
        if earlier := self.take_earlier():
            body = partial(_after, self, earlier, body)
        if self._next_error is not None:
            body, self._next_error = partial(raising, self._next_error), None
        failed = self._failures.pop(sequence, None)
        if failed is not None:
            self._known_failures.add(sequence)
            work._fail(failed)
        else:
            communicator = self.communicator
            if shares:
                context.topology = self.topology
            if communicator is not None and communicator.is_off:
                communicator = self.communicator = None
            if communicator is not None:
                if not shares:
                    communicator.allocate_area()
                elif not context.try_enter(communicator):
                    body = partial(_admitted, communicator, body)
            if communicator is None or not shares or self.topology is not None:
                context.listen()
            gate = self._gate if messenger is None else None
            run = body(context) if gate is None else through_gate(gate, context, body)
            work._start_body(run)
            self._limit(work, timeout)
            self._mismatch_detector.started()
        if self._announced:
            self._compare_announced()
        return work

    def start_after(
        self, earlier: Sequence[int], operation: Operation[T], timeout: float | None
    ) -> CompletedRecord | Work[T]:
        """Start a collective by the backend. It takes its number now, and waits for ``earlier`` ones."""
        self._earlier = earlier  # for the one collective of the group that `start` begins
        try:
            return self.backend.start(operation, timeout)
        finally:
            self._earlier = ()

    def take_earlier(self) -> Sequence[int]:
        """Return the collectives that the one which begins now has to wait for, by `ends_of`."""
        earlier, self._earlier = self._earlier, ()
        return earlier

    async def ends_of(self, sequences: Sequence[int]) -> None:
        """Wait until the collectives of these numbers have ended on this rank, well or badly."""
        for sequence in reversed(sequences):  # the last one mostly ends last
            if not self.is_over(sequence):
                self._awaited.setdefault(sequence, []).append(over := Pending[None]())
                await over

    def start_plan(
        self, plan: ShmPlan[T], given: T, timeout: float | None = None, owner: object = None
    ) -> CompletedRecord | Work[None] | None:
        """Begin a collective in shared memory, and look for the others for a moment.

        Returns a record if it has ended, a `Work` if it has to wait. Returns None if it cannot begin now:
        then start it by `collective` with an equal fingerprint. ``timeout`` as there. ``owner``: of the
        memory in ``given``, held as long as that is used. It needs no running loop where another thread
        drives the engine.
        """
        communicator, sequence = self.communicator, self.n_started
        if (
            communicator is None
            # As long as another operation has the communicator, or waits for it, the last has not ended.
            or communicator.progress != (sequence + 1 << STEP_BITS) - 1
            or self.topology is not None  # its slots are those of one host
            or self._error is not None
            or self._next_error is not None
            or self._failures
            or self._announced
            or self._gate is not None
            or (
                communicator.matcher.arrived
                and communicator.matcher.holds((COLLECTIVE, self.id, sequence), self.ranks)
            )
        ):
            return None
        created = monotonic_ns()
        fingerprint = plan.fingerprint
        operation = self._idle
        if operation is None:
            operation = self._idle = ShmCollective(communicator)
        exchange = plan.slots if plan.room <= communicator.room else plan.chunks
        try:
            waiting = operation.exchange(sequence, fingerprint.words, exchange, given)
        except Exception as error:  # noqa: BLE001  # of the operation, as any other's
            # What it has published the others may have taken: it counts, and fails.
            return self._take_up(operation, fingerprint, raising(error), timeout)
        if waiting is not None:
            body = operation.run_to_end(waiting, owner)
            return self._take_up(operation, fingerprint, body, timeout)
        self.n_started = sequence + 1
        self._finished.ring[sequence % REMEMBERED] = sequence, fingerprint
        return self.world.recorder.ended(self.label, sequence, fingerprint, created)

    def _take_up(
        self,
        operation: ShmCollective,
        fingerprint: Fingerprint,
        body: Coroutine[Any, Any, None],
        timeout: float | None,
    ) -> Work[None]:
        """Go on with what `start_plan` has begun, and what has to wait now, as `collective` does."""
        sequence, self._idle = operation.sequence, None
        self.n_started = sequence + 1
        context = CollectiveContext(self, self.messenger, sequence, fingerprint)
        record = self.world.recorder.begin(self.label, sequence, fingerprint)
        work: Work[None] = Work(self.world.loop, context, record)
        self._active[sequence] = work
        context.take_up(operation)
        work._start_body(body)
        self._limit(work, timeout)
        self._mismatch_detector.started()
        if self._error is not None:  # since it began
            work._fail(self._error.again())
        return work

    def completed(self, ended: CompletedRecord) -> Work[Any]:
        """Return the handle of what has completed without a result.

        Its first ``await`` may yield to the loop.
        """
        return CompletedWork(self._loop, ended, self._spin_policy.turn_is_due(ended[-1]))

    def received(
        self,
        ended: CompletedRecord,
        value: T,
        source: int,
        key: Key,
        meta: bytes,
        data: memoryview | bytes,
        owner: Any = None,
    ) -> Work[T]:
        """Do as `completed`, for a receive that has just got ``data`` from global rank ``source``.

        ``value``: the result. ``owner``: keeps the memory of ``data`` alive.
        """
        inbox = self.endpoint.inbox
        turn = inbox.matcher.taken
        hand_back = partial(_hand_back, inbox, key, source, meta, data, turn, owner)
        yields = self._spin_policy.turn_is_due(ended[-1])
        return CompletedWork(self._loop, ended, yields, value, source, hand_back)

    # -- the end of operations

    def is_over(self, sequence: int) -> bool:
        """Return whether that collective has started on this rank, and has ended."""
        return sequence < self.n_started and sequence not in self._active

    def ended(self, sequence: int, fingerprint: Fingerprint, told: DistError | None) -> None:
        """Note that a collective has ended here; ``told`` is its failure, for the other ranks."""
        self._active.pop(sequence, None)
        # Later, so that many that fail one after the other do not recurse.
        for over in self._awaited.pop(sequence, ()):
            self.next_turn().callback = partial(over.complete, None)
        self.status_queries.drop(sequence)
        if told is None:
            self._finished.add(sequence, fingerprint)
            return
        self._failed.add(sequence, fingerprint)
        if from_peer := sequence in self._known_failures:
            self._known_failures.discard(sequence)
        elif isinstance(told, PeerLostError):
            self.peer_lost(told)
        else:
            self.world.announce(self, sequence, told)
        if self.backend.ends_group(fingerprint, told):
            self._break(told, from_peer=from_peer)

    def next_turn(self) -> Pending[None]:
        """Return what is done in the next turn of the event loop, for bodies that take long.

        A thread that holds the loop and spins for the operation takes the turn itself.
        """
        turn: Pending[None] = Pending()
        self._turns.append(turn)
        self.world.loop.call_soon(self.take_turns)
        return turn

    def take_turns(self) -> None:
        """Let bodies that wait for their next turn go on."""
        turns, self._turns = self._turns, []
        for turn in turns:
            turn.complete(None)

    def wake(self, rank: int) -> None:
        """Wake group rank ``rank`` by a frame, which arrives behind all messages before it."""
        self.world.as_its_loop(self.endpoint.wake, self.ranks[rank], self.id)

    def present(self, sequence: int) -> tuple[bool, str]:
        """Return whether that collective has started on this rank, and which one it finished last."""
        last = self._finished.last()
        return sequence < self.n_started, "" if last is None else f"{last[1]}, operation {last[0]}"

    def last_in_memory(self, rank: int) -> str:
        """Return what collective in shared memory global rank ``rank`` finished last; empty where none."""
        sequence = -1 if self.communicator is None else self.communicator.passed(rank)
        if sequence < 0:
            return ""
        which = f"operation {sequence} of {self.group_name!r}"
        fingerprint = self._finished.get(sequence)
        # If it has not ended well here, this rank cannot tell whether it did there.
        return f"left {which}" if fingerprint is None else f"finished {fingerprint}, {which}"

    def fail_soon(self, sequence: int, error: BaseException) -> None:
        """Fail a collective in the next turn, whatever message it waits for."""
        work = self._active.get(sequence)
        if work is not None:
            self.world.loop.call_soon(work._fail, error)

    def late_mismatch(self, sequence: int, src: int, meta: bytes) -> DistError | None:
        """Report that rank ``src`` was in another collective than the one of that number, which is over.

        Returns the error that a later collective is to fail with. None after a failure, where that is
        usual. After a success those that still wait must know, since this rank will not answer them.
        """
        fingerprint = self._finished.get(sequence)
        if fingerprint is None:
            return None
        self._finished.pop(sequence)
        error = mismatch(self, sequence, fingerprint, src, meta)
        log.error("%s; it has ended on this rank", error)
        self.world.announce(self, sequence, error)
        return error

    def first_under_way(self) -> CollectiveContext | None:
        """Return the collective of the lowest number that has not ended here; None where all have."""
        for work in self._active.values():  # in the order in which they started
            context = work._context
            return context if isinstance(context, CollectiveContext) else None
        return None

    def fingerprint_arrived(self, sequence: int, src: int, meta: bytes) -> None:
        """Take from global rank ``src`` which collective it waits in for a message of this rank."""
        if src not in self._numbers or self._error is not None:
            return
        if sequence >= self.n_started:
            self._announced[src] = sequence, meta
            return
        work = self._active.get(sequence)
        if work is not None:
            if isinstance(work._context, CollectiveContext):
                work._context.compare(src, meta)
            return
        fingerprint = self._finished.get(sequence)
        if fingerprint is not None and fingerprint.encoded != meta:
            # The rank that waits fails as it hears of this, so the next collective here need not.
            self.late_mismatch(sequence, src, meta)

    def _compare_announced(self) -> None:
        """Compare what ranks said of collectives that have begun here since."""
        for src, (sequence, meta) in list(self._announced.items()):
            if sequence < self.n_started:
                del self._announced[src]
                self.fingerprint_arrived(sequence, src, meta)

    def disagreement(self) -> Exception | None:
        """Return that another rank was in another collective, if no later collective has reported it.

        For the end of the group. None after a failure, as in `late_mismatch`.
        """
        if self._error is not None:
            return None
        next_error, self._next_error = self._next_error, None
        if next_error is not None:
            return next_error
        if self._disputed is not None and self._disputed[0] == self.n_started - 1:
            return self._disputed[1]
        found = None if self.communicator is None else self.communicator.left_unread()
        if found is None:
            return None
        sequence, src, words = found
        return self.late_mismatch(sequence, src, encoded_of(words))

    def late_message(self, sequence: int, src: int, meta: bytes, length: int) -> None:
        """Take a message for a collective that is over here."""
        error = self.late_mismatch(sequence, src, meta)
        # An empty one tells what a rank waits in that shares memory: it fails as it hears of this.
        # A rank that has sent data may have ended the operation.
        if error is not None and (length or self.communicator is None):
            self.world.loop.call_soon(self._fail_first_collective, error)

    def _fail_first_collective(self, error: DistError) -> None:
        """Fail the first collective that is under way, or else the next."""
        for work in self._active.values():
            work._fail(error)
            return
        self._next_error = error

    def failed_elsewhere(self, sequence: int, error: DistError) -> None:
        """Take from another rank that a collective failed, or the whole group."""
        if self.communicator is not None:
            self.communicator.poll()  # a rank that failed may have published all that was needed before
        work = self._active.get(sequence)
        if sequence == WHOLE_GROUP:
            if isinstance(error, PeerLostError):
                self.peer_lost(error, from_peer=True)
            elif isinstance(error, GroupRevokedError):
                self._revoke(error, from_peer=True)
        elif work is not None:
            self._known_failures.add(sequence)
            work._fail(error)
        elif sequence >= self.n_started:
            self._failures.setdefault(sequence, error)
        else:
            if (fingerprint := self._finished.pop(sequence)) is not None:
                log.error("an operation that has ended on this rank failed elsewhere: %s", error)
                if isinstance(error, CollectiveMismatchError):
                    self._disputed = sequence, error
            if self.backend.ends_group(fingerprint or self._failed.get(sequence), error):
                self._break(error, from_peer=True)

    def peer_lost(self, error: PeerLostError, *, from_peer: bool = False) -> None:
        if self.communicator is not None:
            self.communicator.poll()  # it may have left all that was needed
        super().peer_lost(error, from_peer=from_peer)

    def peer_left(self, rank: int, error: PeerLostError) -> None:
        """Fail what waits for a member that has left; the rest goes on."""
        self._left[rank] = error
        if self.communicator is not None:
            self.communicator.poll()  # it may have left everything there before
        if self._messenger is not None:
            for work in self.under_way():
                self._fail_departed_later(work)
            return
        for work in [w for w in self._active.values() if rank in w._waiting_for()]:
            work._fail(error.again())
        self._fail_without_senders()

    def go_on_without(self, rank: int) -> None:
        """End the group: its member ``rank`` closed the one before it, and has never made this one."""
        text = f"rank {rank} closed the group that {self.group_name!r} follows on"
        told = f"{text}; shrink() gives a group to go on with"
        self.agreements.without(rank)
        self._revoke(GroupRevokedError(told, group=self.group_name, rank=rank), from_peer=False)

    def not_made_elsewhere(self, error: DistError) -> None:
        """End the group: the collective that has made it here failed on another rank by ``error``."""
        text = f"group {self.group_name!r} was not made on all ranks: {error.message}; make it anew"
        rank = error.fields.get("rank", -1)
        self._revoke(GroupRevokedError(text, group=self.group_name, rank=rank), from_peer=True)

    @property
    def is_busy(self) -> bool:
        """Whether an operation is under way."""
        return bool(self._active or self._messages)

    def under_way(self) -> list[Work[Any]]:
        """Return everything that has not ended. Any thread."""
        return [*list(self._active.values()), *list(self._messages.values())]

    def unfinished(self) -> list[Work[Any]]:
        """Return collectives and sends under way, for a caller that waits until the group is quiet."""
        sends = [work for context, work in self._messages.items() if context.is_send]
        return [*self._active.values(), *sends]

    def close(self, error: GroupClosedError) -> None:
        super().close(error)
        self._mismatch_detector.close()

    def abandon(self, error: DistError, *, calls_back: bool) -> None:
        """End all that is under way, and refuse what comes later, without a word to other ranks.

        For a process that has no part in the group any more: it must write nothing to memory that ranks
        share. ``calls_back``: as of `Work._abandon`.
        """
        self._error = error
        for work in self.under_way():
            work._abandon(error.again(), calls_back=calls_back)

    def _fail_all(self, error: DistError) -> None:
        for work in self.under_way():
            work._fail(error.again())
        if self.communicator is not None:
            self.communicator.close()
        if self.is_closed:
            self.agreements.close()

    def _mark_failures_known(self) -> None:
        self._known_failures.update(self._active)


async def raising(error: Exception, _: object = None) -> Any:
    """Raise ``error``: the body of a collective that fails on this rank."""
    raise error


async def _after(
    group: GroupEngine,
    earlier: Sequence[int],
    body: Callable[[CollectiveContext], Coroutine[Any, Any, T]],
    context: CollectiveContext,
) -> T:
    await group.ends_of(earlier)
    return await body(context)


async def _admitted(
    communicator: ShmCommunicator,
    body: Callable[[CollectiveContext], Coroutine[Any, Any, T]],
    context: CollectiveContext,
) -> T:
    await communicator.admitted(context)
    return await body(context)


def _hand_back(
    inbox: Inbox, key: Key, source: int, meta: bytes, data: memoryview | bytes, turn: int, _: Any
) -> None:
    """Give the message of a receive to the next one. The last argument owns the memory of ``data``."""
    inbox.take_back(key, source, meta, memoryview(data), turn)


class NonGroupMember:
    """What ``new_group`` returns to a rank that is not in the group: `GroupMember.NON_GROUP_MEMBER`."""

    def __repr__(self) -> str:
        return "<not a member of this group>"

    def __reduce__(self) -> str:
        return "NON_GROUP_MEMBER"  # a copy is the object itself, with which programs compare


NON_GROUP_MEMBER = NonGroupMember()
