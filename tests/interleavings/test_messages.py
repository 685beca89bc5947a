"""Messages of two ranks that share memory, in each order of their accesses that a seed draws.

Inboxes, outboxes, rings and direct reads are those of the product, the ranks those of `tests.p2p.exchange`.
Another rank may go on at each access of a ring's control words and around each read of a process's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from aiodist.p2p import shm_progress, shm_receiver, shm_sender
from aiodist.p2p.direct_receiver import DirectReceiver
from aiodist.p2p.shm_receiver import ShmReceiver
from aiodist.p2p.spin_policy import SpinPolicy
from aiodist.shm import message_ring
from aiodist.shm.message_ring import RingEnd, RingWriter
from aiodist.shm.process_memory import ProcessMemory
from aiodist.transport.base_transport import OnSent
from tests.interleavings.clock import Clock
from tests.interleavings.scheduler import Scheduler, Stuck
from tests.interleavings.seeds import BLOCKS, WRONG, fails, seeds
from tests.p2p import pairs
from tests.p2p.exchange import LENGTHS, Exchange, key_of, use_small_sizes
from tests.p2p.pairs import Side, Stream
from tests.p2p.pairs import content as content_of

SHARED_BYTES = 1 << 20
NEVER, ONE_MESSAGE, SEVERAL = -1, 64, 400
"""`shm_sender.RING_BYTES`: large messages are read directly, or some of them go into the ring."""


class Points:
    """Where the other rank may go on."""

    def __init__(self) -> None:
        self.scheduler: Scheduler | None = None

    def __call__(self, *_: object) -> None:
        if self.scheduler is not None:
            self.scheduler.point()


class ControlWords:
    """The control words of a ring, each of which is loaded and stored at once."""

    def __init__(self, words: memoryview, point: Points) -> None:
        self._words = words
        self._point = point

    def __getitem__(self, word: int) -> int:
        self._point()
        return int(self._words[word])

    def __setitem__(self, word: int, value: int) -> None:
        self._point()
        self._words[word] = value
        self._point()

    def release(self) -> None:
        self._words.release()


class LateStream(Stream):
    """A stream whose sender hears later, in its own program, that its bytes have gone."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.sent: list[Callable[[], None]] = []

    def send(self, parts: Sequence[memoryview | bytes], on_sent: OnSent | None = None) -> None:
        def later(error: BaseException | None) -> None:
            assert on_sent is not None
            self.sent.append(partial(on_sent, error))

        super().send(parts, None if on_sent is None else later)


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Points:
    """Small sizes, and points in the product's code."""
    use_small_sizes(monkeypatch)
    monkeypatch.setattr(shm_sender, "PIECE_BYTES", 16)
    monkeypatch.setattr(message_ring, "SHORT", 12)
    monkeypatch.setattr(shm_receiver, "NEAR_SECONDS", shm_progress.NEAR_SECONDS)
    monkeypatch.setattr(pairs, "Stream", LateStream)
    points = Points()
    make, read = RingEnd.__init__, ProcessMemory.read

    def make_end(end: RingEnd, rank: int, segment: memoryview, *tables: memoryview) -> None:
        words: list[Any] = [ControlWords(table, points) for table in tables]
        make(end, rank, segment, *words)

    def read_between(memory: ProcessMemory, there: int, here: int, nbytes: int) -> None:
        points()
        read(memory, there, here, nbytes)
        points()

    monkeypatch.setattr(RingEnd, "__init__", make_end)
    monkeypatch.setattr(ProcessMemory, "read", read_between)
    monkeypatch.setattr(SpinPolicy, "yield_core", points)
    return points


