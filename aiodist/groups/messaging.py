"""The part of a group that carries messages from one rank to another."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol

from aiodist.alignment import SHORT
from aiodist.completion import T, Unfinished
from aiodist.errors import (
    CollectiveMismatchError,
    GroupClosedError,
    InvalidUsageError,
    PeerLostError,
)
from aiodist.groups.completed_work import CompletedWork
from aiodist.groups.contexts import CollectiveContext, MessageContext
from aiodist.groups.group_lifecycle import GroupLifecycle, GroupSpec
from aiodist.groups.messenger import Messenger
from aiodist.groups.naming import call_of
from aiodist.groups.operation_deadlines import OperationDeadlines
from aiodist.groups.status_query import StatusQueries
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord, Facts, Record
from aiodist.p2p.matching import ANY_SOURCE, Recv
from aiodist.p2p.outbox import head_of
from aiodist.p2p.shm_sender import PIECE_BYTES
from aiodist.p2p.spin_policy import BoundedSpin
from aiodist.wire.frames import TENSOR, Key, ShortHeaders, decode

if TYPE_CHECKING:
    from aiodist.groups.group_facts import RankWorld


DEPARTED_SECONDS = 1.0
"""Where another library carries messages: how long those of a member that has left may still come."""


class MessagePlan:
    """What equal short messages between two ranks have in common."""

    __slots__ = ("facts", "frame", "head", "key", "meta", "peer")

    def __init__(self, what: str, peer: int, key: Key, meta: bytes, nbytes: int) -> None:
        """``what``: send or recv. ``peer``: the global rank at the other end."""
        self.peer = peer
        self.key = key
        self.meta = meta
        self.head = head_of(key, meta, nbytes)
        self.frame, _ = decode(memoryview(self.head))
        self.facts: Facts = (what, peer, key[2], meta, nbytes)


class ObjectPlan:
    """What the objects of one tag between two ranks have in common; short ones have no metadata."""

    __slots__ = ("call", "heads", "key", "peer")

    def __init__(self, what: str, peer: int, key: Key) -> None:
        """``what``: send or recv. ``peer``: the global rank at the other end, or `ANY_SOURCE`."""
        self.call = call_of(what, key[0])
        self.peer = peer
        self.key = key
        self.heads = ShortHeaders(key)

    def facts(self, nbytes: int) -> Facts:
        """Return what the flight recorder remembers of a message of ``nbytes``; -1: not known yet."""
        return self.call, self.peer, self.key[2], b"", nbytes


class CollectiveGate(Protocol):
    """Lets the collectives of a group begin, for the library that carries them."""

    async def enter(self, context: CollectiveContext) -> None:
        """Return when the collective may begin. It awaits only `Pending`."""

    def leave(self, context: CollectiveContext) -> None:
        """Note that the collective, which had called `enter`, has ended well."""

    def disagreed(self, context: CollectiveContext) -> None:
        """Note that the ranks disagree about the collective, which had called `enter`."""


async def through_gate(
    gate: CollectiveGate,
    context: CollectiveContext,
    body: Callable[[CollectiveContext], Coroutine[Any, Any, T]],
) -> T:
    """Await ``body(context)`` between `enter` and `leave` of ``gate``.

    One that fails otherwise does not leave: it ends the group, and the next must not begin before that.
    """
    try:
        await gate.enter(context)
        result = await body(context)
    except CollectiveMismatchError:
        gate.disagreed(context)
        raise
    gate.leave(context)
    return result


class Messaging(GroupLifecycle):
    """Starts messages, and knows those under way."""

    def __init__(self, world: RankWorld, spec: GroupSpec) -> None:
        super().__init__(world, spec)
        self._messages: dict[MessageContext, Work[Any]] = {}
        self._left: dict[int, PeerLostError] = {}  # members that said goodbye
        self._messenger: Messenger | None = None
        self._gate: CollectiveGate | None = None
        self._loop = world.loop
        self._deadlines = OperationDeadlines(world.loop)
        self._spin_policy = self.endpoint.spin_policy
        self._spin = BoundedSpin(self._spin_policy)
        self.status_queries = StatusQueries(world.loop, self.endpoint, self.id)

    @property
    def messenger(self) -> Messenger:
        """What carries the messages of this group's operations: the endpoint, unless `use_messenger`."""
        return self._messenger or self.endpoint

    def use_messenger(self, messenger: Messenger, gate: CollectiveGate) -> None:
        """Let ``messenger`` carry the messages from now on; the endpoint still carries word of failures."""
        self._messenger = messenger
        self._gate = gate

    def send(
        self,
        data: memoryview,
        meta: bytes,
        dst: int,
        tag: int,
        timeout: float | None = None,
        messenger: Messenger | None = None,
        kind: int = TENSOR,
    ) -> Work[None]:
        """Start sending a message of ``kind`` to group rank ``dst``."""
        self.check_open()
        messenger = messenger or self.messenger
        to = self.ranks[dst]
        what = call_of("send", kind)
        record = self.world.recorder.begin(self.label, -1, (what, to, tag, meta, len(data)))
        record.started = record.created
        message = messenger.send(to, (kind, self.id, tag), data, meta)
        if message.done and message.error is None:
            record.end()
            return CompletedWork(
                self.world.loop, record, self._spin_policy.turn_is_due(record.finished)
            )
        context = MessageContext(self, messenger, what, to, tag)
        context.sending(message)
        work: Work[None] = self._register(context, record)
        work._follow(message, _nothing)
        self._limit(work, timeout)
        return work

    def send_at_once(self, plan: MessagePlan, data: memoryview) -> CompletedRecord | None:
        """Send ``data`` if that can be over before anything is made for it.

        None: not so; then start it by `send`. As `GroupEngine.start_plan`, it needs no running loop.
        """
        if self._error is not None or self._messenger is not None:
            return None
        created = monotonic_ns()
        if not self._is_away(plan.peer, plan.head, data):
            return None
        return self.world.recorder.ended(self.label, -1, plan.facts, created)

    def send_short(self, plan: ObjectPlan, data: memoryview) -> CompletedRecord | None:
        """Do as `send_at_once`, for a short message without metadata."""
        length = len(data)
        if length > SHORT or self._error is not None or self._messenger is not None:
            return None
        created = monotonic_ns()
        if not self._is_away(plan.peer, plan.heads.of(length), data):
            return None
        return self.world.recorder.ended(self.label, -1, plan.facts(length), created)

    def _is_away(self, to: int, head: bytes, data: memoryview) -> bool:
        outbox, as_its_loop = self.endpoint.peer(to).outbox, self.world.as_its_loop
        return outbox.put(head, data, as_its_loop) or as_its_loop(outbox.post, head, data)

    def recv_at_once(
        self, plan: MessagePlan, into: memoryview, blocks: bool
    ) -> CompletedRecord | None:
        """Receive a message now if it is here, as `send_at_once` sends one. None: then use `recv`.

        ``blocks``: the caller does nothing else before it has the message. Then this looks for a
        message that is not there yet for a moment. Otherwise it looks only after a message that came
        promptly: a receive is often posted long before its message is sent, and the loop has other
        things to do.
        """
        endpoint, peer = self.endpoint, plan.peer
        matcher = endpoint.inbox.matcher
        if self._error is not None or self._messenger is not None:
            return None
        created = monotonic_ns()
        if (plan.key, peer) in matcher.arrived:
            take = endpoint.inbox.take
            if self.world.as_its_loop(take, plan.key, peer, plan.frame.meta, into) is None:
                return None
            return self.world.recorder.ended(self.label, -1, plan.facts, created)
        if not matcher.is_open_to(plan.key, peer):
            return None
        shm_receiver, spin = endpoint.peer(peer).shm_receiver, None
        if blocks or (shm_receiver.is_prompt and endpoint.spin_policy.active):
            spin = self._spin
            spin.begin(min(len(into), PIECE_BYTES))  # of more the rest may follow
        if not shm_receiver.take(plan.head, plan.frame, into, spin):
            return None
        matcher.took()
        return self.world.recorder.ended(self.label, -1, plan.facts, created)

    def take_arrived(self, plan: ObjectPlan) -> memoryview | bytes | None:
        """Take a message of ``plan`` that is here whole.

        None: none is; then receive it by `recv_posted` or `message`.
        """
        self.check_open()
        if self._messenger is not None:
            return None
        endpoint = self.endpoint
        inbox = endpoint.inbox
        if inbox.matcher.is_open_to(plan.key, plan.peer):
            data = endpoint.peer(plan.peer).shm_receiver.take_short(plan.heads)
            if data is not None:
                inbox.matcher.took()
            return data
        return inbox.take(plan.key, plan.peer, b"", None)

    def recv(
        self,
        make: Callable[[Key, int], Recv],
        finish: Callable[[int], Any] | None,
        src: int | None,
        tag: int,
        timeout: float | None = None,
        messenger: Messenger | None = None,
        kind: int = TENSOR,
    ) -> Work[Any]:
        """Start receiving a message of ``kind`` from group rank ``src``, or from any where None.

        ``make(key, global source)`` makes the receive; ``finish(global source)`` the result, which
        is the global source itself without ``finish``.
        """
        source = ANY_SOURCE if src is None else self.ranks[src]
        recv = make((kind, self.id, tag), source)
        nbytes = -1 if recv.into is None else len(recv.into)
        facts = (call_of("recv", kind), source, tag, recv.expect, nbytes)
        return self.recv_posted(facts, recv, finish, timeout, messenger)

    def recv_posted(
        self,
        facts: Facts,
        recv: Recv,
        finish: Callable[[int], Any] | None = None,
        timeout: float | None = None,
        messenger: Messenger | None = None,
    ) -> Work[Any]:
        """Post ``recv``, of which the flight recorder remembers ``facts``.

        ``finish``: as of `recv`. If it raises `Unfinished`, the rest gets the message's context and
        goes on as the body of `message`.
        """
        self.check_open()
        what, source, tag, _, _ = facts
        from_any = source == ANY_SOURCE
        if from_any:
            self._check_source(None)
        messenger = messenger or self.messenger
        context = MessageContext(self, messenger, what, source, tag)
        work = self._register(context, self.world.recorder.begin(self.label, -1, facts))
        end: Callable[[int], Any] = work._came_from
        if finish is not None:

            def end(sender: int) -> Any:
                try:
                    result = finish(sender)
                except Unfinished as unfinished:
                    raise Unfinished(partial(_run_body, work, context, unfinished.rest)) from None
                work._came_from(sender)
                return result

        work._follow(context.receiving(messenger.recv(recv)), end)
        if recv.done:
            work._yields = self._spin_policy.turn_is_due(monotonic_ns())
        self._limit(work, timeout)
        if self._left and from_any and self._messenger is None:
            self._fail_without_senders()
        return work

    def message(
        self,
        what: str,
        other: int | None,
        tag: int,
        body: Callable[[MessageContext], Coroutine[Any, Any, T]],
        timeout: float | None = None,
        facts: tuple[bytes, int] = (b"", -1),
        messenger: Messenger | None = None,
        kind: int = TENSOR,
    ) -> Work[T]:
        """Start a message that the backend carries over means of its own, or in steps of its own.

        ``facts``, for the flight recorder: what the message says of itself, and its bytes.
        ``what``: "send" or "recv". ``other``: the group rank at the other end, None for any. ``kind``:
        that of its key, for what is said of it.
        ``body(context)`` awaits only `Pending`; an error of ours (timeout, cancellation, a closed
        group) is raised inside it. A receive says by ``context.matched(global rank)`` whose message
        it has got, as soon as it knows.
        """
        self.check_open()
        self._check_source(other)
        what = call_of(what, kind)
        end = ANY_SOURCE if other is None else self.ranks[other]
        context = MessageContext(self, messenger or self.messenger, what, end, tag)
        record = self.world.recorder.begin(self.label, -1, (what, end, tag, *facts))
        work: Work[T] = self._register(context, record)
        work._start_body(_run_body(work, context, body))
        self._limit(work, timeout)
        if self._left and context.from_any_rank and self._messenger is None:
            self._fail_without_senders()
        return work

    def _check_source(self, src: int | None) -> None:
        """Refuse a receive from any rank where there is no other one."""
        if src is None and self.size == 1:
            raise InvalidUsageError(
                f"group {self.group_name!r} has no other rank: no message can come"
            )

    def _register(self, context: MessageContext, record: Record) -> Work[Any]:
        work: Work[Any] = Work(self.world.loop, context, record)
        self._messages[context] = work
        return work

    def receiving(self, key: Key) -> Iterator[Recv]:
        """Yield the receives of ``key`` that wait for their message, in the order of their calls."""
        for context in list(self._messages):
            recv = context.recv
            if recv is not None and recv.key == key and not recv.done:
                yield recv

    def message_ended(self, context: MessageContext) -> None:
        self._messages.pop(context, None)

    def _limit(self, work: Work[Any], timeout: float | None) -> None:
        """Let ``work`` fail after ``timeout`` seconds, the group's where None."""
        self._deadlines.add(work, self.timeout if timeout is None else timeout)
        if self._left and self._messenger is not None:
            self._fail_departed_later(work)

    def close(self, error: GroupClosedError) -> None:
        super().close(error)
        self._deadlines.close()

    def _fail_departed_later(self, work: Work[Any]) -> None:
        """Fail ``work`` later if it waits for a member that has left, which MPI does not report.

        The news of a member's end may overtake what it has sent, and MPI's word of what it has received.
        """
        self._loop.call_later(DEPARTED_SECONDS, self._fail_departed, work)

    def _fail_departed(self, work: Work[Any]) -> None:
        context = work._context
        for rank, error in self._left.items():
            if not isinstance(context, MessageContext):
                if rank in work._waiting_for():
                    self.peer_lost(error)
            elif context.waits_for(rank):
                work._fail(error.again())
        self._fail_without_senders(work)

    def _fail_without_senders(self, only: Work[Any] | None = None) -> None:
        """Fail receives from any rank once no other rank is left. Connect to those that may have left.

        ``only``: the one receive to fail.
        """
        waiting = [
            item
            for item in self._messages.items()
            if item[0].from_any_rank and only in (None, item[1])
        ]
        if waiting and len(self._left) < self.size - 1:
            for rank in {*self.ranks} - self._left.keys() - {self.global_rank}:
                self.endpoint.reach(rank)
            return
        for context, work in waiting:
            work._fail(
                PeerLostError(
                    f"{context.describe()} cannot get a message: all other ranks have left",
                    departed=sorted(self._left),
                    departure="left",
                )
            )


async def _run_body(
    work: Work[T], context: MessageContext, body: Callable[[MessageContext], Coroutine[Any, Any, T]]
) -> T:
    """Run ``body``, and note for a receive whose message it has got."""
    result = await body(context)
    if not context.is_send and not context.from_any_rank:
        work._came_from(context.other)
    return result


def _nothing(_: None) -> None:
    """Return the result of a send."""
