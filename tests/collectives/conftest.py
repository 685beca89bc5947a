"""Ranks in memory: a channel over deques, run step by step in an order that a seed decides.

It records which rank waits for which, the messages in flight, and what each rank has sent. A run
fails if it changes memory in flight, reads memory that was never written, or leaves messages behind.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from aiodist.completion import Driver, Pending

GARBAGE = 0xA5


class Stuck(AssertionError):
    """Some ranks wait for ever; the message says for which ranks."""


@dataclass
class Message:
    data: memoryview
    as_sent: bytes
    done: Pending[None]


@dataclass
class Receive:
    into: memoryview | None
    done: Pending[Any]


@dataclass
class Network:
    """All ranks of one run. ``seed`` None: first come, first served, and every send waits for its
    receive. A seed: messages of different pairs overtake each other, sends complete late, and
    half of them are buffered, which completes them before anybody receives."""

    size: int
    seed: int | None = None
    sent: dict[tuple[int, int], deque[Message]] = field(default_factory=lambda: defaultdict(deque))
    posted: dict[tuple[int, int], deque[Receive]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    events: list[Callable[[], None]] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    scratch: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = None if self.seed is None else random.Random(self.seed)
        self.messages = [0] * self.size
        self.nbytes = [0] * self.size
        self.scratch = [0] * self.size

    def match(self, pair: tuple[int, int]) -> None:
        """Called at every send and receive: the one that completes a couple schedules it."""
        self.events.append(lambda: self.deliver(pair))

    def deliver(self, pair: tuple[int, int]) -> None:
        message = self.sent[pair].popleft()
        receive = self.posted[pair].popleft()
        if not message.done.done:
            assert message.data == message.as_sent, f"data from {pair} changed on its way"
        if receive.into is None:
            value = memoryview(bytearray(message.as_sent))
        else:
            assert len(receive.into) == len(message.as_sent), (
                f"{pair[0]} sent {len(message.as_sent)} bytes, "
                f"{pair[1]} expected {len(receive.into)}"
            )
            receive.into[:] = message.as_sent
            value = None
        if not message.done.done:
            self.events.append(lambda: message.done.complete(None))
        receive.done.complete(value)

    def run(self, program: Callable[[Line], Coroutine[Any, Any, Any]]) -> list[Any]:
        """``program(line)`` on every rank; the results by rank."""
        results: dict[int, Any] = {}
        lines = [Line(self, rank) for rank in range(self.size)]

        def ended(line: Line) -> Callable[[Any, BaseException | None], None]:
            def on_done(value: Any, error: BaseException | None) -> None:
                assert line.rank not in results
                results[line.rank] = error or value
                line.check_ended()

            return on_done

        for line in lines:
            Driver(program(line), ended(line)).start()
        while self.events:
            turn = self.random.randrange(len(self.events)) if self.random else 0
            self.events.pop(turn)()
        errors = [result for result in results.values() if isinstance(result, BaseException)]
        if errors:
            raise errors[0]
        if len(results) < self.size:
            raise Stuck(self.report(set(range(self.size)) - set(results)))
        assert not any(self.sent.values()), "messages without a receive are left"
        assert not any(self.posted.values()), "receives are left posted"
        return [results[rank] for rank in range(self.size)]

    def report(self, waiting: set[int]) -> str:
        lines = [f"ranks {sorted(waiting)} did not end"]
        for (src, dst), receives in sorted(self.posted.items()):
            if receives:
                lines.append(f"rank {dst} waits for {len(receives)} messages from rank {src}")
        for (src, dst), messages in sorted(self.sent.items()):
            if messages:
                lines.append(f"rank {src} has {len(messages)} messages for rank {dst} unreceived")
        return "; ".join(lines)


class Line:
    """One rank's `Channel`."""

    def __init__(self, network: Network, rank: int) -> None:
        self.network = network
        self.rank = rank
        self.size = network.size
        self.sends: list[Pending[None]] = []

    def send(self, dst: int, data: memoryview) -> Pending[None]:
        network = self.network
        assert 0 <= dst < self.size, dst
        assert dst != self.rank, "a rank sends to itself"
        done: Pending[None] = Pending()
        pair = self.rank, dst
        if network.random and network.random.random() < 0.5:
            done.complete(None)
        network.messages[self.rank] += 1
        network.nbytes[self.rank] += len(data)
        waiting = len(network.sent[pair]) < len(network.posted[pair])
        network.sent[pair].append(Message(data, bytes(data), done))
        if waiting:
            network.match(pair)
        self.sends.append(done)
        return done

    def recv(self, src: int, into: memoryview) -> Pending[None]:
        assert isinstance(into, memoryview)
        return self._recv(src, into)

    def recv_new(self, src: int) -> Pending[memoryview]:
        return self._recv(src, None)

    def _recv(self, src: int, into: memoryview | None) -> Pending[Any]:
        network = self.network
        assert 0 <= src < self.size, src
        assert src != self.rank, "a rank receives from itself"
        done: Pending[Any] = Pending()
        pair = src, self.rank
        waiting = len(network.posted[pair]) < len(network.sent[pair])
        network.posted[pair].append(Receive(into, done))
        if waiting:
            network.match(pair)
        return done

    def scratch(self, nbytes: int) -> memoryview:
        self.network.scratch[self.rank] += nbytes
        return memoryview(bytearray([GARBAGE]) * nbytes)

    def check_ended(self) -> None:
        left = sum(not sent.done for sent in self.sends)
        assert not left, f"rank {self.rank} returned with {left} sends under way"


class NumpyReduction:
    """A `Reduction` over numpy's view of the memory."""

    def __init__(self, ufunc: np.ufunc, dtype: Any) -> None:
        self.ufunc = ufunc
        self.dtype = np.dtype(dtype)
        self.itemsize = self.dtype.itemsize

    def __call__(self, acc: memoryview, other: memoryview, other_first: bool = False) -> None:
        a, b = (other, acc) if other_first else (acc, other)
        self.into(a, b, acc)

    def into(self, a: memoryview, b: memoryview, out: memoryview) -> None:
        assert len(a) == len(b) == len(out)
        x, y, z = (np.frombuffer(m, self.dtype) for m in (a, b, out))
        self.ufunc(x, y, out=z)

    def of(self, a: memoryview, b: memoryview, out: memoryview) -> partial[None]:
        return partial(self.into, a, b, out)


@pytest.fixture(scope="session")
def network() -> type[Network]:
    """Makes networks: ``network(size, seed).run(program)``."""
    return Network


@pytest.fixture(scope="session")
def reduction() -> type[NumpyReduction]:
    """Makes reductions: ``reduction(np.add, "f4")``."""
    return NumpyReduction
