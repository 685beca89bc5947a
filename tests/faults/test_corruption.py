"""A damaged byte in each place of a frame: what is noticed, and what is not.

The header and the metadata are checked by what they have to be; nothing checks the payload, which
is the network's affair (Ethernet's and TCP's checksums), or TLS's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.collectives.broadcast_shared import PIECE_BYTES
from aiodist.deadline import Deadline
from aiodist.groups import shm_collective
from aiodist.groups.shm_communicator import ShmCommunicator
from aiodist.groups.world import current_world
from aiodist.shm.group_area import COPIED
from aiodist.shm.message_ring import RESTART, WRITTEN, RingWriter
from aiodist.shm.shared_memory import SharedMemory
from aiodist.testing import Faults, FaultyTransport, run_ranks
from aiodist.testing.sinks import Sink
from aiodist.transport.base_transport import Connection
from aiodist.transport.transports import Transports
from aiodist.wire.frames import HEADER_BYTES
from tests.certificates import tls_files
from tests.engine.conftest import outcome
from tests.faults.in_memory import world_communicator
from tests.faults.proxy import damaging_proxy
from tests.limits import scaled
from tests.shm.damage import ring_bytes

META_BYTES = 15
"""A collective's fingerprint."""

TIMEOUT = 0.5
BITS = (0x01, 0x10, 0x80)


async def damaged(offset: int, bits: int) -> tuple[list[BaseException | None], list[float]]:
    """An all_reduce of which one byte of rank 1's first message is damaged: errors and results."""
    faults = Faults()
    data = [np.full(1, float(rank + 1)) for rank in range(2)]

    async def main(rank: int) -> BaseException | None:
        await dist.barrier()
        if rank == 1:
            faults.corrupt(offset, bits)
        error = await outcome(dist.all_reduce(data[rank], timeout=TIMEOUT))
        # A rank that had all it needed learns of the other one's error when it destroys the group.
        last = await outcome(dist.destroy_process_group())
        assert last is None or isinstance(last, dist.CollectiveMismatchError), last
        assert last is None or error is None
        return error

    def wrap(rank: int, transport):
        return FaultyTransport(transport, faults) if rank == 1 else transport

    errors = await run_ranks(2, main, wrap=wrap)
    return errors, [float(each[0]) for each in data]


@pytest.mark.parametrize("bits", BITS)
async def test_a_damaged_header_is_an_error_or_does_not_matter(bits: int) -> None:
    """Never a wrong result, and never a wait beyond the operation's timeout."""
    places = range(HEADER_BYTES + META_BYTES)
    async with asyncio.timeout(scaled(30)):
        found = await asyncio.gather(*(damaged(place, bits) for place in places))
    noticed = 0
    for place, (errors, results) in zip(places, found, strict=True):
        for error, result in zip(errors, results, strict=True):
            assert error is None or isinstance(error, dist.DistError), (place, errors)
            assert error is not None or result == 3, (place, errors, results)
        noticed += errors[0] is not None
    assert noticed >= len(places) // 2


async def test_a_damaged_payload_is_not_noticed() -> None:
    """Stated in docs/reliability.md, with what to do about it."""
    errors, results = await damaged(HEADER_BYTES + META_BYTES + 6, 0x10)
    assert errors == [None, None]
    assert results[0] != 3


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch) -> dict[ShmCommunicator, tuple[int, int]]:
    """Map a communicator to the word of its own slot to damage at publication, and the bits to flip."""
    damage: dict[ShmCommunicator, tuple[int, int]] = {}
    announce = shm_collective.announce

    def damaged(mine: memoryview, tag: int, *rest: Any) -> None:
        announce(mine, tag, *rest)
        for communicator, (word, flip) in damage.items():
            if communicator.mine is mine:
                mine[tag + word] ^= flip

    monkeypatch.setattr(shm_collective, "announce", damaged)
    return damage


@pytest.mark.parametrize("bits", [0x01, 0x80])
async def test_a_damaged_word_in_shared_memory_is_an_error_or_does_not_matter(
    bits: int, damage: dict[ShmCommunicator, tuple[int, int]]
) -> None:
    """Damage each byte of a slot's words: tag, fingerprint and length, as rank 1 publishes them."""

    async def one(place: int) -> list[BaseException | None]:
        async def main(rank: int) -> BaseException | None:
            await dist.barrier()
            if rank == 1:
                damage[world_communicator()] = place // 8, bits << place % 8 * 8
            data = np.full(1, float(rank + 1))
            error = await outcome(dist.all_reduce(data, timeout=TIMEOUT))
            assert error is None or isinstance(error, dist.DistError), (place, error)
            assert error is not None or data[0] == 3, place
            damage.clear()
            return error

        return await run_ranks(2, main, "shm")

    async with asyncio.timeout(scaled(30)):
        found = [await one(place) for place in range(32)]
    assert all(any(errors) for errors in found[:24]), "a damaged tag or fingerprint"


