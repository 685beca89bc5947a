"""Frames between the launcher and the agent of a host, over the agent's stdin and stdout.

A frame is a kind, a rank, a length and as many bytes. What the launcher tells goes through stdin,
the job's secret too: a command line can be read by every user of the host.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from aiodist.errors import DistNetworkError

GREETING = b"\0aiodist agent 1\n"
"""What an agent writes first. A shell that starts may write lines of its own before it."""

GREETING_LIMIT = 1 << 16
"""Bytes in which the greeting has to come."""

LIMIT = 1 << 26
"""Bytes of a frame's payload: a longer one is an error of the other end."""

_HEAD = struct.Struct("<BiI")


class FrameKind(IntEnum):
    """What a frame is. Values of a payload are JSON, except output, which is bytes."""

    # to the agent
    PREPARE = 1
    """The folder and the environment of the job; whether to reserve a port. Answer: READY."""
    START = 2
    """Start a rank: its command line, its variables. Answer: STARTED, or EXITED without it."""
    SIGNAL = 3
    """Send a signal to a rank, or to all that is in its process group."""
    PING = 4
    """The launcher lives; the agent answers with PONG."""

    # to the launcher
    READY = 10
    """What the host is called, its address as the launcher reaches it, and the reserved port."""
    STARTED = 11
    STDOUT = 12
    STDERR = 13
    EXITED = 14
    """The status of a rank, and its peak memory. All its output stands before it."""
    GROUP_GONE = 15
    """Nothing is left of what the rank had started."""
    PONG = 16
    REFUSED = 17
    """Why the agent cannot do what PREPARE asks for; the agent then ends."""


class Frame(NamedTuple):
    """One frame. ``rank`` is -1 where the frame concerns the host."""

    kind: FrameKind
    rank: int
    payload: bytes

    @property
    def facts(self) -> dict[str, Any]:
        """The payload as values."""
        found: dict[str, Any] = json.loads(self.payload)
        return found


def encode(kind: FrameKind, rank: int = -1, payload: bytes = b"", **facts: Any) -> bytes:
    """Return a frame with ``payload``, or with ``facts`` as its payload."""
    data = json.dumps(facts).encode() if facts else payload
    return _HEAD.pack(kind, rank, len(data)) + data


class FrameReader:
    """Cut a stream of bytes into frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete with ``data``.

        Raises DistNetworkError for bytes that are no frame.
        """
        self._held += data
        while len(self._held) >= _HEAD.size:
            kind, rank, length = _HEAD.unpack_from(self._held)
            if length > LIMIT or kind not in FrameKind.__members__.values():
                raise DistNetworkError(f"bytes that are no frame: {bytes(self._held[:16])!r}")
            end = _HEAD.size + length
            if len(self._held) < end:
                return
            payload = bytes(self._held[_HEAD.size : end])
            del self._held[:end]
            yield Frame(FrameKind(kind), rank, payload)
