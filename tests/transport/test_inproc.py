"""The hub is what in-process ranks share, and nothing else is."""

from __future__ import annotations

import asyncio

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError, InvalidUsageError
from aiodist.testing.check_transport import connected, turns
from aiodist.testing.sinks import Memory, Sent, Sink
from aiodist.transport import inproc
from aiodist.transport.base_transport import Connection, Transport
from aiodist.transport.inproc import InprocHub, InprocTransport


async def make() -> tuple[Transport, Transport]:
    hub = InprocHub()
    return InprocTransport(hub), InprocTransport(hub)


async def test_hubs_do_not_see_each_other() -> None:
    listener = await InprocTransport(InprocHub()).listen(lambda connection: connection.abort())
    with pytest.raises(DistNetworkError, match=f"{listener.address}.*on this hub"):
        await InprocTransport(InprocHub()).connect(listener.address, Deadline(1))


async def test_a_malformed_address_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match="inproc:N"):
        await InprocTransport(InprocHub()).connect("tcp://host:1", Deadline(1))


async def test_nothing_is_delivered_from_within_send() -> None:
    async with connected(make) as (a, b):
        sink, sent = Sink(), Sent()
        b.start(sink)
        a.send([b"abc"], sent)
        assert sink.data == b""
        assert sent.count == 0
        await sent.all_of(1)
        assert sink.data == b"abc"


async def test_a_turn_copies_a_bounded_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inproc, "COPY_BUDGET", 1000)
    async with connected(make) as (a, b):
        memory = Memory(10_000, pieces=(500,))
        b.start(memory)
        a.send([bytes(10_000)])
        await turns(3)
        assert 1000 <= len(memory.data) <= 4000
        await memory.full()


async def test_an_on_accept_that_raises_costs_its_connection_only() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    def on_accept(connection: Connection) -> None:
        raise KeyError("mine")

    transport = InprocTransport(InprocHub())
    listener = await transport.listen(on_accept)
    connection = await transport.connect(listener.address, Deadline(1))
    sink = Sink()
    connection.start(sink)
    await sink.ended()
    assert len(complaints) == 1
