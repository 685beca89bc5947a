"""Connections from outside the job: turned away, and nothing else happens."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.world import current_world
from aiodist.p2p.endpoint import Endpoint
from aiodist.testing.in_process import run_ranks
from aiodist.transport import pending_handshakes
from aiodist.transport.pending_handshakes import PendingHandshakes
from aiodist.transport.tcp import TcpTransport
from aiodist.wire.frames import FrameType, encode
from aiodist.wire.handshake import Handshake
from tests.limits import scaled, until
from tests.liveness.test_failure_detector import PATIENT, Rank
from tests.p2p.test_departure import EndpointEvents

GREETINGS = {
    "http": b"GET / HTTP/1.1\r\nHost: example.invalid\r\nAccept: everything there is\r\n\r\n",
    "random": os.urandom(4096),
    "zeros": bytes(4096),
    "another job": encode(FrameType.HELLO, meta=Handshake(b"another key", 1, 2, 1 << 20).start(0)),
    "a frame before the handshake": encode(FrameType.GOODBYE),
    "a payload before the handshake": encode(FrameType.EAGER, length=1 << 30),
}


async def speak(address: str, words: bytes) -> bytes:
    """What a listener answers to ``words`` until it hangs up."""
    host, _, port = address.removeprefix("tcp:").strip("/").rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        writer.write(words)
        if words.startswith(encode(FrameType.HELLO)[:2]) and len(words) < 200:
            answer = await reader.read(4096)
            writer.write(encode(FrameType.HELLO, meta=bytes(32)))  # a proof without the key
            return answer + await reader.read()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass


@pytest.mark.parametrize("greeting", GREETINGS)
async def test_a_stranger_is_turned_away_and_the_ranks_work_on(
    greeting: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(rank: int) -> None:
        if rank == 0:
            address = current_world().endpoint.rank_info.addresses[0]
            async with asyncio.timeout(scaled(10)):
                await speak(address, GREETINGS[greeting])
        data = np.ones(3)
        await dist.all_reduce(data)
        assert (data == 2).all()
        assert not current_world().endpoint._pending

    with caplog.at_level(logging.WARNING, "aiodist"):
        await run_ranks(2, main, "tcp")
    assert "turned a stranger away" in caplog.text


async def test_a_stranger_cannot_write_lines_of_its_own_into_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusal = encode(
        FrameType.REJECT, meta=b"no\nrank 1 is fine\r\x1b[2J\xe2\x80\xa8" + b"x" * 4000
    )

    async def main(rank: int) -> None:
        if rank == 0:
            address = current_world().endpoint.rank_info.addresses[0]
            async with asyncio.timeout(scaled(10)):
                await speak(address, refusal)
        await dist.barrier()

    with caplog.at_level(logging.WARNING, "aiodist"):
        await run_ranks(2, main, "tcp")
    (line,) = [each for each in caplog.messages if "refused this rank" in each]
    assert line.isprintable()
    assert len(line) < 1000


async def test_a_silent_stranger_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pending_handshakes, "HANDSHAKE_SECONDS", 0.05)

    async def main(rank: int) -> None:
        if rank == 0:
            address = current_world().endpoint.rank_info.addresses[0]
            async with asyncio.timeout(scaled(10)):
                assert await speak(address, b"") == b""
        await dist.barrier()

    with caplog.at_level(logging.WARNING, "aiodist"):
        await run_ranks(2, main, "tcp")
    assert "did not finish the handshake in time" in caplog.text


async def test_a_connection_whose_first_words_were_right_is_not_given_up_with_the_silent_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pending_handshakes, "HANDSHAKE_SECONDS", 0.01)

    class Connection:
        error: BaseException | None = None

        def abort(self, error: BaseException) -> None:
            self.error = error

    pending: PendingHandshakes[Connection] = PendingHandshakes("rank 0", 2)
    greeted, silent = Connection(), Connection()
    for each in (greeted, silent):
        pending.admit(each, "rank 1")
    pending.greeted(greeted, "rank 1")
    await until(lambda: silent.error)
    assert greeted.error is None
    pending.close(lambda connection: None)


async def test_too_many_strangers_lose_their_places_and_the_ranks_work_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pending_handshakes, "SPARE", 4)

    async def main(rank: int) -> None:
        if rank == 0:
            address = current_world().endpoint.rank_info.addresses[0]
            silent = [asyncio.create_task(speak(address, b"")) for _ in range(20)]
            async with asyncio.timeout(scaled(10)):
                done, _ = await asyncio.wait(silent, return_when=asyncio.FIRST_COMPLETED)
                while len(done) < 12:  # 20 less the places: 4 and two a rank
                    done, _ = await asyncio.wait(
                        silent, timeout=1, return_when=asyncio.ALL_COMPLETED
                    )
        data = np.ones(3)
        await dist.all_reduce(data)
        assert (data == 2).all()
        if rank == 0:
            for task in silent:
                task.cancel()
            await asyncio.gather(*silent, return_exceptions=True)

    with caplog.at_level(logging.WARNING, "aiodist"):
        await run_ranks(2, main, "tcp")
    assert caplog.text.count("is besieged") == 1


@pytest.mark.parametrize("kind", ["messages", "heartbeats"])
async def test_too_many_strangers_lose_their_places_before_the_ranks_meet(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(pending_handshakes, "SPARE", 1)
    if kind == "messages":
        events: Any = EndpointEvents()
        endpoint = Endpoint(0, 1, [TcpTransport("127.0.0.1")], events)
        (address,), close = (await endpoint.open()).addresses, endpoint.close
    else:
        watcher = Rank(0, 1, PATIENT)
        (address,), close = await watcher.open(), watcher.detector.leave
    silent = [asyncio.create_task(speak(address, b"")) for _ in range(5)]
    await until(
        lambda: sum(task.done() for task in silent) == 2
    )  # 5 less the places: 1 and two a rank
    await close()
    await asyncio.gather(*silent)


async def test_a_replayed_handshake_is_worth_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """An eavesdropper repeats the bytes that rank 1 once sent to rank 0."""

    async def main(rank: int) -> None:
        await dist.barrier()
        if rank == 0:
            endpoint = current_world().endpoint
            address = endpoint.rank_info.addresses[0]
            theirs = Handshake(endpoint.key, 1, 2, 1 << 20)
            hello = theirs.start(0)
            proof = theirs.receive(Handshake(endpoint.key, 0, 2, 1 << 20).receive(hello) or b"")
            assert proof is not None
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(encode(FrameType.HELLO, meta=hello))
            writer.write(encode(FrameType.HELLO, meta=proof))
            async with asyncio.timeout(scaled(10)):
                await reader.read()
            writer.close()
            await writer.wait_closed()
        await dist.barrier()

    with caplog.at_level(logging.WARNING, "aiodist"):
        await run_ranks(2, main, "tcp")
    assert caplog.text.count("turned a stranger away") == 1
    assert "does not know this job's key" in caplog.text


async def test_another_version_gets_a_refusal_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(rank: int) -> None:
        if rank == 0:
            endpoint = current_world().endpoint
            hello = bytearray(Handshake(endpoint.key, 1, 2, 1 << 20).start(0))
            hello[4:6] = b"\x63\x00"
            answer = await speak(
                endpoint.rank_info.addresses[0], encode(FrameType.HELLO, meta=bytes(hello))
            )
            assert b"install the same aiodist everywhere" in answer
        await dist.barrier()

    with caplog.at_level(logging.WARNING, "aiodist"):
        await run_ranks(2, main, "tcp")
    assert caplog.text.count("speaks version 99 of the protocol") == 1


async def test_a_newcomer_bears_the_connections_of_a_job_whose_size_it_does_not_know() -> None:
    pending: PendingHandshakes[Any] = PendingHandshakes("rank 7", -1)
    assert pending.limit > 2000
    pending.expect(4)
    assert pending.limit == pending_handshakes.SPARE + 2 * 4
