"""The simulated clock, against times worked out by hand."""

from __future__ import annotations

import pytest

from aiodist.errors import InvalidUsageError
from aiodist.simulate import NETWORKS, Network, Parameters
from aiodist.simulate.network import Rank

L, OVERHEAD, G, R = 10.0, 2.0, 0.5, 0.25
MODEL = Parameters(L, OVERHEAD, 0.0, G, R, eager=100)


async def one_message(rank: Rank, nbytes: int, wait: int = 0) -> None:
    if rank.rank == 0:
        await rank.send(1, rank.memory(nbytes))
    else:
        rank.work(wait)
        await rank.recv(0, rank.memory(nbytes))


def test_a_message_takes_overhead_latency_its_bytes_and_overhead() -> None:
    network = Network(2, MODEL)
    assert network.run(lambda rank: one_message(rank, 40)) == OVERHEAD + L + 40 * G + OVERHEAD
    assert (
        network.ranks[0].clock == OVERHEAD + 40 * G
    )  # its memory is free when the last byte has left


def test_a_late_receiver_finds_the_message() -> None:
    network = Network(2, MODEL)
    assert network.run(lambda rank: one_message(rank, 40, 400)) == 400 * R + OVERHEAD


def test_a_long_message_waits_for_its_receive() -> None:
    network = Network(2, MODEL)
    taken = network.run(lambda rank: one_message(rank, 200, 400))
    assert taken == 400 * R + L + L + 200 * G + OVERHEAD  # the grant goes back, then the bytes come


def test_messages_to_one_rank_share_its_link() -> None:
    async def all_to_zero(rank: Rank) -> None:
        if rank.rank:
            await rank.send(0, rank.memory(40))
        else:
            receives = [rank.recv(src, rank.memory(40)) for src in (1, 2, 3)]
            for received in receives:
                await received

    network = Network(4, MODEL)
    assert network.run(all_to_zero) == OVERHEAD + L + 3 * 40 * G + OVERHEAD


def test_messages_from_one_rank_follow_each_other_at_the_gap() -> None:
    async def zero_to_all(rank: Rank) -> None:
        if rank.rank:
            await rank.recv(0, rank.memory(0))
        else:
            sends = [rank.send(dst, rank.memory(0)) for dst in (1, 2, 3)]
            for sent in sends:
                await sent

    network = Network(4, Parameters(L, OVERHEAD, 5.0, G, R))
    assert (
        network.run(zero_to_all) == OVERHEAD + 2 * 5.0 + L + OVERHEAD
    )  # the gap is longer than the overhead


def test_a_receive_without_memory_gets_some() -> None:
    async def program(rank: Rank) -> None:
        if rank.rank == 0:
            await rank.send(1, rank.memory(40))
        else:
            assert len(await rank.recv_new(0)) == 40

    Network(2, MODEL).run(program)


def test_ranks_that_wait_for_ever_are_an_error() -> None:
    async def program(rank: Rank) -> None:
        await rank.recv(1 - rank.rank, rank.memory(0))

    with pytest.raises(RuntimeError, match="2 of 2 ranks wait for messages that never come"):
        Network(2, MODEL).run(program)


def test_an_error_of_a_rank_is_raised() -> None:
    async def program(rank: Rank) -> None:
        rank.memory(4)[:2] = rank.memory(3)

    with pytest.raises(ValueError, match="3 bytes do not fill 2"):
        Network(2, MODEL).run(program)


def test_a_malformed_network_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match="at least"):
        Network(0, NETWORKS["host"])
    with pytest.raises(InvalidUsageError, match="latency"):
        Parameters(-1.0, OVERHEAD, 0.0, G, R)
