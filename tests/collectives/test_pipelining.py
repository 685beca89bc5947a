"""Under a simulated clock, pipelines take little longer than their bytes alone would.

A link carries one message at a time in each direction, once both the send and the receive are
posted; a rank's sends, receives and reductions take its own time.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque

import pytest

from aiodist.collectives import operations
from aiodist.collectives.select import Choice
from aiodist.completion import Driver, Pending

LATENCY = 20e-6
BANDWIDTH = 2.5e9
REDUCING = 8e9
POSTING = 10e-6
MEMORY = memoryview(bytearray(16 << 20))


class Clock:
    def __init__(self, size):
        self.size, self.now, self.number, self.events = size, 0.0, itertools.count(), []
        self.busy = [0.0] * size  # until when a rank computes
        self.out, self.inward = [0.0] * size, [0.0] * size  # until when its link carries
        self.sent, self.posted = defaultdict(deque), defaultdict(deque)

    def at(self, time, call):
        heapq.heappush(self.events, (time, next(self.number), call))

    def work(self, rank, seconds):
        self.busy[rank] = max(self.busy[rank], self.now) + seconds
        return self.busy[rank]

    def match(self, src, dst):
        if self.sent[src, dst] and self.posted[src, dst]:
            nbytes, sent_at, sent = self.sent[src, dst].popleft()
            posted_at, posted = self.posted[src, dst].popleft()
            start = max(sent_at, posted_at, self.out[src], self.inward[dst])
            self.out[src] = self.inward[dst] = end = start + nbytes / BANDWIDTH
            self.at(end, lambda: self.finish(src, sent))
            self.at(end + LATENCY, lambda: self.finish(dst, posted))

    def finish(self, rank, pending):
        if self.busy[rank] > self.now:
            self.at(self.busy[rank], lambda: self.finish(rank, pending))
        else:
            pending.complete(None)

    def run(self, program):
        """Seconds until the last rank has ended."""
        ends = []

        def on_done(value, error):
            if error is not None:
                raise error
            ends.append(self.now)

        for rank in range(self.size):
            Driver(program(TimedLine(self, rank)), on_done).start()
        while self.events:
            self.now, _, call = heapq.heappop(self.events)
            call()
        assert len(ends) == self.size
        return max(ends)


class TimedLine:
    itemsize = 4

    def __init__(self, clock, rank):
        self.clock, self.rank, self.size = clock, rank, clock.size

    def send(self, dst, data):
        pending = Pending()
        entry = len(data), self.clock.work(self.rank, POSTING), pending
        self.clock.sent[self.rank, dst].append(entry)
        self.clock.match(self.rank, dst)
        return pending

    def recv(self, src, into):
        pending = Pending()
        self.clock.posted[src, self.rank].append((self.clock.work(self.rank, POSTING), pending))
        self.clock.match(src, self.rank)
        return pending

    def __call__(self, acc, other, other_first=False):
        self.clock.work(self.rank, len(acc) / REDUCING)

    def into(self, a, b, out):
        self.clock.work(self.rank, len(a) / REDUCING)


def scratch(nbytes):
    return MEMORY[:nbytes]


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_ring_all_reduce(size):
    best = 2 * (size - 1) / size * len(MEMORY) / BANDWIDTH
    took = Clock(size).run(
        lambda line: operations.all_reduce(line, MEMORY, line, scratch, Choice("ring"))
    )
    assert best <= took < 1.03 * best


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_ring_reduce_scatter(size):
    block = len(MEMORY) // size
    blocks = [MEMORY[r * block : (r + 1) * block] for r in range(size)]
    best = (size - 1) * block / BANDWIDTH
    took = Clock(size).run(
        lambda line: operations.reduce_scatter(
            line, blocks, blocks[line.rank], line, scratch, Choice("ring", 256 << 10)
        )
    )
    assert best <= took < 1.03 * best


@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize("operation", ["broadcast", "reduce"])
def test_chain(operation, size):
    chunk = 128 << 10
    best = (len(MEMORY) + (size - 2) * chunk) / BANDWIDTH

    def program(line):
        if operation == "broadcast":
            return operations.broadcast(line, 0, MEMORY, Choice("chain", chunk))
        return operations.reduce(line, 0, MEMORY, line, scratch, Choice("chain", chunk))

    assert best <= Clock(size).run(program) < 1.1 * best
