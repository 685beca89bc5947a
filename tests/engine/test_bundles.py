"""The engine over bundles of TCP streams: to it, they are one stream."""

from __future__ import annotations

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.world import current_world
from aiodist.testing.in_process import run_ranks
from aiodist.transport.base_transport import Transport
from aiodist.transport.striped import StripedConnection, StripedTransport
from tests.engine.conftest import outcome


def bundles(rank: int, transport: Transport) -> Transport:
    return StripedTransport(["127.0.0.1"], 3)


@pytest.mark.parametrize("size", [2, 4])
async def test_collectives_and_messages(size: int) -> None:
    async def main(rank: int) -> None:
        for length in (1, 50_000, 1_000_003):
            data = np.arange(length, dtype=np.float32) + rank
            await dist.all_reduce(data)
            wanted = np.arange(length, dtype=np.float32) * size + size * (size - 1) / 2
            assert np.allclose(data, wanted)
            into = np.zeros(length)
            sent = dist.isend(np.full(length, float(rank)), (rank + 1) % size)
            await dist.recv(into, (rank - 1) % size)
            await sent
            assert (into == (rank - 1) % size).all()
        connections = current_world().endpoint.connections()
        assert connections
        assert all(isinstance(each, StripedConnection) for each in connections)

    await run_ranks(size, main, "tcp", wrap=bundles, timeout=30)


async def test_a_broken_stream_is_a_lost_rank() -> None:
    async def main(rank: int) -> None:
        await dist.barrier()
        if rank == 0:
            for connection in current_world().endpoint.connections():
                assert isinstance(connection, StripedConnection)
                for sock in connection._bundle._sockets[1:2]:
                    sock.shutdown(2)
        error = await outcome(dist.all_reduce(np.ones(1_000_000)))
        assert isinstance(error, dist.PeerLostError), error
        assert error.rank == 1 - rank

    await run_ranks(2, main, "tcp", wrap=bundles, timeout=30)