class InterleavedExchange(Exchange):
    """An exchange in which each side has a program of its own."""

    def __init__(self, seed: int, scheduler: Scheduler) -> None:
        super().__init__(seed, SHARED_BYTES)
        self.scheduler = scheduler
        self.tags = self.random.sample(list(LENGTHS), self.random.randint(1, len(LENGTHS)))
        self.lengths = {tag: LENGTHS[tag] for tag in self.tags}
        self.soon: list[list[Callable[[], None]]] = [[], []]
        self.is_idle = [False, False]
        self.has_ended = [False, False]
        self.n_steps = [0, 0]
        self.side_weights = [self.draw_weights() for _ in self.sides]
        is_active = self.random.random() < 0.5
        for side, soon in zip(self.sides, self.soon, strict=True):
            side.spin_policy._call_soon = soon.append
            side.spin_policy.active = is_active
        self.acting = 0

    def draw_weights(self) -> list[int]:
        """Return how often each action of `act` comes. The last one always may."""
        return [*(self.random.choice([0, 1, 3, 9]) for _ in range(6)), 1]

    def direction(self) -> tuple[int, Side]:
        return self.acting, self.sides[self.acting]

    def act(self, number: int) -> None:
        """Do something on side ``number``."""
        actions: list[Callable[[], object]] = [
            partial(self.in_direction, number, self.send),
            partial(self.in_direction, 1 - number, self.recv),
            partial(self.in_direction, number, self.cancel_receive),
            partial(self.in_direction, number, self.cancel_send),
            partial(self.deliver_to, number),
            partial(self.run_all, self.soon[number]),
            partial(self.run_all, self.sent_by(number)),
        ]
        self.n_steps[number] += 1
        self.random.choices(actions, self.side_weights[number])[0]()
        self.check_window()
        self.scribble()

    def in_direction(self, number: int, action: Callable[[], object]) -> None:
        """Do ``action`` with side ``number`` as its `direction`."""
        self.acting = number
        action()

    def sent_by(self, number: int) -> list[Callable[[], None]]:
        stream = self.sides[number].stream
        assert isinstance(stream, LateStream)
        return stream.sent

    def deliver_to(self, number: int) -> None:
        self.sides[1 - number].stream.push(self.random.choice([1, 10, 41, 100, 300, 2000]))

    def run_all(self, calls: list[Callable[[], None]]) -> None:
        """Run those that are there now."""
        for _ in range(len(calls)):
            calls.pop(0)()

    def where(self, number: int) -> str:
        """Return what side ``number`` has done, and what it waits for."""
        return (
            f"side {number}: {self.n_steps[number]} steps of weights {self.side_weights[number]}, "
            f"idle: {self.is_idle[number]}, in its stream {self.sides[number].stream.queued()} bytes"
        )

    def has_work(self, number: int) -> bool:
        stream = self.sides[1 - number].stream
        return bool(self.soon[number] or self.sent_by(number) or stream.queue)

    def turn_until(self, number: int, condition: Callable[[], object]) -> None:
        """Let side ``number`` do what comes until ``condition()`` holds."""
        while True:
            self.is_idle[number] = not self.has_work(number)
            if condition():
                return
            if self.is_idle[number]:
                self.scheduler.sleep_until(lambda: self.has_work(number) or condition())
            else:
                self.run_all(self.sent_by(number))
                self.run_all(self.soon[number])
                self.deliver_to(number)

    def is_over(self) -> bool:
        return all(self.is_idle) and not any(map(self.has_work, range(2)))

    def at_random(self, number: int, n_steps: int) -> None:
        """The program of side ``number``."""
        for _ in range(n_steps):
            self.act(number)
        self.turn_until(number, self.is_over)

    def by_turns(self, number: int, n_messages: int) -> None:
        """The program of side ``number``: the sides send each other a message by turns."""
        side = self.sides[number]
        for count in range(n_messages):
            self.n_steps[number] += 1
            tag = self.tags[count % len(self.tags)]
            content = bytes([count % 256]) * LENGTHS[tag]
            if count % 2 == number:
                side.send(key_of(tag), content)
            else:
                recv = side.recv(key_of(tag), len(content))
                self.turn_until(number, lambda recv=recv: recv.done)
                assert content_of(recv) == content
        self.has_ended[number] = True
        self.turn_until(number, lambda: all(self.has_ended))


