"""The frames that ranks exchange, and a decoder that reads payloads directly into place.

A frame is a fixed header of 40 bytes, up to `MAX_META` bytes of metadata, then the payload::

    type u8 | kind u8 | meta length u16 | zero u32 | group u64 | channel i64 | id u64 | payload length u64

(little endian). `FrameType` says what ``channel`` and ``id`` mean for each type. Zeros precede a
payload that is not short, so that it is aligned for copies at full speed (`aiodist.alignment.gap`).
"""

from __future__ import annotations

import enum
import struct
from functools import partial
from typing import NamedTuple, Protocol

from aiodist.alignment import SHORT, gap
from aiodist.errors import ProtocolError
from aiodist.wire.foreign_protocols import foreign_protocol

_HEADER = struct.Struct("<BBHIQqQQ")
HEADER_BYTES = _HEADER.size
_LENGTH_BYTES = 8  # of the header's last field

MAX_META = 4096
"""Metadata is a fingerprint, a shape or a short text. A longer one breaks the protocol."""

ADDRESS_BYTES = 8
"""Length of an address in the metadata of a REQUEST."""

MAX_PAYLOAD = 1 << 46
"""64 TiB: no tensor is longer. This is only a first check; code that allocates has its own bounds."""

_SCRATCH_BYTES = 16 * 1024
"""Bytes read ahead of an unknown header; up to this many bytes of a large payload are copied twice."""
_DIRECT_BYTES = 8 * 1024
"""The rest of a payload of at least this length is read directly into its destination. A shorter
rest is read through the scratch buffer, so that one system call brings the next header along."""


class FrameType(enum.IntEnum):
    """The type of a frame. ``key`` is (kind, group, channel): an operation, or a tag."""

    HELLO = 1
    """A step of the handshake; the metadata is its message."""
    REJECT = 2
    """The handshake failed; the metadata is the reason, as text."""
    EAGER = 3
    """A whole message for ``key``; the payload is its data. Charged to the sender's credit."""
    REQUEST = 4
    """Rendezvous, step 1: a message of ``length`` bytes for ``key`` is ready as send ``id``. The metadata
    begins with its address in the sender's process (`request_meta`). No payload."""
    GRANT = 5
    """Rendezvous, step 2: send ``id`` may go, to receive number ``channel``."""
    DATA = 6
    """Rendezvous, step 3: the next part of the message for receive number ``id``."""
    RELEASE = 7
    """Send ``id`` may be forgotten: its operation is over on this rank, or the message has been read at its
    address."""
    WITHDRAW = 8
    """The sender takes request ``id`` back, or has tried to when it was read (0). ``channel`` is the number
    of such tries, by the word in its message ring; 0 without a ring."""
    CREDIT = 9
    """``id`` bytes of credit return: the messages charged to them have left the receiver's buffer."""
    STALLED = 10
    """The sender is out of credit and holds messages back: ask (WANT) for what is posted for ``key``, or
    for all that is posted (`ANY_KEY`). ``id`` is the number of this statement, from 1 on. ``id`` 0: it
    holds nothing back any more."""
    WANT = 11
    """A receive for ``key`` is posted: send its next held message, whatever the credit. ``id`` is the
    number of the last STALLED that the receiver has read. A later one for the key, or for all keys,
    asks anew, and takes the meaning from this."""
    ABORT = 12
    """Collective number ``channel`` of ``group`` failed; the payload is the error."""
    GOODBYE = 13
    """The rank leaves in good order and sends nothing more."""
    STATUS_QUERY = 14
    """Has the receiver entered collective number ``channel`` of ``group``?"""
    PRESENT = 15
    """The answer to a STATUS_QUERY: ``id`` is 1 for yes, 0 for no. The metadata has text for the last
    collective that the rank finished in that group, a zero byte, and its present activity."""
    AGREE = 16
    """A message of agreement number ``channel`` of ``group`` on the living ranks, in the payload."""
    WAKE = 17
    """The receiver sleeps, and need not any more. ``id`` 0: a flag was set in the shared memory of
    ``group``. ``id`` 1: there is a message in the sender's message ring for the receiver."""
    FINGERPRINT = 18
    """The sender has waited in collective number ``channel`` of ``group`` for the receiver. The metadata is
    the fingerprint of that collective."""
    BEAT = 32
    """On a heartbeat connection: the rank lives; the metadata has text for its last activity."""
    LOST = 33
    """On a heartbeat connection: a rank is lost; the metadata is a notice about it."""
    LEFT = 34
    """On a heartbeat connection: rank ``id`` has left in good order."""
    OUTCAST = 35
    """The sender has declared the receiver lost; the metadata is the notice."""


