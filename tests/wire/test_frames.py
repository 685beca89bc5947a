"""The decoder: however the bytes are cut, the same frames; payloads in place; garbage is refused."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.alignment import LEAD, SHORT
from aiodist.errors import ProtocolError
from aiodist.wire import frames
from aiodist.wire.frames import (
    HEADER_BYTES,
    MAX_META,
    MAX_PAYLOAD,
    Frame,
    FrameDecoder,
    FrameType,
    decode,
    encode,
)

DIRECT = frames._DIRECT_BYTES
SCRATCH = frames._SCRATCH_BYTES


class Collector:
    """A handler that keeps what it is told; ``drop`` says which payloads it does not want."""

    def __init__(self, drop: Sequence[int] = ()) -> None:
        self.got: list[tuple[Frame, bytes | None]] = []
        self.places: list[bytearray] = []
        self.ends: list[BaseException | None] = []
        self._drop = set(drop)
        self.whole = 0
        """Frames whose payload was there at once."""
        self._payloads = 0
        self._current: bytearray | None = None

    def frame(self, frame: Frame, payload: memoryview) -> None:
        if not len(payload):
            self.got.append((frame, None))
            return
        self.whole += 1
        place = self.payload(frame)
        if place is not None:
            place[:] = payload
        self.payload_done(frame)

    def payload(self, frame: Frame) -> memoryview | None:
        self._payloads += 1
        if self._payloads - 1 in self._drop:
            self._current = None
            return None
        self._current = bytearray(frame.length)
        self.places.append(self._current)
        return memoryview(self._current)

    def payload_done(self, frame: Frame) -> None:
        self.got.append((frame, None if self._current is None else bytes(self._current)))

    def lost(self, error: BaseException | None) -> None:
        self.ends.append(error)


def feed(decoder: FrameDecoder, data: bytes, sizes: Sequence[int] = ()) -> int:
    """Give ``data`` in reads of at most ``sizes`` (then as the decoder likes). Direct reads made."""
    turn, direct, position = 0, 0, 0
    while position < len(data):
        buffer = decoder.get_buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(data) - position)
        if turn < len(sizes):
            count = min(count, sizes[turn])
        direct += decoder._direct
        buffer[:count] = data[position : position + count]
        decoder.received(count)
        position += count
        turn += 1
    return direct


frame_specs = st.tuples(
    st.sampled_from([FrameType.EAGER, FrameType.DATA, FrameType.GRANT, FrameType.REQUEST]),
    st.integers(0, 255),
    st.integers(0, (1 << 64) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(0, (1 << 64) - 1),
    st.binary(max_size=40) | st.sampled_from([bytes(MAX_META)]),
    st.sampled_from(
        [0, 1, 7, SHORT, SHORT + 1, DIRECT - 1, DIRECT, DIRECT + 1, SCRATCH, 3 * SCRATCH + 5]
    ),
)


@settings(max_examples=60)
@given(
    st.lists(frame_specs, min_size=1, max_size=6),
    st.lists(st.integers(1, 70_000), max_size=300) | st.lists(st.integers(1, 5), max_size=300),
    st.sets(st.integers(0, 5)),
)
def test_any_split_of_a_stream_gives_the_same_frames(
    specs: list[tuple[FrameType, int, int, int, int, bytes, int]],
    sizes: list[int],
    drop: set[int],
) -> None:
    stream = bytearray()
    expected: list[tuple[Frame, bytes | None]] = []
    payloads = 0
    for type, kind, group, channel, id, meta, length in specs:
        stream += encode(type, (kind, group, channel), id=id, length=length, meta=meta)
        frame = Frame(type, kind, group, channel, id, length, meta)
        data: bytes | None = None
        if type != FrameType.REQUEST and length:
            data = random.Random(length).randbytes(length)
            stream += data
            if payloads in drop:
                data = None
            payloads += 1
        expected.append((frame, data))
    handler = Collector(tuple(drop))
    feed(FrameDecoder(handler), bytes(stream), sizes)
    assert handler.got == expected


def test_a_large_payload_is_read_straight_into_its_place() -> None:
    handler = Collector()
    decoder = FrameDecoder(handler)
    feed(decoder, encode(FrameType.EAGER, length=1 << 20))
    buffer = decoder.get_buffer()
    assert buffer.obj is handler.places[0]
    assert len(buffer) == 1 << 20
    buffer[:10] = b"0123456789"
    decoder.received(10)
    assert decoder.get_buffer().obj is handler.places[0]
    assert len(decoder.get_buffer()) == (1 << 20) - 10


def test_the_rest_of_a_payload_brings_the_next_header_along() -> None:
    handler = Collector()
    decoder = FrameDecoder(handler)
    feed(decoder, encode(FrameType.EAGER, length=DIRECT - 1) + encode(FrameType.GOODBYE)[:5])
    assert decoder.get_buffer().obj is not handler.places[0]
    assert not handler.got


def test_get_buffer_may_be_asked_again_without_a_read() -> None:
    """A socket that turns out to be empty asks again later."""
    handler = Collector()
    decoder = FrameDecoder(handler)
    feed(decoder, encode(FrameType.EAGER, length=3))
    for _ in range(3):
        decoder.get_buffer()
    feed(decoder, b"abc")
    assert handler.got[0][1] == b"abc"


@pytest.mark.parametrize("length", [5, DIRECT, 5 * SCRATCH])
@pytest.mark.parametrize("before", [0, 1, 4])
@pytest.mark.parametrize("to_nowhere", [False, True])
def test_redirect_in_every_state(length: int, before: int, to_nowhere: bool) -> None:
    data = random.Random(1).randbytes(length)
    handler = Collector()
    decoder = FrameDecoder(handler)
    feed(decoder, encode(FrameType.EAGER, length=length))
    feed(decoder, data[:before])
    other = bytearray(length + 3)
    decoder.redirect(None if to_nowhere else memoryview(other))
    feed(decoder, data[before:])
    feed(decoder, encode(FrameType.GOODBYE))
    assert bytes(handler.places[0]) == data[:before] + bytes(length - before)
    if not to_nowhere:
        assert bytes(other) == data + bytes(3)
    assert [frame.type for frame, _ in handler.got] == [FrameType.EAGER, FrameType.GOODBYE]


def test_redirect_from_nowhere_and_twice() -> None:
    handler = Collector(drop=[0])
    decoder = FrameDecoder(handler)
    feed(decoder, encode(FrameType.EAGER, length=6) + b"ab")
    first, second = bytearray(6), bytearray(6)
    decoder.redirect(memoryview(first))  # what was dropped before is gone
    feed(decoder, b"cd")
    decoder.redirect(memoryview(second))
    feed(decoder, b"ef")
    assert bytes(first) == b"\0\0cd\0\0"
    assert bytes(second) == b"\0\0cdef"


@pytest.mark.parametrize("first", [1, HEADER_BYTES, HEADER_BYTES + 4, HEADER_BYTES + 5])
def test_a_small_payload_that_is_here_comes_with_its_frame(first: int) -> None:
    handler = Collector()
    stream = encode(FrameType.EAGER, length=5) + b"abcde"
    feed(FrameDecoder(handler), stream * 2, [len(stream) + first])
    assert [data for _, data in handler.got] == [b"abcde"] * 2
    # The second frame had only its header, or not even that.
    assert handler.whole == (1 if HEADER_BYTES <= first < len(stream) else 2)


def test_a_handler_may_redirect_from_inside_payload_done_of_the_frame_before() -> None:
    """The state is clean before the handler runs."""

    class Restless(Collector):
        def payload_done(self, frame: Frame) -> None:
            decoder.redirect(None)
            super().payload_done(frame)

    handler = Restless()
    decoder = FrameDecoder(handler)
    two = encode(FrameType.EAGER, length=2) + b"ab" + encode(FrameType.EAGER, length=2) + b"cd"
    feed(decoder, two)
    assert [data for _, data in handler.got] == [b"ab", b"cd"]


@pytest.mark.parametrize(
    ("type", "meta", "length", "begin"),
    [
        (FrameType.EAGER, 11, SHORT, HEADER_BYTES + 11),
        (FrameType.EAGER, 11, SHORT + 1, LEAD),
        (FrameType.DATA, 0, 1 << 20, LEAD),
        (FrameType.EAGER, LEAD - HEADER_BYTES, 1 << 20, LEAD),
        (FrameType.EAGER, LEAD, 1 << 20, HEADER_BYTES + LEAD),
        (FrameType.REQUEST, 11, 1 << 20, HEADER_BYTES + 11),
    ],
)
def test_a_payload_that_is_not_short_begins_where_it_is_copied_quickly(
    type: FrameType, meta: int, length: int, begin: int
) -> None:
    head = encode(type, length=length, meta=bytes(meta))
    assert len(head) == begin
    assert decode(memoryview(head)) == (Frame(type, 0, 0, 0, 0, length, bytes(meta)), begin)
    with pytest.raises(ProtocolError):
        decode(memoryview(head[:-1]))


@pytest.mark.parametrize(
    "bad",
    [
        bytes(HEADER_BYTES),
        b"GET / HTTP/1.1\r\nHost: example.invalid\r\n\r\n" + bytes(10),
        b"\x16\x03\x01" + bytes(60),
        encode(FrameType.GOODBYE)[:4] + b"\1\0\0\0" + encode(FrameType.GOODBYE)[8:],
        encode(FrameType.EAGER, length=MAX_PAYLOAD + 1),
        encode(FrameType.REQUEST, length=MAX_PAYLOAD + 1),
        encode(FrameType.EAGER, meta=bytes(MAX_META + 1)),
    ],
    ids=["zeros", "http", "tls", "reserved", "eager-length", "request-length", "meta"],
)
def test_foreign_bytes_are_refused_before_memory_is_taken(bad: bytes) -> None:
    handler = Collector()
    with pytest.raises(ProtocolError):
        feed(FrameDecoder(handler), bad)
    assert handler.got == []
    assert handler.places == []


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (
            b"GET / HTTP/1.1\r\nHost: x\r\n",
            r"it is an HTTP client \(it said b'GET / HTTP/1\.1\\r\\n",
        ),
        (b"HTTP/1.1 400 Bad Request\r\n", r"it is an HTTP server \(it said b'HTTP/1\.1 400"),
        (b"\x16\x03\x01", "it speaks TLS"),
        (b"SSH-2.0-OpenSSH_9\r\n", "type 83, metadata of 11592 bytes"),
    ],
)
def test_the_error_about_foreign_bytes_names_a_known_protocol(first: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match="not a frame of this protocol: " + message):
        feed(FrameDecoder(Collector()), first + bytes(HEADER_BYTES))


@given(st.binary(min_size=HEADER_BYTES, max_size=500))
def test_random_bytes_are_frames_or_a_protocol_error(data: bytes) -> None:
    handler = Collector()
    decoder = FrameDecoder(handler, max_payload=1 << 16)
    try:
        feed(decoder, data)
    except ProtocolError:
        pass
    assert sum(map(len, handler.places)) <= len(data) + (1 << 16)


def test_the_bound_on_payloads_holds_and_can_be_raised() -> None:
    handler = Collector()
    decoder = FrameDecoder(handler, max_payload=0)
    feed(decoder, encode(FrameType.HELLO, meta=b"hi") + encode(FrameType.REQUEST, length=1 << 30))
    decoder.max_payload = 3
    feed(decoder, encode(FrameType.EAGER, length=3) + b"abc")
    with pytest.raises(ProtocolError, match="announces 4 bytes, more than the 3"):
        feed(decoder, encode(FrameType.EAGER, length=4))


def test_the_decoder_never_takes_more_than_its_scratch() -> None:
    handler = Collector()
    decoder = FrameDecoder(handler)
    feed(decoder, encode(FrameType.GOODBYE, meta=bytes(MAX_META)) * 200)
    assert len(handler.got) == 200
    assert len(decoder.get_buffer()) == SCRATCH


def test_the_end_of_the_stream_is_handed_on() -> None:
    handler = Collector()
    error = OSError()
    FrameDecoder(handler).lost(error)
    assert handler.ends == [error]


def test_every_field_survives() -> None:
    handler = Collector()
    data = encode(FrameType.GRANT, (255, (1 << 64) - 1, -(1 << 63)), id=(1 << 64) - 1, meta=b"m")
    feed(FrameDecoder(handler), data)
    frame = handler.got[0][0]
    assert frame.key == (255, (1 << 64) - 1, -(1 << 63))
    assert (frame.id, frame.meta, frame.length) == ((1 << 64) - 1, b"m", 0)
