"""Random messages of two ranks, and what has to hold at any time and at the end."""

from __future__ import annotations

import random

import pytest

from aiodist.p2p import direct_receiver, link, outbox, shm_progress, shm_sender
from aiodist.p2p.matching import ANY_SOURCE, Recv
from aiodist.p2p.outbox import Send, head_of
from aiodist.shm import message_ring, shared_memory
from aiodist.wire.frames import Key
from tests.p2p.pairs import Pair, Side

EAGER, CHUNK, COST, SMALL_WINDOW = 64, 32, 16, 500
RING, A_MESSAGE_IN_IT = 4096, 64

LENGTHS = {0: 0, 1: EAGER, 2: EAGER + 1, 4: CHUNK * 5 + 3, 5: EAGER - 4}
"""Length of the messages by tag. On tags from 4 on, sends and receives are cancelled as well."""

PLAIN, CANCELLED = (0, 1, 2), (4, 5)


def use_small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few hundred bytes go through every protocol."""
    monkeypatch.setattr(outbox, "EAGER_BYTES", EAGER)
    monkeypatch.setattr(outbox, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(outbox, "MESSAGE_COST", COST)
    monkeypatch.setattr("aiodist.p2p.inbox.MESSAGE_COST", COST)
    monkeypatch.setattr(link, "EAGER_BYTES", EAGER)
    monkeypatch.setattr(outbox, "HOST_EAGER_BYTES", EAGER - 2)
    monkeypatch.setattr(outbox, "JOINED_BYTES", 20)
    monkeypatch.setattr(message_ring, "MIN_BYTES", RING)
    monkeypatch.setattr(shared_memory, "MIN_RING_BYTES", RING)
    monkeypatch.setattr(shared_memory, "MAX_RING_BYTES", RING)
    monkeypatch.setattr(direct_receiver, "PIECE_BYTES", 20)
    monkeypatch.setattr(shm_sender, "RING_BYTES", -1)
    # Both ranks are in this thread: one that spins for longer only waits.
    monkeypatch.setattr(shm_progress, "NEAR_SECONDS", 5e-6)


def key_of(tag: int) -> Key:
    return (1, 99, tag)


class Exchange:
    """Random sends, receives, cancellations and deliveries in both directions."""

    def __init__(self, seed: int, shared_bytes: int) -> None:
        self.random = random.Random(seed)
        self.lengths = LENGTHS
        self.pair = Pair(SMALL_WINDOW, shared_bytes=shared_bytes)
        self.sides = (self.pair.a, self.pair.b)
        self.count = 0
        self.sent: dict[tuple[int, int], list[tuple[Send, bytes, bytearray]]] = {}
        self.receives: dict[tuple[int, int], list[Recv]] = {}
        self.cancelled: list[tuple[memoryview, bytes]] = []
        self.stalls = 0
        # Drawn for each run: how eager one direction is, and how long receivers hesitate.
        self.lean = self.random.random()
        self.weights = [self.random.choice([1, 3, 9]) for _ in range(6)]

    def run(self, steps: int) -> None:
        actions = (
            self.send,
            self.recv,
            self.deliver,
            self.pair.run_soon,
            self.cancel_receive,
            self.cancel_send,
        )
        for _ in range(steps):
            self.random.choices(actions, self.weights)[0]()
            self.check_window()
            self.scribble()
        self.check_end()

    def direction(self) -> tuple[int, Side]:
        number = int(self.random.random() < self.lean)
        return number, self.sides[number]

    def send(self) -> None:
        number, side = self.direction()
        tag = self.random.choice(list(self.lengths))
        for _ in range(self.random.randint(1, 6)):
            self.count += 1
            content = (self.count.to_bytes(3, "little") * self.lengths[tag])[: self.lengths[tag]]
            data = bytearray(content)
            message = self.at_once(side, key_of(tag), data) or side.send(key_of(tag), data)
            self.sent.setdefault((number, tag), []).append((message, content, data))

    def at_once(self, side: Side, key: Key, data: bytearray) -> Send | None:
        """Now and then as messages like those before are sent."""
        message = Send(key, memoryview(data), b"m")
        head = head_of(key, message.meta, len(data))
        outbox = side.peer.outbox
        if self.random.random() < 0.7 or not outbox.post(head, message.data):
            return None
        message.complete(None)
        return message

    def recv(self) -> None:
        number, _ = self.direction()
        number = 1 - number
        tag = self.random.choice(list(self.lengths))
        source = self.random.choice([ANY_SOURCE, None])
        size = self.random.choice([self.lengths[tag], None])
        for _ in range(self.random.randint(1, 4)):
            one = self.sides[number].recv(key_of(tag), size, source)
            self.receives.setdefault((number, tag), []).append(one)

    def deliver(self) -> None:
        side = self.random.choice(self.sides)
        side.stream.push(self.random.choice([1, 10, 41, 100, 300, 2000]))

    def cancel_receive(self) -> None:
        number, side = self.direction()
        entries = self.receives.get((number, self.random.choice(CANCELLED)), [])
        running = [one for one in entries if not one.done]
        if running:
            one = self.random.choice(running)
            entries.remove(one)
            side.inbox.withdraw(one)
            if one.into is not None:
                self.cancelled.append((one.into, bytes(one.into)))

    def cancel_send(self) -> None:
        number, side = self.direction()
        entries = self.sent.get((number, self.random.choice(CANCELLED)), [])
        running = [entry for entry in entries if not entry[0].done]
        if running:
            entry = self.random.choice(running)
            if side.peer.outbox.withdraw(entry[0]):
                entries.remove(entry)
            entry[2][:] = b"\xee" * len(entry[2])  # the memory is the caller's again

    def scribble(self) -> None:
        """The memory of a finished send is the caller's again."""
        for entries in self.sent.values():
            for message, _, data in entries:
                if message.done and data:
                    data[:] = b"\xff" * len(data)

    def check_window(self) -> None:
        for side in self.sides:
            kept = SMALL_WINDOW + max(self.lengths.values()) * len(self.cancelled)
            kept += shared_memory.MAX_RING_BYTES
            assert side.inbox.matcher.arrived_bytes() <= kept
            self.stalls += side.peer.stall > 0
            assert side.peer.outbox.credit <= SMALL_WINDOW

    def check_end(self) -> None:
        self.pair.settle()
        self.scribble()
        for number, side in enumerate(self.sides):
            for tag in self.lengths:
                self.check_tag(number, tag)
            other = self.sides[1 - number]
            waiting = [a for queue in other.inbox.matcher.arrived.values() for a in queue]
            paid = sum(arrival.cost for arrival in waiting)
            assert side.peer.outbox.credit + other.peer.owed + paid == SMALL_WINDOW
            assert not side.inbox.tickets
            assert not side.peer.outbox.bulk
        for memory, before in self.cancelled:
            assert bytes(memory) == before, "a cancelled receive was written"

    def check_tag(self, number: int, tag: int) -> None:
        messages = self.sent.get((number, tag), [])
        receives = self.receives.get((1 - number, tag), [])
        done = [one for one in receives if one.done]
        assert all(one.error is None for one in done)
        assert len(done) == min(len(messages), len(receives)), "a message is lost or came twice"
        contents = [content for _, content, _ in messages]
        got = [bytes(one.into) for one in done if one.into is not None]
        assert len(got) == len(done)
        if tag in PLAIN:
            assert got == contents[: len(got)]
        else:
            assert len(set(got)) == len(got)
            assert set(got) <= set(contents)
        if len(receives) >= len(messages):
            assert all(message.done for message, _, _ in messages)
