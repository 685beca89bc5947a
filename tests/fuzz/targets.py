"""What is fed with a stranger's bytes: a function each, which raises only if a promise is broken.

Used by the property tests beside this file, and by the coverage-guided run (``make fuzz``).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from types import MappingProxyType

from aiodist.errors import DistError, DistStoreError, HandshakeError, ProtocolError
from aiodist.links.rank_info import RankInfo
from aiodist.store.tcp_greeting import answer_client, await_proof, greet_server
from aiodist.store.tcp_wire import read_message
from aiodist.wire.failures import decode_error
from aiodist.wire.frames import HEADER_BYTES, MAX_META, Frame, FrameDecoder, FrameType, encode
from aiodist.wire.handshake import Handshake
from aiodist.wire.object_codec import ObjectCodec

KEY = b"the job's key"
MAX_PAYLOAD = 1 << 16
"""What the handler of `frames` accepts: a bound on the memory that one header can claim."""

_CHUNKS = 8
"""The first bytes of an input say how it is cut into reads."""


class _Handler:
    """Takes every frame; remembers how much memory payloads have been given at once."""

    def __init__(self) -> None:
        self.frames = 0
        self.held = 0

    def frame(self, frame: Frame, payload: memoryview) -> None:
        assert len(frame.meta) <= MAX_META
        assert len(payload) in (0, frame.length)
        self.frames += 1

    def payload(self, frame: Frame) -> memoryview | None:
        assert 0 < frame.length <= MAX_PAYLOAD, "memory is taken for a length that was refused"
        self.held = frame.length
        return memoryview(bytearray(frame.length)) if frame.id % 2 else None

    def payload_done(self, frame: Frame) -> None:
        self.frames += 1
        self.held = 0

    def lost(self, error: BaseException | None) -> None:
        raise AssertionError("the stream was lost without being ended")


def feed(decoder: FrameDecoder, data: bytes, cuts: bytes) -> None:
    """Give ``data`` to the decoder in reads whose sizes ``cuts`` says, over and over."""
    sizes = _sizes(cuts)
    position = 0
    while position < len(data):
        buffer = decoder.get_buffer()
        assert len(buffer) > 0, "no room to read into: the stream would stand still"
        count = min(len(buffer), len(data) - position, next(sizes))
        buffer[:count] = data[position : position + count]
        decoder.received(count)
        position += count


def _sizes(cuts: bytes) -> Iterator[int]:
    while True:
        for cut in cuts:
            yield 1 << (cut % 17)  # 1 B to 64 KiB
        if not cuts:
            yield 1 << 16


def frames(data: bytes) -> None:
    """Any bytes, cut in any way: frames, or ProtocolError; the same however they are cut."""
    cuts, stream = data[:_CHUNKS], data[_CHUNKS:]
    outcomes = []
    for sizes in (cuts, b""):
        handler = _Handler()
        decoder = FrameDecoder(handler, max_payload=MAX_PAYLOAD)
        failed = False
        try:
            feed(decoder, stream, sizes)
        except ProtocolError:
            failed = True
        outcomes.append((failed, handler.frames, handler.held))
    assert outcomes[0] == outcomes[1], f"it matters how the bytes are cut: {outcomes}"
    assert outcomes[0][1] <= len(stream) // HEADER_BYTES


def pending(data: bytes) -> None:
    """Bytes before the proof: no payload is accepted, whatever the header says."""

    class Nothing(_Handler):
        def payload(self, frame: Frame) -> memoryview | None:
            raise AssertionError(f"memory for a stranger: {frame}")

    try:
        feed(FrameDecoder(Nothing(), max_payload=0), data[_CHUNKS:], data[:_CHUNKS])
    except ProtocolError:
        pass


def handshake(data: bytes) -> None:
    """One message as server, or two as client and server in turn: HandshakeError, never done."""
    for start in (False, True):
        side = Handshake(KEY, 1, 4, 1 << 20)
        if start:
            side.start(2)
        try:
            answer = side.receive(data)
            if answer is not None:
                side.receive(data[::-1])
        except HandshakeError:
            pass
        assert not side.done, "proven without the key"


def objects(data: bytes) -> None:
    """An object of another rank: it, or ProtocolError; nothing is ever unpickled."""
    try:
        ObjectCodec().loads(data)
    except (ProtocolError, TypeError):  # TypeError: a pickled part, which is not allowed
        pass


def failures(data: bytes) -> None:
    """An error of another rank: an error of ours, whatever it says."""
    assert isinstance(decode_error(data, 3), DistError)


def rank_infos(data: bytes) -> None:
    """What a rank says of itself when the ranks meet."""
    try:
        RankInfo.decode(data)
    except ProtocolError:
        pass


def store(data: bytes) -> None:
    """The store's connection: the greeting of both sides, then requests."""
    with asyncio.Runner() as runner:
        runner.run(_store(data))


async def _store(data: bytes) -> None:
    for read in (_greeted_by_server, _greeted_by_client, _request):
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        try:
            await read(reader)
        except (DistStoreError, asyncio.IncompleteReadError, ConnectionError):
            pass
        else:
            assert read is _request, "a greeting was accepted without the secret"


class _Nowhere:
    """The writer of a connection whose other side does not listen."""

    def write(self, data: bytes) -> None:
        pass

    async def drain(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass


async def _greeted_by_server(reader: asyncio.StreamReader) -> None:
    await greet_server(reader, _Nowhere(), KEY)  # type: ignore[arg-type]


async def _greeted_by_client(reader: asyncio.StreamReader) -> None:
    expected = await answer_client(reader, _Nowhere(), KEY)  # type: ignore[arg-type]
    await await_proof(reader, expected)


async def _request(reader: asyncio.StreamReader) -> None:
    await read_message(reader, 1 << 20)


TARGETS: MappingProxyType[str, Callable[[bytes], None]] = MappingProxyType(
    {
        target.__name__: target
        for target in (frames, pending, handshake, objects, failures, rank_infos, store)
    }
)


def seeds() -> dict[str, list[bytes]]:
    """Inputs to begin with, for each target: what the other side really sends."""
    every = b"".join(encode(kind, (1, 2, 3), id=1, meta=b"meta" * int(kind)) for kind in FrameType)
    message = encode(FrameType.EAGER, (1, 2, 3), id=1, length=9, meta=b"m") + b"a message"
    client, server = Handshake(KEY, 0, 4, 1 << 20), Handshake(KEY, 1, 4, 1 << 20)
    hello = client.start(1)
    welcome = server.receive(hello)
    assert welcome is not None
    proof = client.receive(welcome)
    assert proof is not None
    thing = {"a": [1, 2.5, None, "text"], "b": (b"bytes", {1, 2}), "c": slice(1, 2)}
    rank_info = RankInfo(1, "host", "id", 42, ("tcp://10.0.0.1:1", "unix:@name"))
    greeting = b"AIODIST-STORE 1\n" + bytes(64)
    stream = bytes(_CHUNKS) + every + message + message
    return {
        "frames": [stream, bytes(range(_CHUNKS)) + message * 3],
        "pending": [stream],
        "handshake": [hello, welcome, proof],
        "objects": [ObjectCodec().dumps(thing), ObjectCodec().dumps("text")],
        "failures": [b"\x93\xb0CollectiveError!\xa3why\x80"],
        "rank_infos": [rank_info.encode()],
        "store": [greeting, struct.pack(">I", 4) + b"\x93\x01\xa3get"],
    }
