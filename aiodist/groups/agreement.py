"""The survivors of a group agree on their ranks, and on a value, while more of them may die.

There is one coordinator at a time: the lowest rank that is not known to be dead. It asks all ranks that it
takes for alive. Each of them joins once it has entered the agreement. To join is a promise to follow no
lower coordinator any more. When all living ranks have joined, the coordinator decides that these are the
survivors, and sends the decision to all of them. If it dies before all have the decision, the next
coordinator asks. A rank that has the decision answers with it, and it stands. If no living rank has it, a
new decision cannot contradict another. The promise keeps a decision that is still on its way from a dead
coordinator from arriving after that answer.

This is the two-phase consensus with a rotating coordinator of Chandra and Toueg ("Unreliable failure
detectors for reliable distributed systems", 1996). In place of a majority it needs all living ranks, as
the early-returning agreement behind MPI_Comm_shrink does (Herault et al., "Practical scalable consensus
for pseudo-synchronous distributed systems", SC 2015). Messages must arrive in order, and every death must
be noticed in the end. Ranks that are only cut off from each other decide for themselves. Pure: no clock,
no sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

ASK = "ask"
JOIN = "join"
HERE = "here"
DONE = "done"
GONE = "gone"
"""Messages. A coordinator sends ASK. A member answers JOIN, with its promise, and sends HERE once, when it
has entered. DONE has the decision. GONE says that the sender takes part no more."""


class Decision(NamedTuple):
    """What was agreed: ``members``, in the order of the group, and the coordinator's ``value``."""

    members: tuple[int, ...]
    value: Any


class Agreement:
    """One member's part in one agreement. Ranks are any numbers; their order is ``members``'.

    ``tell(rank, message)`` sends a message (a list of numbers, text and lists). ``lead()`` is
    called on the coordinator when all that are alive have joined. It then has to `offer` a value,
    which decides. ``decided()`` is called once, when ``decision`` is set.
    """

    def __init__(
        self,
        members: Sequence[int],
        rank: int,
        dead: Iterable[int],
        tell: Callable[[int, list[Any]], None],
        lead: Callable[[], None],
        decided: Callable[[], None],
    ) -> None:
        self._members = tuple(members)
        self._rank = rank
        self._dead = set(dead)
        self._send = tell
        self._lead = lead
        self._on_decided = decided
        self._entered = False
        self._promised = -1  # the place of the coordinator that this rank follows
        self._asked = -1  # by that coordinator, before this rank had entered
        self._told = -1  # the coordinator that knows that this rank has entered
        self._joined: set[int] = set()
        self._waiting: set[int] = set()  # members that wait for this rank's word
        self._leads = False  # `lead` was called
        self._value: list[Any] = []  # one value, once it was offered
        self._term = -1  # of the decision
        self.decision: Decision | None = None

    @property
    def alive(self) -> list[int]:
        """The members that are not known to be dead."""
        return [rank for rank in self._members if rank not in self._dead]

    @property
    def waiting_for(self) -> list[int]:
        """The ranks whose answer is missing: the coordinator or, on the coordinator, members."""
        coordinator = self._coordinator()
        if coordinator != self._rank:
            return [coordinator]
        return [r for r in self.alive if r not in self._joined and r != self._rank]

    @property
    def wants_value(self) -> bool:
        """Whether this rank was asked for a value and has none yet."""
        return self._leads and not self._value and self.decision is None

    # -- what happens on this rank

    def enter(self) -> None:
        """Take part. Idempotent."""
        if not self._entered:
            self._entered = True
            if self._asked >= self._promised:
                self._promise(self._asked)
            self._go_on()

    def offer(self, value: Any) -> None:
        """Take the coordinator's value; the first counts."""
        if not self._value:
            self._value.append(value)
            self._go_on()

    def lost(self, rank: int) -> None:
        """Note that ``rank`` has died or left."""
        if rank in self._members and rank not in self._dead:
            self._dead.add(rank)
            self._go_on()

    def leave(self) -> None:
        """Take part no more, and tell the members that wait for this rank or count on it."""
        counting = set(self._waiting)
        if self.decision is not None:  # the others may have made their next group by now
            counting.update(self.decision.members)
        elif self._promised >= 0:
            coordinator = self._members[self._promised]
            counting.update(self.alive if coordinator == self._rank else [coordinator])
        self._entered = False  # it becomes no coordinator, whichever others die
        for rank in sorted(counting - {self._rank}):
            self._send(rank, [GONE])

    # -- what the others say

    def receive(self, src: int, message: Sequence[Any]) -> None:
        """Take a message of member ``src``. Raises ValueError or TypeError for one that makes no sense."""
        kind, *rest = message
        if self.decision is not None:
            if kind in (ASK, HERE):
                self._pass_on(src)
        elif kind == ASK:
            term, dead = rest
            if not 0 <= term < len(self._members):
                raise ValueError(f"no member has place {term}")
            self._remove_dead(dead)
            if term >= max(self._promised, self._asked):
                self._asked = term
                self._waiting.add(src)
                if self._entered:
                    self._promise(term)
            self._go_on()
        elif kind == HERE:
            self._waiting.add(src)
        elif kind == GONE:
            self.lost(src)
        elif kind == JOIN:
            term, dead = rest
            if term == self._place(self._rank):
                self._joined.add(src)
                self._remove_dead(dead)
                self._go_on()
        elif kind == DONE:
            term, members, value = rest
            # Otherwise it is a dead coordinator's decision, which the followed coordinator may not know.
            if term >= self._promised or self._coordinator() in (src, self._rank):
                self._waiting.discard(src)  # it has the decision
                self._decide(term, Decision(tuple(members), value))

    # -- inside

    def _place(self, rank: int) -> int:
        return self._members.index(rank)

    def _coordinator(self) -> int:
        alive = self.alive
        return alive[0] if alive else self._rank

    def _remove_dead(self, dead: Iterable[int]) -> None:
        # Not this rank: it learns by a decision that others take it for dead.
        self._dead.update(rank for rank in dead if rank != self._rank and rank in self._members)

    def _promise(self, term: int) -> None:
        """Promise to follow coordinator number ``term`` from here on, and say so."""
        if term < 0 or self._members[term] == self._rank:
            return
        self._promised = term
        self._send(self._members[term], [JOIN, term, sorted(self._dead)])

    def _go_on(self) -> None:
        if not self._entered or self.decision is not None:
            return
        coordinator = self._coordinator()
        place = self._place(coordinator)
        if coordinator != self._rank:
            if place > self._told:
                self._told = place
                self._send(coordinator, [HERE])
            return
        if self._promised > place:
            return  # a higher coordinator asks, which takes this rank for dead, and will tell its decision
        if self._told < place:
            self._told = self._promised = place
            for rank in self.alive:
                if rank != self._rank:
                    self._send(rank, [ASK, place, sorted(self._dead)])
        alive = self.alive
        if not self._joined.issuperset(alive[1:]):
            return
        if self._value:
            self._decide(place, Decision(tuple(alive), self._value[0]))
        elif not self._leads:
            self._leads = True
            self._lead()

    def _decide(self, term: int, decision: Decision) -> None:
        self._term, self.decision = term, decision
        listeners = self._waiting
        if self._promised == self._place(self._rank):
            self._term = self._promised  # also what another one had decided
            listeners = {rank for rank in self._members if rank != self._rank}
        for rank in sorted(listeners):
            self._pass_on(rank)
        self._on_decided()

    def _pass_on(self, rank: int) -> None:
        assert self.decision is not None  # the callers look
        self._send(rank, [DONE, self._term, list(self.decision.members), self.decision.value])
