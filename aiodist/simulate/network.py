"""Ranks on a simulated clock: when each message would leave and arrive.

A rank has one thread. Each message it sends or receives costs it the overhead, what it combines or
copies costs it time too, and nothing else does. It has a link for sending and one for receiving,
which carry one message after the other.

Where all ranks do the same, seen from their own place, it is enough to run one of them: what it
receives is what it has sent itself, to the rank that stands to it as it stands to the sender. So
65,536 ranks cost no more than one.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from typing import Any, cast

from aiodist.collectives.host_topology import HostTopology
from aiodist.completion import Driver, Pending
from aiodist.errors import InvalidUsageError
from aiodist.simulate.loggps import Parameters

Relation = Callable[[int, int, int], Any]
"""(from, to, ranks) -> how ``to`` stands to ``from``: equal for all pairs that do the same."""


def shifted(start: int, end: int, ranks: int) -> int:
    """Ranks on a circle: how far it is from one to the other."""
    return (end - start) % ranks


def flipped(start: int, end: int, ranks: int) -> int:
    """Ranks at the corners of a cube: the directions in which they differ."""
    return start ^ end


def apart(start: int, end: int, ranks: int) -> tuple[int, int]:
    """No two pairs are alike."""
    return start, end


class _Exchange:
    """The k-th message between two ranks, and the k-th receive for it; either may come first."""

    __slots__ = (
        "announced",
        "arrived",
        "dst",
        "nbytes",
        "path",
        "posted",
        "received",
        "receiver",
        "sender",
        "sent",
    )

    def __init__(self) -> None:
        self.sender: Rank | None = None
        self.receiver: Rank | None = None
        self.path: Parameters | None = None
        self.dst = 0
        self.nbytes = 0
        self.announced = 0.0  # a long message: when the receiver knows of it
        self.posted = 0.0
        self.arrived = False
        self.sent: Pending[None] = Pending()
        self.received: Pending[Any] = Pending()


class Network:
    """Runs one program on ``size`` ranks; afterwards each `Rank` has its time and traffic."""

    def __init__(
        self,
        size: int,
        parameters: Parameters,
        relation: Relation = apart,
        topology: HostTopology | None = None,
        intra_host: Parameters | None = None,
    ) -> None:
        """``relation`` other than `apart`: rank 0 runs alone, for all.

        The program must be the same for all ranks, as seen through that relation.
        ``topology``: several ranks live on a host, and share its link to the others; what they send
        each other costs them ``intra_host``, and no rank sends faster than that. Not with a relation
        other than `apart`.
        """
        if size < 1:
            raise InvalidUsageError(f"a network of {size} ranks: there must be one at least")
        self.size = size
        self.parameters = parameters
        self.ranks = [Rank(self, rank) for rank in range(size if relation is apart else 1)]
        self._relation = relation
        self._places = topology
        self.intra_host = intra_host or parameters
        if topology is not None:
            for ranks in topology.hosts:
                wire = Link()
                for rank in ranks:
                    self.ranks[rank].wire = wire
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()  # events of one moment come in the order they were made
        self._unreceived: dict[Any, deque[_Exchange]] = defaultdict(deque)
        self._unsent: dict[Any, deque[_Exchange]] = defaultdict(deque)

    def run(self, program: Callable[[Rank], Coroutine[Any, Any, None]]) -> float:
        """Run ``program(rank)`` on every rank from time 0; seconds until the last has ended.

        Raises what a rank raises, and RuntimeError where ranks wait for ever.
        """
        ended: list[BaseException | None] = []
        for rank in self.ranks:
            Driver(program(rank), lambda _, error: ended.append(error)).start()
        while self._events:
            when, _, event = heapq.heappop(self._events)
            event(when)
        for error in ended:
            if error is not None:
                raise error
        if len(ended) < len(self.ranks):
            left = len(self.ranks) - len(ended)
            raise RuntimeError(f"{left} of {self.size} ranks wait for messages that never come")
        return max(rank.clock for rank in self.ranks)

    # -- for the ranks

    def send(self, sender: Rank, dst: int, nbytes: int) -> Pending[None]:
        """Send a message of ``sender``, which is ready at the sender's clock."""
        pair = self._relation(sender.rank, dst, self.size)
        exchange = _couple(self._unsent[pair], self._unreceived[pair])
        exchange.sender, exchange.nbytes = sender, nbytes
        exchange.dst = dst if len(self.ranks) == self.size else 0
        if self.is_near(sender.rank, dst):
            exchange.path = self.intra_host
        if nbytes <= self._model(exchange).eager:
            self._at(sender.clock, lambda now: self._transmit(exchange, now))
        else:
            exchange.announced = sender.clock + self._model(exchange).latency
            self._grant(exchange)
        return exchange.sent

    def is_near(self, rank: int, other: int) -> bool:
        """Return whether two ranks share a host, if there are several hosts."""
        topology = self._places
        return topology is not None and topology.host_of(rank) == topology.host_of(other)

    def receive(self, receiver: Rank, src: int) -> Pending[Any]:
        """Post a receive at the clock of ``receiver``; its value is the length."""
        pair = self._relation(src, receiver.rank, self.size)
        exchange = _couple(self._unreceived[pair], self._unsent[pair])
        exchange.receiver, exchange.posted = receiver, receiver.clock
        if exchange.arrived:
            self._at(receiver.clock, lambda now: self._deliver(exchange, now))
        elif exchange.nbytes > self._model(exchange).eager:
            self._grant(exchange)
        return exchange.received

    # -- inside

    def _at(self, when: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), event))

    def _grant(self, exchange: _Exchange) -> None:
        """Send a long message once its receiver knows of it and has answered."""
        if exchange.sender is not None and exchange.receiver is not None:
            told = max(exchange.announced, exchange.posted) + self._model(exchange).latency
            self._at(told, lambda now: self._transmit(exchange, now))

    def _transmit(self, exchange: _Exchange, now: float) -> None:
        model, sender = self._model(exchange), exchange.sender
        assert sender is not None  # who sends is known before anything moves
        own, wire = sender.link, sender.link if exchange.path else sender.wire
        start = max(now, own.outlet_free, wire.outlet_free)
        duration = exchange.nbytes * self._slowest(model)
        own.outlet_free = start + duration
        wire.outlet_free = start + max(model.gap, exchange.nbytes * model.per_byte)
        sender.resume(start + duration, exchange.sent)
        self._at(start + model.latency, lambda when: self._first_byte_arrives(exchange, when))

    def _first_byte_arrives(self, exchange: _Exchange, now: float) -> None:
        """Take in the first byte. The receiver's link may be busy with another message."""
        receiver = self.ranks[exchange.dst]
        model = self._model(exchange)
        own, wire = receiver.link, receiver.link if exchange.path else receiver.wire
        start = max(now, own.inlet_free, wire.inlet_free)
        end = start + exchange.nbytes * self._slowest(model)
        own.inlet_free = end
        wire.inlet_free = start + exchange.nbytes * model.per_byte
        self._at(end, lambda when: self._arrive(exchange, when))

    def _slowest(self, model: Parameters) -> float:
        """Return a rank's seconds per byte. A rank that shares a wire is no faster than its memory."""
        return (
            model.per_byte
            if self._places is None
            else max(model.per_byte, self.intra_host.per_byte)
        )

    def _model(self, exchange: _Exchange) -> Parameters:
        return exchange.path or self.parameters

    def _arrive(self, exchange: _Exchange, now: float) -> None:
        exchange.arrived = True
        if exchange.receiver is not None:
            self._deliver(exchange, now)

    def _deliver(self, exchange: _Exchange, now: float) -> None:
        receiver = exchange.receiver
        assert receiver is not None  # a receive is posted
        receiver.clock = max(receiver.clock, now) + self._model(exchange).overhead
        exchange.received.complete(exchange.nbytes)


