"""The agreement under deaths at any moment and messages in any order, as one stream each allows."""

from __future__ import annotations

import random
from collections import deque
from functools import partial
from typing import Any

import pytest

from aiodist.groups.agreement import ASK, DONE, GONE, Agreement, Decision


class Net:
    """Members, the messages on their way, and who knows of whose death."""

    def __init__(self, size: int, rng: random.Random, known: dict[int, set[int]]) -> None:
        self.rng = rng
        self.dead: set[int] = set()
        self.gone: set[int] = set()  # they have closed the group
        self.lines: dict[tuple[int, int], deque[list[Any] | None]] = {}
        self.led: list[int] = []
        self.members = [
            Agreement(
                range(size), me, known.get(me, ()), partial(self.send, me), partial(self.lead, me),
                lambda: None,
            )
            for me in range(size)
        ]  # fmt: skip

    def lead(self, me: int) -> None:
        self.led.append(me)
        self.members[me].offer(f"of {me}")

    def send(self, src: int, dst: int, message: list[Any]) -> None:
        if src not in self.dead:
            self.lines.setdefault((src, dst), deque()).append(message)

    def kill(self, rank: int) -> None:
        """What it had sent may still arrive, or the end of it be lost; then its death is noticed."""
        self.dead.add(rank)
        for other in range(len(self.members)):
            if other != rank:
                context = self.lines.setdefault((rank, other), deque())
                for _ in range(self.rng.randint(0, len(context))):
                    context.pop()
                context.append(None)

    def leave(self, rank: int) -> None:
        """It answers every message by GONE from now on, as `GroupAgreements` does."""
        self.gone.add(rank)
        self.members[rank].leave()

    def step(self) -> bool:
        """Deliver one message; return False if no message is in flight."""
        ready = [
            pair for pair, context in self.lines.items() if context and pair[1] not in self.dead
        ]
        if not ready:
            return False
        src, dst = self.rng.choice(ready)
        message = self.lines[src, dst].popleft()
        if message is None:
            self.members[dst].lost(src)
        elif dst not in self.gone:
            self.members[dst].receive(src, message)
        elif message != [GONE]:
            self.send(dst, src, [GONE])
        return True

    def living(self) -> list[int]:
        return [rank for rank in range(len(self.members)) if rank not in self.dead | self.gone]

    def decisions(self) -> set[Decision | None]:
        return {self.members[rank].decision for rank in self.living()}


def decided(size: int, seed: int, ends: int, leaving: float) -> tuple[Net, Decision]:
    """Return the decision of members that enter at random moments, ``ends`` of which end at others.

    ``leaving``: how likely it is that a member which ends closes the group; else it dies.
    """
    rng = random.Random(seed * 10 + size)
    net = Net(size, rng, {})
    to_enter = list(range(size))
    rng.shuffle(to_enter)
    idle = False
    while to_enter or ends or not idle:
        choice = rng.random()
        if choice < 0.15 and to_enter:
            if (rank := to_enter.pop()) in net.living():
                net.members[rank].enter()
            idle = False
        elif choice < 0.22 and ends:
            ends -= 1
            end = net.leave if rng.random() < leaving else net.kill
            end(rng.choice(net.living()))
            idle = False
        else:
            idle = not net.step()
    (decision,) = net.decisions()
    assert decision is not None, seed
    assert set(net.living()) <= set(decision.members), seed
    return net, decision


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_the_living_decide_alike_whenever_the_others_die(size: int) -> None:
    for seed in range(1500 if size > 1 else 1):
        net, decision = decided(size, seed, seed % size, 0.0)
        assert list(decision.members) == sorted(decision.members)
        assert decision.value in {f"of {rank}" for rank in net.led}
        for rank in net.living():
            assert set(net.members[rank].waiting_for) <= {*net.living()} - {rank}, seed


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_the_others_decide_alike_whenever_members_close_the_group(size: int) -> None:
    """Some die as well."""
    for seed in range(500):
        decided(size, seed, 1 + seed % (size - 1), 0.6)


def test_a_member_that_has_left_becomes_no_coordinator() -> None:
    net = Net(3, random.Random(1), {})
    net.members[1].enter()
    net.leave(1)
    while net.step():
        pass
    net.kill(0)
    while net.step():
        pass
    assert net.led == []


def test_an_agreement_takes_four_messages_for_each_member_but_one() -> None:
    net = Net(5, random.Random(1), {})
    for member in net.members:
        member.enter()
    taken = 0
    while net.step():
        taken += 1
    assert net.decisions() == {Decision((0, 1, 2, 3, 4), "of 0")}
    assert taken == 4 * 4


def test_ranks_that_were_dead_before_are_not_among_the_members() -> None:
    rng = random.Random(1)
    net = Net(4, rng, {rank: {0, 2} for rank in (1, 3)})
    net.dead |= {0, 2}
    for rank in (1, 3):
        net.members[rank].enter()
    while net.step():
        pass
    assert net.decisions() == {Decision((1, 3), "of 1")}


def test_a_death_known_to_one_member_is_believed_by_all() -> None:
    net = Net(3, random.Random(1), {2: {1}})
    net.dead.add(1)
    for rank in (0, 2):
        net.members[rank].enter()
    while net.step():
        pass
    assert net.decisions() == {Decision((0, 2), "of 0")}


def test_there_is_no_decision_without_a_living_member() -> None:
    net = Net(3, random.Random(1), {})
    for rank in (0, 1):
        net.members[rank].enter()
    while net.step():
        pass
    assert net.decisions() == {None}
    assert net.members[0].waiting_for == [2]
    assert net.members[1].waiting_for == [0]
    net.members[2].enter()
    while net.step():
        pass
    assert net.decisions() == {Decision((0, 1, 2), "of 0")}


def test_a_member_that_has_left_the_group_is_left_out() -> None:
    net = Net(2, random.Random(1), {})
    net.members[0].enter()
    net.members[0].receive(1, [GONE])
    assert net.members[0].decision == Decision((0,), "of 0")


def test_the_decision_of_a_dead_coordinator_is_refused_after_a_promise_to_the_next() -> None:
    net = Net(3, random.Random(1), {})
    two = net.members[2]
    two.enter()
    two.receive(1, [ASK, 1, [0]])
    two.receive(0, [DONE, 0, [0, 1, 2], "late"])
    assert two.decision is None
    two.receive(1, [DONE, 1, [1, 2], "new"])
    assert two.decision == Decision((1, 2), "new")