_TYPES = frozenset(int(t) for t in FrameType)
_REQUEST = int(FrameType.REQUEST)  # its ``length`` is of bytes that follow later

COLLECTIVE = 0
"""Kind of a key whose channel is the sequence number of a collective."""
TENSOR = 1
"""Kind of a key whose channel is the tag of a tensor's message."""
OBJECT = 2
"""Kind of a key whose channel is the tag of an object's message."""
PART = 3
"""Kind of a key whose channel is the number that a sender gave to a part of an object."""
STREAM = 4
"""Kind of a key whose channel is the tag of a stream."""
MESSAGES = frozenset({TENSOR, OBJECT, PART, STREAM})
"""The kinds of messages from one rank to another, outside of collectives."""

Key = tuple[int, int, int]
"""(kind, group id, sequence number or tag), by which a message is matched, with the source rank."""

ANY_KEY: Key = (255, 0, 0)
"""All keys, in a STALLED frame."""


class Frame(NamedTuple):
    """A decoded header with its metadata, without the payload, which is read into place."""

    type: int
    kind: int
    group: int
    channel: int
    id: int
    length: int
    meta: bytes

    @property
    def key(self) -> Key:
        return (self.kind, self.group, self.channel)


_frame = partial(tuple.__new__, Frame)
"""Makes a frame of a tuple of its fields, in a third of the time of ``Frame(...)``."""


def encode(
    type: FrameType, key: Key = (0, 0, 0), *, id: int = 0, length: int = 0, meta: bytes = b""
) -> bytes:
    """Return header and metadata of a frame, and the zeros behind them; the payload follows.

    ``length`` is the payload's length. For REQUEST it is the length of bytes that are elsewhere.
    """
    kind, group, channel = key
    header = _HEADER.pack(type, kind, len(meta), 0, group, channel, id, length)
    if meta:
        header += meta
    if length <= SHORT or type == _REQUEST:
        return header
    return header + bytes(gap(len(header), length))


def request_meta(address: int, meta: bytes) -> bytes:
    """Return the metadata of a REQUEST. ``address``: where the receiver may read the message, or 0."""
    return address.to_bytes(ADDRESS_BYTES, "little") + meta


def requested(meta: bytes) -> tuple[int, bytes]:
    """Return the address and the message's own metadata out of the metadata of a REQUEST."""
    if len(meta) < ADDRESS_BYTES:
        raise ProtocolError(f"a request with {len(meta)} bytes of metadata names no address")
    return int.from_bytes(meta[:ADDRESS_BYTES], "little"), meta[ADDRESS_BYTES:]


class ShortHeaders:
    """The headers of short messages for one key without metadata: they differ by the length alone."""

    __slots__ = ("_start", "frame", "key")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.frame = Frame(FrameType.EAGER, *key, 0, 0, b"")
        """The decoded header of an empty one."""
        self._start = encode(FrameType.EAGER, key)[:-_LENGTH_BYTES]

    def of(self, length: int) -> bytes:
        """Return the header that precedes a payload of ``length`` bytes, at most `SHORT`."""
        return self._start + length.to_bytes(_LENGTH_BYTES, "little")


def decode(data: memoryview) -> tuple[Frame, int]:
    """Return the frame at the start of ``data``, and the offset of its payload. Raises ProtocolError."""
    if len(data) >= HEADER_BYTES:
        type, kind, meta_bytes, zero, group, channel, id, length = _HEADER.unpack_from(data)
        head = HEADER_BYTES + meta_bytes
        begin = head if type == _REQUEST else head + gap(head, length)
        if type in _TYPES and not zero and meta_bytes <= MAX_META and begin <= len(data):
            meta = data[HEADER_BYTES:head].tobytes()
            return _frame((type, kind, group, channel, id, length, meta)), begin
    raise ProtocolError(f"{len(data)} bytes that begin with no frame of this protocol")


class FrameHandler(Protocol):
    """Handles decoded frames."""

    def frame(self, frame: Frame, payload: memoryview) -> None:
        """Handle a complete frame.

        Most frames have no ``payload``. If there is one, read it first: sending, for example, may
        read the next bytes over it.
        """

    def payload(self, frame: Frame) -> memoryview | None:
        """Return memory for the ``frame.length`` payload bytes of an incomplete frame; None drops them."""

    def payload_done(self, frame: Frame) -> None:
        """Handle the end of a payload: all bytes of ``frame`` are in place, or dropped."""

    def lost(self, error: BaseException | None) -> None:
        """Handle the end of the stream."""


