"""A message ring alone: its writer and its reader, in each order of loads and stores that a seed draws."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from aiodist.shm import message_ring
from aiodist.shm.message_ring import LINES_BYTES, EagerMessage, RingReader, RingWriter
from tests.interleavings.clock import Clock
from tests.interleavings.memory import Fence, Segment
from tests.interleavings.scheduler import Scheduler, Stuck
from tests.interleavings.seeds import BLOCKS, WRONG, fails, seeds

LENGTHS = (0, 1, 8, 40, 60, 100, 200, 400)
RINGS = (640, 1024, 1536)
START = 64
WRITER, READER = range(2)


@pytest.fixture(autouse=True)
def _small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a ring is full after some messages, and longer ones grow in it."""
    monkeypatch.setattr(message_ring, "SHORT", 32)
    monkeypatch.setattr(message_ring, "MIN_BYTES", 64)
    monkeypatch.setattr(message_ring, "_NEAR", 64)


class Transfer:
    """Some messages from one rank to another one."""

    def __init__(self, seed: int, clock: Clock) -> None:
        draw = random.Random(seed)
        self.scheduler = scheduler = Scheduler(seed, 2, clock)
        self.writer_draw, self.reader_draw = random.Random(~seed), random.Random(seed)
        nbytes = draw.choice(RINGS)
        self.messages = [
            bytes((number * 17 + place) % 256 for place in range(draw.choice(LENGTHS)))
            for number in range(draw.randint(2, 12))
        ]
        memory = scheduler.memory
        ring = Segment(memory, WRITER, START + nbytes)
        words = [Segment(memory, rank, LINES_BYTES) for rank in (WRITER, READER)]

        def seen_by(rank: int) -> Any:
            table = [words[end].seen_by(rank).cast("Q") for end in (rank, 1 - rank)]
            return ring.seen_by(rank), *table

        self.writer = RingWriter(READER, *seen_by(WRITER), START, nbytes)
        self.reader = RingReader(WRITER, *seen_by(READER))
        self.writer._fence = Fence(memory, WRITER)  # type: ignore[assignment]
        self.reader._fence = Fence(memory, READER)  # type: ignore[assignment]
        self.is_rung = False
        self.kept: list[tuple[int, EagerMessage]] = []

    def frame(self, number: int) -> bytes:
        return bytes([number]) + self.messages[number]

    def write(self) -> None:
        for number, message in enumerate(self.messages):
            data: Any = message
            piece = self.writer_draw.choice([16, 64, 1000])
            untaken = self.writer.untaken
            while not self.writer.put(0, self.frame(number)[:1], data, piece):
                self.scheduler.sleep_until(lambda before=untaken: self.writer.untaken < before)
                untaken = self.writer.untaken
            self.wake()
            if not self.writer.is_whole:
                while self.writer.fill(data, piece):
                    pass
                self.wake()

    def wake(self) -> None:
        if self.writer.must_wake():
            self.scheduler.memory.settle(WRITER)
            self.is_rung = True

    def read(self) -> None:
        for number in range(len(self.messages)):
            found = self.reader.next_message(0)
            while found is None:
                self.sleep_until(lambda: self.reader.has_next)
                found = self.reader.next_message(0)
            if self.reader.there() < len(found) or self.reader_draw.random() < 0.4:
                self.copy_as_it_comes(number, found)
            else:
                self.kept.append((number, EagerMessage(self.reader, self.reader.advance(), found)))
                if self.reader_draw.random() < 0.3:
                    self.take(self.reader_draw.choice(self.kept))
        self.take_all()

    def copy_as_it_comes(self, number: int, found: Any) -> None:
        content, there = b"", self.reader.there()
        while there < len(found):
            content += bytes(found[len(content) : there])
            self.sleep_until(lambda seen=there: self.reader.there() > seen)
            there = self.reader.there()
        content += bytes(found[len(content) :])
        self.reader.take(*self.reader.advance())
        assert content == self.frame(number)

    def take(self, entry: tuple[int, EagerMessage]) -> None:
        self.kept.remove(entry)
        number, message = entry
        assert bytes(message.open()) == self.frame(number)
        message.discard()

    def take_all(self) -> None:
        while self.kept:
            self.take(self.kept[0])

    def sleep_until(self, comes: Callable[[], bool]) -> None:
        """Sleep until the writer rings, which may need the room of what is kept. Or only look later."""
        self.take_all()
        if self.reader_draw.random() < 0.3:
            self.scheduler.point()
            return
        self.reader.arm()
        if not comes():
            self.scheduler.sleep_until(lambda: self.is_rung)
            self.is_rung = False
        if self.reader_draw.random() < 0.5:
            self.reader.disarm()

    def run(self) -> None:
        self.scheduler.spawn(self.write)
        self.scheduler.spawn(self.read)
        self.scheduler.run()


def one_transfer(seed: int, clock: Clock) -> None:
    transfer = Transfer(seed, clock)
    try:
        transfer.run()
    except BaseException as error:
        lengths = [len(message) for message in transfer.messages]
        error.add_note(
            f"seed {seed}: messages of {lengths} bytes through {transfer.writer.nbytes}, written to "
            f"{transfer.writer.position}, read to {transfer.reader.position}"
        )
        raise


@pytest.mark.parametrize("block", BLOCKS)
def test_messages_come_out_of_a_ring_as_they_were_put_in(block: int, clock: Clock) -> None:
    for seed in seeds(block, 500):
        one_transfer(seed, clock)


@pytest.mark.parametrize(
    ("owner", "step", "change", "kinds"),
    [
        (RingWriter, "must_wake", lambda ring: False, (Stuck,)),
        (RingWriter, "_settle", lambda ring: None, (Stuck,)),
        (RingReader, "_settle", lambda ring: None, (Stuck,)),
        (RingWriter, "untaken", 0, WRONG),
        (RingReader, "there", lambda ring: ring._length, WRONG),
    ],
    ids=[
        "the reader is not woken",
        "the writer has no fence",
        "the reader has no fence",
        "records are overwritten too early",
        "bytes are read too early",
    ],
)
def test_without_one_step_of_the_protocol_a_run_fails(
    owner: type,
    step: str,
    change: object,
    kinds: tuple[type[Exception], ...],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, step, change, raising=False)
    assert fails(lambda seed: one_transfer(seed, clock), range(100), *kinds)
