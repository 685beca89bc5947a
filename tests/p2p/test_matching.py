"""The matcher against a naive model: first come, first served, by key and source."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aiodist.p2p.matching import ANY_SOURCE, Arrival, Matcher, Recv

KEYS = [(1, 10, 0), (1, 10, 1), (0, 11, 0)]
SOURCES = [1, 2, 3]


def recv(key: tuple[int, int, int] = KEYS[0], src: int = 1, size: int = 4) -> Recv:
    return Recv(key, src, memoryview(bytearray(size)), b"m", lambda *_: ValueError("refused"))


def arrival(key: tuple[int, int, int] = KEYS[0], src: int = 1, send_id: int | None = 1) -> Arrival:
    return Arrival(key, src, b"m", 4, 0, send_id)


@dataclass
class Model:
    """Two lists in the order of the calls, searched from the front."""

    receives: list[Recv] = field(default_factory=list)
    messages: list[Arrival] = field(default_factory=list)

    def message_for(self, wanted: Recv) -> Arrival | None:
        for message in self.messages:
            if message.key == wanted.key and wanted.src in (message.src, ANY_SOURCE):
                self.messages.remove(message)
                return message
        return None

    def receive_for(self, key: tuple[int, int, int], src: int) -> Recv | None:
        for wanted in self.receives:
            if wanted.key == key and wanted.src in (src, ANY_SOURCE):
                self.receives.remove(wanted)
                return wanted
        return None


class Matching(RuleBasedStateMachine):
    """Random calls, each answered alike by the matcher and the model."""

    def __init__(self) -> None:
        super().__init__()
        self.matcher = Matcher()
        self.model = Model()
        self.matched: list[tuple[Recv, Arrival, int]] = []
        self.posted: list[Recv] = []  # all, in order
        self.came: list[Arrival] = []
        self.sends = 0

    @rule(key=st.sampled_from(KEYS), src=st.sampled_from([*SOURCES, ANY_SOURCE]))
    def post(self, key: tuple[int, int, int], src: int) -> None:
        one = recv(key, src)
        self.posted.append(one)
        found = self.matcher.post(one)
        assert found is self.model.message_for(one)
        if found is None:
            self.model.receives.append(one)
        else:
            self.matched.append((one, found, self.came.index(found)))

    @rule(key=st.sampled_from(KEYS), src=st.sampled_from(SOURCES))
    def message(self, key: tuple[int, int, int], src: int) -> None:
        self.sends += 1
        one = arrival(key, src, self.sends)
        self.came.append(one)
        found = self.matcher.take_recv(key, src)
        assert found is self.model.receive_for(key, src)
        if found is None:
            self.matcher.keep(one)
            self.model.messages.append(one)
        else:
            one.order = found.turn
            self.matched.append((found, one, self.came.index(one)))

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        if not self.posted:
            return
        one = data.draw(st.sampled_from(self.posted))
        assert self.matcher.withdraw(one) == (one in self.model.receives)
        if one in self.model.receives:
            self.model.receives.remove(one)

    @precondition(lambda self: self.matched)
    @rule(data=st.data())
    def receive_is_cancelled_after_it_was_matched(self, data: st.DataObject) -> None:
        pair = data.draw(st.sampled_from(self.matched))
        self.matched.remove(pair)
        _, message, _ = pair
        found = self.matcher.take_recv(message.key, message.src)
        assert found is self.model.receive_for(message.key, message.src)
        if found is None:
            self.matcher.put_back(message)
            self.model.messages.append(message)
            self.model.messages.sort(key=self.came.index)
        else:
            found.turn = message.order
            self.matched.append((found, message, self.came.index(message)))

    @precondition(lambda self: self.matched)
    @rule(data=st.data())
    def message_is_withdrawn_after_it_was_matched(self, data: st.DataObject) -> None:
        pair = data.draw(st.sampled_from(self.matched))
        self.matched.remove(pair)
        one = pair[0]
        found = self.matcher.repost(one)
        assert found is self.model.message_for(one)
        if found is None:
            self.model.receives.append(one)
            self.model.receives.sort(key=self.posted.index)
        else:
            self.matched.append((one, found, self.came.index(found)))

    @rule(data=st.data())
    def announcement_is_withdrawn(self, data: st.DataObject) -> None:
        if not self.came:
            return
        one = data.draw(st.sampled_from(self.came))
        assert one.send_id is not None
        found = self.matcher.withdraw_arrival(one.src, one.send_id)
        assert found is (one if one in self.model.messages else None)
        if found is not None:
            self.model.messages.remove(one)

    @rule(key=st.sampled_from(KEYS))
    def forget(self, key: tuple[int, int, int]) -> None:
        dropped = self.matcher.forget_key(key, range(4))
        assert set(dropped) == {m for m in self.model.messages if m.key == key}
        self.model.messages = [m for m in self.model.messages if m.key != key]
        self.model.receives = [r for r in self.model.receives if r.key != key]

    @rule(group=st.sampled_from([10, 11]))
    def forget_group(self, group: int) -> None:
        dropped = self.matcher.forget_group(group)
        assert set(dropped) == {m for m in self.model.messages if m.key[1] == group}
        self.model.messages = [m for m in self.model.messages if m.key[1] != group]
        self.model.receives = [r for r in self.model.receives if r.key[1] != group]

    @invariant()
    def nothing_else_is_kept(self) -> None:
        waiting = [one for queue in self.matcher.posted.values() for one in queue]
        assert set(waiting) == set(self.model.receives)
        arrived = [one for queue in self.matcher.arrived.values() for one in queue]
        assert set(arrived) == set(self.model.messages)
        assert all(self.matcher.posted.values())
        assert all(self.matcher.arrived.values())


Matching.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestMatching = Matching.TestCase


def test_posted_from_names_those_that_a_source_could_answer() -> None:
    matcher = Matcher()
    mine, others, anybodys = recv(src=1), recv(src=2), recv(src=ANY_SOURCE)
    for one in (mine, others, anybodys):
        matcher.post(one)
    assert set(matcher.posted_from(1)) == {mine, anybodys}


def test_a_source_that_is_gone_leaves_whole_messages_only() -> None:
    matcher = Matcher()
    whole, begun, announced, others = (arrival(send_id=None) for _ in range(4))
    whole.complete = True
    others.src = 2
    for one in (whole, begun, announced, others):
        matcher.keep(one)
    matcher.drop_unfinished(1)
    assert matcher.post(recv(src=1)) is whole
    assert matcher.post(recv(src=1)) is None
    assert matcher.post(recv(src=2)) is others


def test_arrived_bytes_counts_the_held_messages() -> None:
    matcher = Matcher()
    one = arrival()
    one.data = memoryview(bytearray(100))
    matcher.keep(one)
    matcher.keep(arrival())
    assert matcher.arrived_bytes() == 100


def test_a_receive_accepts_what_it_expects_without_asking() -> None:
    one = recv(size=4)
    assert one.accept(3, b"m", 4) is None
    assert (one.source, one.meta) == (3, b"m")
    assert isinstance(recv(size=4).accept(1, b"m", 5), ValueError)
    assert isinstance(recv(size=4).accept(1, b"other", 4), ValueError)


def test_memory_that_cannot_be_had_fails_the_receive_and_nothing_else() -> None:
    def allocate(meta: bytes, length: int) -> memoryview:
        raise MemoryError("no such amount")

    one = Recv(KEYS[0], 1, None, b"", lambda *_: None, allocate)
    assert isinstance(one.accept(1, b"m", 1 << 60), MemoryError)


def test_a_receive_without_memory_gets_some_of_the_messages_length() -> None:
    made: list[tuple[bytes, int]] = []

    def allocate(meta: bytes, length: int) -> memoryview:
        made.append((meta, length))
        return memoryview(bytearray(length))

    one = Recv(KEYS[0], 1, None, b"", lambda *_: None, allocate)
    assert one.accept(1, b"m", 7) is None
    assert one.into is not None
    assert len(one.into) == 7
    assert made == [(b"m", 7)]