class FrameDecoder:
    """A `transport.Receiver` that decodes frames. Raises ProtocolError on malformed bytes.

    After a ProtocolError the connection must be closed.
    """

    __slots__ = (
        "_destination",
        "_direct",
        "_end",
        "_frame",
        "_got",
        "_handler",
        "_scratch",
        "_start",
        "bytes_heard",
        "max_payload",
    )

    def __init__(self, handler: FrameHandler, *, max_payload: int = MAX_PAYLOAD) -> None:
        self._handler = handler
        self.max_payload = max_payload
        self.bytes_heard = 0
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._start = 0  # scratch[_start:_end] is read and not yet parsed
        self._end = 0
        self._frame: Frame | None = None  # its payload is being read
        self._destination: memoryview | None = None
        self._got = 0
        self._direct = False  # the last get_buffer was the destination, not scratch

    # -- transport.Receiver

    def get_buffer(self) -> memoryview:
        destination = self._destination
        if destination is not None and len(destination) - self._got >= _DIRECT_BYTES:
            self._direct = True
            return destination[self._got :]
        self._direct = False
        return self._scratch[self._end :]

    def received(self, count: int) -> None:
        self.bytes_heard += count
        if self._direct:
            self._got += count
            frame = self._frame
            assert frame is not None  # get_buffer gave its destination
            if self._got == frame.length:
                self._finish(frame)
        else:
            self._end += count
            self._parse()

    def lost(self, error: BaseException | None) -> None:
        self._handler.lost(error)

    # -- for the handler

    def redirect(self, destination: memoryview | None) -> None:
        """Read the rest of the current payload into ``destination`` (None drops it).

        Bytes that have arrived are copied to the start of ``destination``, so that the whole
        payload is there in the end. Call it only between ``payload`` and ``payload_done`` of the
        same frame.
        """
        old, got = self._destination, self._got
        if destination is not None and self._frame is not None:
            destination = destination[: self._frame.length]
        if destination is not None and old is not None:
            destination[:got] = old[:got]
        self._destination = destination

    # -- inside

    def _parse(self) -> None:
        scratch = self._scratch
        while True:
            start = self._start
            available = self._end - start
            frame = self._frame
            if frame is not None:
                take = min(available, frame.length - self._got)
                if take:
                    got = self._got
                    destination = self._destination
                    if destination is not None:
                        destination[got : got + take] = scratch[start : start + take]
                    self._got = got + take
                    self._start = start + take
                if self._got < frame.length:
                    break
                self._finish(frame)
                continue
            if available < HEADER_BYTES:
                break
            type, kind, meta_bytes, zero, group, channel, id, length = _HEADER.unpack_from(
                scratch, start
            )
            if type not in _TYPES or zero or meta_bytes > MAX_META:
                what = foreign_protocol(scratch[start : self._end].tobytes())
                raise ProtocolError(
                    "not a frame of this protocol: "
                    + (what or f"type {type}, metadata of {meta_bytes} bytes")
                )
            announces = type == _REQUEST
            if length > (MAX_PAYLOAD if announces else self.max_payload):
                raise ProtocolError(
                    f"a {FrameType(type).name} frame announces {length} bytes, "
                    f"more than the {self.max_payload} that are accepted here"
                )
            head = HEADER_BYTES + meta_bytes
            begin = start + head
            if length > SHORT and not announces:
                begin += gap(head, length)
            if begin > self._end:
                break
            meta = scratch[start + HEADER_BYTES : start + head].tobytes() if meta_bytes else b""
            frame = _frame((type, kind, group, channel, id, length, meta))
            end = begin if announces else begin + length
            if end <= self._end:
                self._start = end
                self._handler.frame(frame, scratch[begin:end])
            else:
                self._start = begin
                self._got = 0
                self._frame = frame
                self._destination = self._handler.payload(frame)
        self._compact()

    def _finish(self, frame: Frame) -> None:
        # Reset the state before the handler runs: the handler may send, which may read again.
        self._frame = None
        self._destination = None
        self._handler.payload_done(frame)

    def _compact(self) -> None:
        start, end = self._start, self._end
        if start == end:
            self._start = self._end = 0
        elif start:
            rest = end - start
            self._scratch[:rest] = self._scratch[start:end].tobytes()
            self._start, self._end = 0, rest
