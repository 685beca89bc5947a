"""A message that arrives in pieces through shared memory, while its receive may be cancelled."""

from __future__ import annotations

from aiodist.copying import copy
from aiodist.p2p.matching import Arrival, Recv


class PartialMessage:
    """Copy the pieces of a message to its ``target``; a `p2p.matching.Reader`."""

    __slots__ = ("_into", "got", "length", "target")

    def __init__(self, length: int) -> None:
        """Create a message without a target. ``length``: of the payload, in bytes."""
        self.length = length
        self.got = 0
        self.target: Recv | Arrival | None = None
        self._into: memoryview | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all pieces have come."""
        return self.got == self.length

    def goes_to(self, target: Recv | Arrival | None) -> None:
        """Set the target before the first piece. None drops the pieces."""
        self.target = target
        if target is not None:
            self._into = target.data if isinstance(target, Arrival) else target.into

    def redirect(self, target: Recv | Arrival | None, destination: memoryview | None) -> None:
        old, self.target, self._into = self._into, target, destination
        if destination is not None and old is not None:
            copy(destination[: self.got], old[: self.got])

    def add(self, piece: memoryview) -> None:
        """Copy the next piece, which has at most the missing bytes."""
        end = self.got + len(piece)
        if self._into is not None:
            copy(self._into[self.got : end], piece)
        self.got = end
