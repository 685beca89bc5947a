"""What `aiodist top` computes from the answers of the ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import aiodist as dist
from aiodist.errors import ProtocolError
from aiodist.groups.world import current_world
from aiodist.observe.load import loads, slowest
from aiodist.observe.rank_report import Identity
from aiodist.observe.usage import MOST_SPANS, Current, Span, Usage, decode_usage
from aiodist.testing import run_ranks

SECOND = 1_000_000_000


def usage(rank: int, clock: int, *spans: Span, started: int = 0, begun: int = 0) -> Usage:
    """The answer of a rank of three at ``clock`` seconds; group 7 has them all."""
    return Usage(
        identity=Identity("job", rank, 3, "here", "kernel", 100 + rank),
        clock=clock * SECOND,
        begun=begun,
        cpu_seconds=clock / 2,
        memory=1,
        peak_memory=1,
        place="",
        current=None,
        started=((7, started),),
        spans=spans,
        samples=(),
    )


def collective(sequence: int, start: float, end: float, nbytes: int = 0) -> Span:
    return Span(7, sequence, -1, nbytes, nbytes, int(start * SECOND), int(end * SECOND))


def test_the_rank_that_enters_last_holds_up_the_others() -> None:
    before = {rank: usage(rank, 10) for rank in range(3)}
    now = {
        0: usage(0, 12, collective(0, 10.0, 11.1, 100), started=1, begun=1),
        1: usage(1, 12, collective(0, 11.0, 11.1, 100), started=1, begun=1),
        2: usage(2, 12, collective(0, 10.5, 11.1, 100), started=1, begun=1),
    }
    found = loads(before, now)
    assert slowest(found) == 1
    assert [found[rank].waiting for rank in range(3)] == pytest.approx([0.5, 0.0, 0.25])
    assert [found[rank].moving for rank in range(3)] == pytest.approx([0.05] * 3)
    assert found[1].holds_up == pytest.approx((1.0 + 0.5) / 2 / 2)
    assert found[0].sent == pytest.approx(50)
    assert found[0].cpu == pytest.approx(0.5)


def test_a_rank_that_has_not_entered_is_waited_for_until_now() -> None:
    before = {rank: usage(rank, 10) for rank in range(3)}
    now = {
        0: usage(0, 12, collective(4, 9.0, 0), started=5),
        1: usage(1, 12, started=4),
        2: usage(2, 12, collective(4, 11.0, 0), started=5),
    }
    found = loads(before, now)
    assert [found[rank].waiting for rank in range(3)] == pytest.approx([1.0, 0.0, 0.5])
    assert slowest(found) == 1
    del now[1]  # it does not answer
    current = Current("all_reduce()", 3.0, (1,))
    found = loads(before, {rank: replace(each, current=current) for rank, each in now.items()})
    assert [found[rank].waiting for rank in (0, 2)] == pytest.approx([1.0, 0.5])
    assert slowest(found) is None


def test_the_last_rank_of_a_chain_is_the_slowest() -> None:
    def receive(peer: int) -> Span:
        return Span(7, -1, peer, 0, 0, 10 * SECOND, 0)

    before = {rank: usage(rank, 10) for rank in range(3)}
    now = {0: usage(0, 12, receive(1)), 1: usage(1, 12, receive(2)), 2: usage(2, 12)}
    found = loads(before, now)
    assert [found[rank].holds_up for rank in range(3)] == pytest.approx([0.0, 0.5, 0.5])
    assert slowest(found) == 2


def test_a_circle_of_waits_names_the_rank_that_most_wait_for() -> None:
    def receive(peer: int) -> Span:
        return Span(7, -1, peer, 0, 0, 10 * SECOND, 0)

    before = {rank: usage(rank, 10) for rank in range(3)}
    now = {rank: usage(rank, 12, receive(peer)) for rank, peer in enumerate((1, 0, 1))}
    assert slowest(loads(before, now)) == 1


def test_a_rank_that_answers_before_the_others_is_not_absent_from_what_came_after() -> None:
    """Two ranks enter every operation together; rank 1 tells of those until 11.9 only."""
    steps = [collective(number, 10 + number / 100, 10.009 + number / 100) for number in range(200)]
    early = [span for span in steps if span.finished <= 11.9 * SECOND]
    before = {rank: usage(rank, 10) for rank in range(2)}
    now = {0: usage(0, 12, *steps, started=200), 1: usage(1, 12, *early, started=len(early))}
    now[1] = replace(now[1], clock=int(11.9 * SECOND))
    found = loads(before, now)
    assert [found[rank].waiting for rank in range(2)] == [0.0, 0.0]
    assert slowest(found) is None


def test_a_rank_whose_process_was_replaced_has_no_rates_below_zero() -> None:
    before = {0: usage(0, 10, begun=1000), 1: usage(1, 10, begun=1000)}
    other = usage(1, 12, begun=5)
    now = {
        0: usage(0, 12, begun=1010),
        1: replace(other, identity=replace(other.identity, pid=7), cpu_seconds=0.5),
    }
    found = loads(before, now)
    assert found.keys() == {0}  # the replacement has its first load after its second answer
    assert found[0].operations == 5


def test_more_operations_than_an_answer_holds_are_a_sample() -> None:
    spans = [collective(n, 11 + n / 1024, 11 + (n + 1) / 1024, 10) for n in range(MOST_SPANS)]
    now = {0: usage(0, 12, *spans, started=9000, begun=9000)}
    found = loads({0: usage(0, 10)}, now)
    assert found[0].is_sample
    assert found[0].operations == pytest.approx(4500)
    assert found[0].sent == pytest.approx(45_000)
    assert 0.4 < found[0].moving < 0.6


async def test_an_answer_has_the_bytes_of_each_operation() -> None:
    volumes: dict[int, list[tuple[int, int]]] = {}

    async def main(rank: int) -> None:
        four, whole = np.ones(4, np.float32), np.ones(12, np.float32)
        await dist.all_reduce(four)
        await dist.broadcast(four, 1)
        await dist.reduce(four, 1)
        await dist.gather(four, [four.copy() for _ in range(3)] if rank == 1 else None, dst=1)
        await dist.scatter(four, [four.copy() for _ in range(3)] if rank == 1 else None, src=1)
        await dist.all_gather_into_tensor(whole, four)
        await dist.reduce_scatter_tensor(four, whole)
        await dist.all_to_all_single(np.ones(12, np.float32), whole)
        await dist.barrier()
        if rank == 0:
            await dist.send(four, 1)
        elif rank == 1:
            await dist.recv(four, 0)
        observer = current_world().observer
        assert observer is not None
        told = decode_usage(observer.usage(60.0).encode())
        assert told.identity == observer.identity
        assert told.memory > 0
        assert told.current is None
        assert told.begun == len(told.spans)
        volumes[rank] = [(span.sent, span.received) for span in told.spans]

    await run_ranks(3, main)
    both = [(16, 16), (0, 0)]
    root = [both[0], (16, 0), (0, 16), (0, 32), (32, 0), (16, 32), (32, 16), (32, 32), both[1]]
    leaf = [both[0], (0, 16), (16, 0), (16, 0), (0, 16), (16, 32), (32, 16), (32, 32), both[1]]
    assert volumes == {0: [*leaf, (16, 0)], 1: [*root, (0, 16)], 2: leaf}


def test_an_answer_that_is_none_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no usage of a rank"):
        decode_usage(b"{}")