def run(
    seed: int,
    clock: Clock,
    points: Points,
    program: Callable[[InterleavedExchange, int, int], None],
    lengths: Sequence[int],
) -> None:
    """Run ``program`` on both sides. ``lengths``: of programs, one of which is drawn."""
    scheduler = Scheduler(seed, 2, clock)
    clock.tick = scheduler.random.choice([1e-6, 6e-4])
    points.scheduler = None
    exchange = InterleavedExchange(seed, scheduler)
    points.scheduler = scheduler
    length = scheduler.random.choice(lengths)
    for number in range(2):
        scheduler.spawn(partial(program, exchange, number, length))
    try:
        scheduler.run()
        points.scheduler = None
        exchange.check_end()
    except BaseException as error:
        what = f"seed {seed}: {program.__name__}, length {length}, tags {exchange.tags}"
        error.add_note("\n".join([what, *map(exchange.where, range(2))]))
        raise
    finally:
        points.scheduler = None
        exchange.pair.close()


AT_RANDOM, BY_TURNS = InterleavedExchange.at_random, InterleavedExchange.by_turns


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("ring_bytes", [NEVER, ONE_MESSAGE, SEVERAL])
def test_every_message_arrives_once_and_in_order(
    ring_bytes: int, block: int, clock: Clock, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm_sender, "RING_BYTES", ring_bytes)
    for seed in seeds(block, 150):
        run(seed, clock, points, AT_RANDOM, (2, 3, 5, 8))
    for seed in seeds(block, 30):
        run(seed, clock, points, AT_RANDOM, (20, 60, 150))
        run(seed, clock, points, BY_TURNS, (20, 60))


def sleep_without_another_look(receiver: ShmReceiver) -> None:
    """Do as `ShmReceiver._sleep_if_waiting` without the look after the ring is armed."""
    ring = receiver.ring
    if ring is not None and receiver._incoming is None and receiver._is_wanted():
        ring.arm()


def arm_without_another_look(receiver: ShmReceiver) -> bool:
    """Do as `ShmReceiver.arm` without the look after the ring is armed."""
    assert receiver.ring is not None
    receiver.ring.arm()
    return True


def drain_without_another_look(receiver: ShmReceiver) -> None:
    """Do as `ShmReceiver.drain_before_stream`, without the look at the records behind the message."""
    while receiver._incoming is not None:
        receiver._go_on()
    while receiver._next(wanted=False):
        pass
    receiver._turn += 1


@pytest.mark.parametrize(
    ("owner", "step", "change", "program", "ring_bytes"),
    [
        (ShmReceiver, "_sleep_if_waiting", sleep_without_another_look, BY_TURNS, SEVERAL),
        (ShmReceiver, "arm", arm_without_another_look, BY_TURNS, SEVERAL),
        (ShmReceiver, "drain_before_stream", drain_without_another_look, AT_RANDOM, SEVERAL),
        (RingWriter, "must_wake", lambda _: False, BY_TURNS, SEVERAL),
        (DirectReceiver, "is_not_withdrawn", lambda _: True, AT_RANDOM, NEVER),
    ],
    ids=[
        "a receiver does not look again before it sleeps",
        "a receiver does not look again in the middle of a message",
        "a receiver does not look again after a message of the stream",
        "a receiver is not woken",
        "a receiver does not ask whether the sender has taken a message back",
    ],
)
def test_without_one_step_of_the_protocol_a_run_fails(
    owner: type,
    step: str,
    change: Callable[[Any], object],
    program: Callable[[InterleavedExchange, int, int], None],
    ring_bytes: int,
    clock: Clock,
    points: Points,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shm_sender, "RING_BYTES", ring_bytes)
    monkeypatch.setattr(owner, step, change)
    assert fails(lambda seed: run(seed, clock, points, program, (20,)), range(1000), *WRONG, Stuck)
