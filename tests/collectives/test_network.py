"""The in-memory network itself: what it must notice, it notices."""

from __future__ import annotations

import pytest


def mem(text: bytes) -> memoryview:
    return memoryview(bytearray(text))


def test_a_deadlock_names_the_ranks_that_wait_for_each_other(network):
    async def program(line):
        await line.recv((line.rank + 1) % line.size, mem(b"x"))

    with pytest.raises(AssertionError, match="rank 0 waits for 1 messages from rank 1") as caught:
        network(3).run(program)
    assert "ranks [0, 1, 2] did not end" in str(caught.value)
    assert "rank 2 waits for 1 messages from rank 0" in str(caught.value)


def test_an_unreceived_message_stops_its_sender(network):
    async def program(line):
        if line.rank == 0:
            await line.send(1, mem(b"x"))

    with pytest.raises(AssertionError, match="rank 0 has 1 messages for rank 1 unreceived"):
        network(2).run(program)


def test_a_send_left_under_way_is_noticed(network):
    async def program(line):
        if line.rank == 0:
            line.send(1, mem(b"x"))
        else:
            await line.recv(0, mem(b"x"))

    with pytest.raises(AssertionError, match="rank 0 returned with 1 sends under way"):
        network(2).run(program)


def test_a_posted_receive_left_behind_is_noticed(network):
    async def program(line):
        line.recv(1 - line.rank, mem(b"x"))

    with pytest.raises(AssertionError, match="receives are left posted"):
        network(2).run(program)


def test_changing_data_under_way_is_noticed(network):
    async def program(line):
        if line.rank == 0:
            data = mem(b"x")
            sent = line.send(1, data)
            data[0] = 0
            await sent
        else:
            await line.recv(0, mem(b"x"))

    with pytest.raises(AssertionError, match="changed on its way"):
        network(2).run(program)


def test_a_wrong_length_is_noticed(network):
    async def program(line):
        if line.rank == 0:
            await line.send(1, mem(b"xy"))
        else:
            await line.recv(0, mem(b"x"))

    with pytest.raises(AssertionError, match="0 sent 2 bytes, 1 expected 1"):
        network(2).run(program)


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_a_pair_keeps_its_order(network, seed):
    async def program(line):
        if line.rank == 2:
            received = [mem(b"?") for _ in range(10)]
            for i, memory in enumerate(received):
                await line.recv(i % 2, memory)
            return b"".join(received)
        for i in range(5):
            await line.send(2, mem(bytes([97 + 2 * i + line.rank])))
        return b""

    assert network(3, seed).run(program)[2] == b"abcdefghij"


def test_seeds_change_the_order_between_pairs(network):
    def order(seed):
        arrivals = []

        async def program(line):
            if line.rank:
                await line.recv(0, mem(b"?"))
                arrivals.append(line.rank)
            else:
                sends = [line.send(rank, mem(b"x")) for rank in range(1, line.size)]
                for sent in sends:
                    await sent

        network(8, seed).run(program)
        return tuple(arrivals)

    assert order(None) == (1, 2, 3, 4, 5, 6, 7)
    assert len({order(seed) for seed in range(5)}) > 1
    assert order(3) == order(3)