class Link:
    """When each direction is free for the next message."""

    __slots__ = ("inlet_free", "outlet_free")

    def __init__(self) -> None:
        self.outlet_free = 0.0
        self.inlet_free = 0.0


class Rank:
    """One rank: the `Channel` of the algorithm that it runs, its clock, and what it has sent."""

    def __init__(self, network: Network, rank: int) -> None:
        self.rank = rank
        self.size = network.size
        self.clock = 0.0
        """Seconds: this rank has been busy, or waited, until then."""
        self.messages = 0
        self.nbytes = 0
        self.inter_host_traffic = [0, 0]
        """Messages and bytes that it has sent to other hosts."""
        self.link = self.wire = Link()
        """Its own, and the one by which other hosts are reached."""
        self._network = network

    def work(self, nbytes: int) -> None:
        """Add the time that combining or copying ``nbytes`` takes."""
        self.clock += nbytes * self._network.parameters.per_byte_reduced

    def resume(self, when: float, pending: Pending[None]) -> None:
        """Go on at ``when`` with what waits for ``pending``."""

        def go_on(now: float) -> None:
            self.clock = max(self.clock, now)
            pending.complete(None)

        self._network._at(when, go_on)

    def memory(self, nbytes: int) -> memoryview:
        """Return a `SimulatedView` as an algorithm's memory: it is sliced and filled, and has a length."""
        return cast("memoryview", SimulatedView(nbytes, self.work))

    # -- collectives.Channel

    def send(self, dst: int, data: memoryview) -> Pending[None]:
        network = self._network
        self.messages += 1
        self.nbytes += len(data)
        if network.is_near(self.rank, dst):
            self.clock += network.intra_host.overhead
        else:
            self.clock += network.parameters.overhead
            self.inter_host_traffic[0] += 1
            self.inter_host_traffic[1] += len(data)
        return network.send(self, dst, len(data))

    def recv(self, src: int, into: memoryview) -> Pending[None]:
        return self._network.receive(self, src)

    def recv_new(self, src: int) -> Pending[memoryview]:
        arrived: Pending[memoryview] = Pending()
        length = self._network.receive(self, src)

        def hand_over() -> None:
            assert length.value is not None  # it has arrived
            arrived.complete(self.memory(length.value))

        length.callback = hand_over
        return arrived


class SimulatedView:
    """Stands for a memoryview of bytes in an algorithm that is simulated.

    ``charge(nbytes)`` is told of every byte that is copied into it.
    """

    __slots__ = ("_charge", "_length")

    def __init__(self, length: int, charge: Callable[[int], None]) -> None:
        self._length = length
        self._charge = charge

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> SimulatedView:
        start, end, _ = part.indices(self._length)
        return SimulatedView(max(0, end - start), self._charge)

    def __setitem__(self, part: slice, data: Any) -> None:
        start, end, _ = part.indices(self._length)
        if max(0, end - start) != len(data):
            raise ValueError(f"{len(data)} bytes do not fill {max(0, end - start)}")
        self._charge(len(data))


def _couple(waiting: deque[_Exchange], others: deque[_Exchange]) -> _Exchange:
    """Return the oldest exchange that lacks this half, or a new one, which lacks the other half."""
    if waiting:
        return waiting.popleft()
    exchange = _Exchange()
    others.append(exchange)
    return exchange
