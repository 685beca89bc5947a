"""Connections from outside the job: turned away, and nothing else happens."""

from __future__ import annotations

import asyncio
import logging
import os

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.world import current_world
from aiodist.mesh import strangers
from aiodist.testing.in_process import run_ranks
from aiodist.wire.frames import FrameType, encode
from aiodist.wire.handshake import Handshake

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
            address = current_world().endpoint._listeners[0].address
            async with asyncio.timeout(10):
                await speak(address, GREETINGS[greeting])
        data = np.ones(3)
        await dist.all_reduce(data)
        assert (data == 2).all()
        assert not current_world().endpoint._strangers

    with caplog.at_level(logging.WARNING, "aiodist"):
        await run_ranks(2, main, "tcp")
    assert "turned a stranger away" in caplog.text


async def test_a_silent_stranger_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(strangers, "HANDSHAKE_SECONDS", 0.05)

    async def main(rank: int) -> None:
        if rank == 0:
            address = current_world().endpoint._listeners[0].address
            async with asyncio.timeout(10):
                assert await speak(address, b"") == b""
        await dist.barrier()

    with caplog.at_level(logging.WARNING, "aiodist"):
        await run_ranks(2, main, "tcp")
    assert "did not finish the handshake in time" in caplog.text
