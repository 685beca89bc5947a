"""The messages of one operation: the `Channel` of a collective, and single messages by tag."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from aiodist.completion import Pending
from aiodist.errors import (
    CollectiveCancelledError,
    CollectiveError,
    CollectiveMismatchError,
    DistError,
    GroupClosedError,
    PeerLostError,
)
from aiodist.groups.diagnostics import (
    describe_missing,
    describe_waiting,
    mismatch,
    missing_of,
    tensor_of_message,
    timed_out,
    unread_in_words,
)
from aiodist.groups.fingerprint import Fingerprint, Words, encoded_of
from aiodist.groups.group_facts import GroupFacts
from aiodist.groups.messenger import Messenger, new_memory, payload_of
from aiodist.groups.shm_collective import ShmCollective
from aiodist.groups.work import OperationContext
from aiodist.p2p.matching import Recv
from aiodist.p2p.outbox import Send
from aiodist.p2p.spin_policy import SpinPolicy
from aiodist.wire.frames import COLLECTIVE

if TYPE_CHECKING:
    from aiodist.collectives.host_topology import HostTopology
    from aiodist.groups.shm_communicator import ShmCommunicator
    from aiodist.groups.status_query import Answers, StatusQueries

_PRUNE = 64

_ANNOUNCEMENT_SECONDS = 0.2
"""How much later than the goodbye of a peer the announcement may arrive of the failure that it knew."""


class MessagingGroup(GroupFacts, Protocol):
    """What the context of a message needs of its group: see `Messaging`."""

    status_queries: StatusQueries

    def message_ended(self, context: MessageContext) -> None: ...


class CollectiveGroup(MessagingGroup, Protocol):
    """What the context of a collective needs of its group: see `GroupEngine`."""

    rank: int
    size: int
    why_aborted: str

    @property
    def has_ended(self) -> bool: ...

    def late_mismatch(self, sequence: int, src: int, meta: bytes) -> DistError | None: ...

    def fail_soon(self, sequence: int, error: BaseException) -> None: ...

    def take_turns(self) -> None: ...

    def ended(self, sequence: int, fingerprint: Fingerprint, told: DistError | None) -> None: ...


class CollectiveContext(OperationContext):
    """The messages of one collective: a `collectives.Channel` by (group, sequence number)."""

    __slots__ = (
        "_departed",
        "_fingerprint",
        "_group",
        "_informed",
        "_key",
        "_messenger",
        "_postponed",
        "_ranks",
        "_recvs",
        "_sends",
        "communicator",
        "meets",
        "meta",
        "rank",
        "sequence",
        "shm",
        "size",
        "topology",
    )

    def __init__(
        self, group: CollectiveGroup, messenger: Messenger, sequence: int, fingerprint: Fingerprint
    ) -> None:
        self.rank = group.rank
        self.size = group.size
        self.sequence = sequence
        self._group = group
        self._messenger = messenger
        self._ranks = group.ranks
        self._key = (COLLECTIVE, group.id, sequence)
        self._fingerprint = fingerprint
        self.meta = fingerprint.encoded
        """As it goes with every message."""
        self._recvs: list[Recv] = []
        self._sends: list[tuple[int, Send]] = []
        self._informed: frozenset[int] = frozenset()  # the ranks that know which collective this is
        self._departed: PeerLostError | None = (
            None  # the error to end with, if no announcement comes
        )
        self._postponed: asyncio.TimerHandle | None = None
        self.meets = False
        """Whether it waits until all ranks have begun, in another library."""
        self.communicator: ShmCommunicator | None = None
        self.shm: ShmCollective | None = None
        self.topology: HostTopology | None = None
        """Where the ranks live, if on several hosts; ``shm`` is that of this rank's host then."""

    # -- shared memory

    def try_enter(self, communicator: ShmCommunicator) -> bool:
        """Enter the communicator if it is free. Returns whether it is."""
        self.communicator = communicator
        if not communicator.is_free:
            return False
        self.enter(communicator)
        return True

    def enter(self, communicator: ShmCommunicator) -> None:
        """Take ``communicator``, which is free."""
        communicator.current = self.shm = shm = ShmCollective(communicator)
        shm.begin_with(self.sequence, self._fingerprint.words, self)

    def take_up(self, shm: ShmCollective) -> None:
        """Continue ``shm``, which has begun with the communicator to itself."""
        self.communicator, self.shm = shm.communicator, shm
        shm.take_up(self)

    def disagreement(self, src: int, words: Words, came: int, expected: int) -> DistError:
        """Return the error for what group rank ``src`` has published: another operation, or length."""
        meta = encoded_of(words)
        detail = f" and sent {came} bytes where {expected} are expected"
        if meta != self.meta:
            detail = ""
        return self._mismatch(self._ranks[src], meta, detail)

    def check_length(self, src: int, came: int, expected: int) -> None:
        """Raise CollectiveMismatchError if group rank ``src`` has ``came`` bytes and not ``expected``."""
        if came != expected:
            raise self.disagreement(src, self._fingerprint.words, came, expected)

    def late_mismatch(self, sequence: int, src: int, words: Words) -> DistError | None:
        """Report that group rank ``src`` had published another operation than the one that has ended here.

        Returns the error that this operation is to fail with; None where it was reported before.
        """
        return self._group.late_mismatch(sequence, self._ranks[src], encoded_of(words))

    def lost(self, src: int, wait: Pending[None]) -> bool:
        """Return whether group rank ``src`` is gone; ``wait`` has failed then."""
        error = self._group.endpoint.error_of(self._ranks[src])
        if error is not None:
            wait.fail(error)
        return error is not None

    def listen(self) -> None:
        """Fail with a message for this operation from a rank that is in another one.

        The receives of this operation may never see it. If two ranks take themselves for the root of a
        broadcast, each sends its data to the other and posts no receive.
        """
        self._messenger.inbox.watch(self._key, self.compare)

    def announce_awaited(self) -> None:
        """Tell each rank whose message is missing, once, which collective this is.

        That rank may be in another collective, and wait for this rank in turn. If another library carries
        the messages, that library compares the calls. In shared memory the neighbours are told in place
        of the late rank, to which all others would connect. If members are in two operations, some of
        them are neighbours, unless many members in none are between them. An error reaches all members.
        """
        endpoint, communicator = self._group.endpoint, self.communicator
        if self._messenger is endpoint:
            ranks = self._awaited()
            if communicator is not None and self.shm is not None and communicator.waiting_for():
                ranks.update(communicator.neighbours)
            uninformed = ranks - self._informed
            self._informed |= uninformed
            for rank in uninformed:
                endpoint.send_fingerprint(rank, self._group.id, self.sequence, self.meta)

    def compare(self, src: int, meta: bytes) -> None:
        """Fail if global rank ``src`` has another collective, of fingerprint ``meta``, by this number."""
        if meta != self.meta:
            self._group.fail_soon(self.sequence, self._mismatch(src, meta))

    def _awaited(self) -> set[int]:
        """Return the global ranks whose messages have not come, or that have not taken this rank's."""
        if self.meets:
            return {*self._ranks} - {self._ranks[self.rank]}
        ranks = {recv.src for recv in self._recvs if not recv.done}
        ranks.update(to for to, message in self._sends if not message.done)
        return ranks

    @property
    def operation(self) -> str:
        """The operation's name."""
        return self._fingerprint.operation

    @property
    def group_name(self) -> str:
        return self._group.group_name

    # -- collectives.Channel

    def send(self, dst: int, data: memoryview) -> Pending[None]:
        to = self._ranks[dst]
        message = self._messenger.send(to, self._key, data, self.meta)
        if not message.done:
            if len(self._sends) > _PRUNE:
                self._sends = [pair for pair in self._sends if not pair[1].done]
            self._sends.append((to, message))
        return message

    def recv(self, src: int, into: memoryview) -> Pending[Any]:
        return self._post(Recv(self._key, self._ranks[src], into, self.meta, self._check))

    def recv_new(self, src: int) -> Pending[memoryview]:
        recv = Recv(self._key, self._ranks[src], None, self.meta, self._check, new_memory)
        arrived = payload_of(recv)
        self._post(recv)
        return arrived

    def _post(self, recv: Recv) -> Recv:
        self._messenger.recv(recv)
        if not recv.done:
            if len(self._recvs) > _PRUNE:
                self._recvs = [r for r in self._recvs if not r.done]
            self._recvs.append(recv)
        return recv

    def _check(self, recv: Recv, src: int, meta: bytes, length: int) -> BaseException | None:
        error = None
        if meta != self.meta:
            error = self._mismatch(src, meta)
        elif recv.into is not None and len(recv.into) != length:
            detail = f" and sent {length} bytes where {len(recv.into)} are expected"
            error = self._mismatch(src, meta, detail)
        if error is not None:
            # The algorithm may be waiting for another rank, for a long time.
            self._group.fail_soon(self.sequence, error)
        return error

    def _mismatch(self, src: int, meta: bytes, detail: str = "") -> CollectiveMismatchError:
        return mismatch(self._group, self.sequence, self._fingerprint, src, meta, detail)

    # -- groups.work.OperationContext

    def describe(self) -> str:
        return f"{self._fingerprint.operation} (operation {self.sequence} of {self._group.group_name!r})"

    def waiting_for(self) -> Sequence[int]:
        ranks: set[int] = set()
        communicator = self.communicator  # once: the operation may end meanwhile, in another thread
        if communicator is not None and (self.shm is not None or communicator.is_opening):
            ranks.update(communicator.waiting_for())
            if self.topology is None:
                return sorted(ranks)
        return sorted(ranks | self._awaited())

    @property
    def spin_policy(self) -> SpinPolicy | None:
        if self.communicator is not None and self.topology is None:
            return self.communicator.spin_policy
        return self._messenger.spin_policy

    def polls(self) -> Sequence[Callable[[], None]]:
        turns = self._group.take_turns
        if self.communicator is not None and self.shm is not None:
            if self.topology is None:
                return (self.communicator.poll, turns)
            return (self.communicator.poll, turns, *self._messenger.polls(self.waiting_for()))
        return (turns, *self._messenger.polls(self.waiting_for()))

    def sleeper(self) -> ShmCommunicator | None:
        if self.communicator is None or self.shm is None or self.topology is not None:
            return None
        return self.communicator

    def postpones(self, error: BaseException, fail: Callable[[BaseException], None]) -> bool:
        """Wait for the announcement of a failure if a peer has left, perhaps because of that failure.

        The rank where the operation failed tells all. A peer that was told may leave, and its goodbye may
        arrive here before the announcement.
        """
        if (
            error is self._departed  # the wait is over
            or self.size == 2  # there is no third rank
            or self._group.has_ended
            or not isinstance(error, PeerLostError)
            or error.departure != "left"
        ):
            return False
        if self._departed is None:
            self._departed = departed = error.again()
            loop = self._group.world.loop
            self._postponed = loop.call_later(_ANNOUNCEMENT_SECONDS, fail, departed)
        return True

    def close(self, error: BaseException | None) -> BaseException | None:
        inbox = self._messenger.inbox
        communicator, self.communicator = self.communicator, None
        if self._postponed is not None:
            self._postponed.cancel()
        if error is not None:
            for recv in self._recvs:
                inbox.drop(recv)
            for to, message in self._sends:
                if not message.done:
                    self._messenger.withdraw_send(to, message)
        # Each receive refers to this context by its check: the circle would keep their memory.
        self._recvs.clear()
        self._sends.clear()
        left = inbox.forget(self._key)
        if error is None and left is not None:
            # All that this rank wanted came, and more: another rank is in another operation.
            error = self._mismatch(left.src, left.meta)
        told = None if error is None else self._told(error)
        self._group.ended(self.sequence, self._fingerprint, told)
        if communicator is not None:
            if isinstance(told, CollectiveMismatchError) and self.shm is not None:
                self.shm.take_back()
            communicator.leave(self)
        self.shm = None  # it refers to this context: the circle would keep the shared memory
        return error

    def _told(self, error: BaseException) -> DistError:
        """Return the error as the other ranks are to hear it."""
        here, fields = self._ranks[self.rank], self._error_fields()
        if isinstance(error, GroupClosedError):
            text = f"rank {here} destroyed or aborted the group during {self.describe()}"
            return CollectiveCancelledError(text + self._group.why_aborted, **fields)
        if isinstance(error, CollectiveError):
            return error
        if isinstance(error, asyncio.CancelledError):
            return CollectiveCancelledError(f"rank {here} cancelled {self.describe()}", **fields)
        return CollectiveError(
            f"{self.describe()} failed on rank {here}: {type(error).__name__}: {error}", **fields
        )

    def _error_fields(self) -> dict[str, Any]:
        """Return the attributes of every error about this operation on this rank."""
        return {
            "operation": self._fingerprint.operation,
            "group": self._group.group_name,
            "sequence": self.sequence,
            "rank": self._ranks[self.rank],
        }

    def expired(self, seconds: float, fail: Callable[[BaseException], None]) -> None:
        def done(answers: Answers) -> None:
            missing = missing_of(answers)
            waiting = list(missing) or self.waiting_for()
            why = describe_missing(missing, waiting)
            fields = self._error_fields() | {
                "tensor": self._fingerprint.tensor,
                "last_finished": tuple(said.last if said else "" for said in missing.values()),
                "doing": tuple(said.now if said else "" for said in missing.values()),
            }
            fail(self._departed or timed_out(self.describe(), seconds, why, waiting, fields))

        here = self._ranks[self.rank]
        others = [rank for rank in self._ranks if rank != here]
        self._group.status_queries.call(self.sequence, others, done)