@pytest.mark.parametrize("bits", [0x01, 0x80])
async def test_a_damaged_count_of_what_is_copied_does_not_matter(
    bits: int, damage: dict[ShmCommunicator, tuple[int, int]], segment_bytes: Callable[[int], None]
) -> None:
    """A rank that reads a long slot in pieces waits for the tag if the count is invalid."""
    segment_bytes(32 << 20)  # so that slots are large
    sent = np.arange(PIECE_BYTES, dtype=np.float32)

    async def main(rank: int) -> None:
        await dist.barrier()
        for byte in range(8):
            if rank == 1:
                damage[world_communicator()] = COPIED, bits << byte * 8
            data = sent if rank == 1 else np.zeros_like(sent)
            await dist.broadcast(data, 1, timeout=scaled(10))
            assert (data == sent).all(), byte
            damage.clear()
            await dist.barrier()

    await run_ranks(2, main, "shm")


Damage = tuple[int, memoryview, SharedMemory]
"""The place of the damaged byte, the control words of the ring, and the sender's memory."""


def ring_to(rank: int) -> RingWriter:
    """Into which this rank puts what it sends to ``rank``."""
    shm = current_world().endpoint.peer(rank).outbox.shm
    assert shm is not None
    assert shm.ring is not None
    return shm.ring


async def test_a_damaged_word_or_head_in_a_message_ring_is_an_error_or_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each byte of two control words, of the three words of a record, and of its frame's head."""
    control = [WRITTEN] * 8 + [RESTART] * 8
    words = len(control) + 24
    damage: dict[RingWriter, Damage] = {}
    put = RingWriter.put

    def damaged_put(ring: RingWriter, *message: Any) -> bool:
        record = ring.position % ring.nbytes  # the ring is empty, and not near its end
        has_room = put(ring, *message)
        if ring in damage:
            place, control_words, memory = damage.pop(ring)
            assert has_room
            bits = BITS[place % len(BITS)]
            if place < len(control):
                control_words[control[place]] ^= bits << place % 8 * 8
            else:
                ring_bytes(memory, ring)[record + place - len(control)] ^= bits
        return has_room

    monkeypatch.setattr(RingWriter, "put", damaged_put)

    async def one(place: int) -> BaseException | None:
        control_words: list[memoryview] = []

        async def main(rank: int) -> BaseException | None:
            data = np.full(3, 1.0)
            await (dist.send(data, 0) if rank else dist.recv(data, 1))
            endpoint = current_world().endpoint
            if rank == 0:
                reader = endpoint.peer(1).shm_receiver.ring
                assert reader is not None
                control_words.append(reader.words)
            await dist.barrier()
            if rank:
                await dist.send(data, 0)  # by memory: both know of each other
                assert endpoint.memory is not None
                damage[ring_to(0)] = place, control_words[0], endpoint.memory
                await dist.send(np.full(3, 2.0), 0)
                return None
            await dist.recv(data, 1)
            error = await outcome(dist.recv(data, 1, timeout=TIMEOUT))
            assert error is None or isinstance(error, dist.DistError), (place, error)
            assert error is not None or data.tolist() == [2, 2, 2], (place, data)
            return error

        return (await run_ranks(2, main, "shm"))[0]

    async with asyncio.timeout(scaled(30)):
        found = await asyncio.gather(*(one(place) for place in range(words + HEADER_BYTES)))
    # A position that is a little too far does not matter: the message is read up to its length.
    # Nor does a turn that comes too soon: what went before over the stream has come.
    assert all(found[2:8] + found[16:24]), "a damaged word"
    assert sum(error is not None for error in found) > words


async def through_a_proxy(scheme: str, offset: int) -> tuple[bytes, Sink]:
    """What was sent, and what came of it, when the byte at ``offset`` on the wire is damaged."""
    sent, sink = random.Random(1).randbytes(300_000), Sink()
    transport = Transports.default("127.0.0.1", certificates=tls_files()).get(scheme)
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await transport.listen(accepted.put_nowait)
    port = int(listener.address.rpartition(":")[2])
    async with damaging_proxy(port, offset, 0x20) as damaging:
        ours = await transport.connect(f"{scheme}://127.0.0.1:{damaging}", Deadline(20))
        theirs = await accepted.get()
        theirs.start(sink)
        ours.send([sent])
        await ours.close()
        await sink.ended()
        theirs.abort()
    await listener.close()
    return sent, sink


async def test_by_tls_a_byte_damaged_on_the_wire_is_an_error() -> None:
    async with asyncio.timeout(scaled(30)):
        sent, sink = await through_a_proxy("tls", 200_000)
    assert isinstance(sink.ends[0], dist.DistNetworkError)
    assert sent.startswith(sink.data)
    assert len(sink.data) < 200_000


async def test_a_damaged_payload_arrives_over_tcp() -> None:
    async with asyncio.timeout(scaled(30)):
        sent, sink = await through_a_proxy("tcp", 200_000)
    assert sink.ends == [None]
    assert [at for at, (a, b) in enumerate(zip(sent, sink.data, strict=True)) if a != b] == [
        200_000
    ]
