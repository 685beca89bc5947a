"""The notice of a lost rank that ranks send each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack

from aiodist.errors import ProtocolError

MAX_TEXT = 600
"""Bytes of a text in a notice or heartbeat; three of them fit into a frame's metadata."""


@dataclass(frozen=True)
class LossNotice:
    """The notice that rank ``rank`` is lost.

    ``noticed_by``: the rank that found out. ``reason``: how. ``mark``: of the lost rank's info,
    because another process may have replaced it meanwhile. ``last``: text for its last known
    activity.
    """

    rank: int
    mark: bytes
    noticed_by: int
    reason: str
    last: str = ""

    def encode(self) -> bytes:
        fields: list[Any] = [
            self.rank,
            self.mark,
            self.noticed_by,
            shorten(self.reason),
            shorten(self.last),
        ]
        packed: bytes = msgpack.packb(fields)
        return packed

    @classmethod
    def decode(cls, data: bytes) -> LossNotice:
        """Decode a notice. Raises ProtocolError."""
        try:
            rank, mark, noticed_by, reason, last = msgpack.unpackb(data)
            return cls(int(rank), bytes(mark), int(noticed_by), str(reason), str(last))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ProtocolError("a malformed notice of a lost rank") from error


def shorten(text: str) -> str:
    """Return ``text`` in at most MAX_TEXT bytes of UTF-8."""
    return text.encode("utf-8", "replace")[:MAX_TEXT].decode("utf-8", "ignore")