class MessageContext(OperationContext):
    """One point-to-point message."""

    __slots__ = ("_group", "_messenger", "_send", "_status_query", "_tag", "_what", "other", "recv")

    def __init__(
        self, group: MessagingGroup, messenger: Messenger, what: str, other: int, tag: int
    ) -> None:
        """``what``: `call_of` the message. ``other``: the global rank at the other end, -1 for any."""
        self._messenger = messenger
        self._group = group
        self._what = what
        self.other = other
        """Also -1 as long as it is not known."""
        self._tag = tag
        self.recv: Recv | None = None
        """The receive that is posted, if this is one."""
        self._send: Send | None = None
        self._status_query = 0  # the number of a status query

    @property
    def is_send(self) -> bool:
        return self._what.startswith("send")

    @property
    def from_any_rank(self) -> bool:
        return self.other < 0

    def matched(self, rank: int) -> None:
        """Note that a receive from any rank has its message, from global rank ``rank``, on its way."""
        self.other = rank

    def waits_for(self, rank: int) -> bool:
        """Return whether global rank ``rank`` has yet to send or to take the message."""
        pending: Send | Recv | None = self._send or self.recv
        return self.other == rank and pending is not None and not pending.done

    def sending(self, message: Send) -> Send:
        self._send = message
        return message

    def receiving(self, recv: Recv) -> Recv:
        self.recv = recv
        return recv

    def describe(self) -> str:
        direction = "to" if self.is_send else "from"
        peers = "any rank" if self.other < 0 else f"rank {self.other}"
        return f"{self._what} {direction} {peers} with tag {self._tag} in group {self._group.group_name!r}"

    def waiting_for(self) -> Sequence[int]:
        return (
            [self.other]
            if self.other >= 0
            else [rank for rank in self._group.ranks if rank != self._group.global_rank]
        )

    @property
    def spin_policy(self) -> SpinPolicy | None:
        return self._messenger.spin_policy

    def polls(self) -> Sequence[Callable[[], None]]:
        if self.other < 0:
            return ()
        return self._messenger.polls([self.other])

    def hand_back(self) -> Callable[[], None] | None:
        recv = self.recv
        return None if recv is None else partial(recv.hand_back, self._messenger.inbox)

    def close(self, error: BaseException | None) -> BaseException | None:
        if error is not None:
            if self.recv is not None:
                self._messenger.inbox.withdraw(self.recv)
            if self._send is not None and not self._send.done:
                self._messenger.withdraw_send(self.other, self._send)
        if self._status_query:
            self._group.status_queries.drop(self._status_query)
        self._group.message_ended(self)
        return error

    def expired(self, seconds: float, fail: Callable[[BaseException], None]) -> None:
        ranks = self.waiting_for()
        meta = b""
        if self._send is not None:
            meta = self._send.meta
        elif self.recv is not None:
            meta = self.recv.expect
        fields = {
            "operation": self._what,
            "group": self._group.group_name,
            "rank": self._group.global_rank,
            "tensor": tensor_of_message(meta),
        }

        def done(answers: Answers) -> None:
            unread = ""
            if not self.is_send:
                arrived = self._group.endpoint.inbox.matcher.arrived
                unread = unread_in_words(arrived, self._group.id, ranks)
            why = describe_waiting(ranks, unread, answers)
            fields["doing"] = tuple(said.now if said else "" for said in answers.values())
            fail(timed_out(self.describe(), seconds, why, ranks, fields))

        if self.from_any_rank:
            done({})  # to ask all for what may come from one would make a list of the whole job
        else:
            queries = self._group.status_queries
            self._status_query = self._status_query or queries.new_number()
            queries.call(self._status_query, ranks, done)
