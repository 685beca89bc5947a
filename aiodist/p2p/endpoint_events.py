"""What the mesh tells the world that owns it, and asks of it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from aiodist.errors import PeerLostError
from aiodist.wire.frames import Frame, Key


class Presence(NamedTuple):
    """What a rank says of itself to one that waits for it."""

    entered: bool
    """Whether the collective that it was asked about has started there."""
    last: str = ""
    """The collective of that group which it finished last, in words; empty where there is none."""
    now: str = ""
    """What it does now, as in "rank 3 is in no operation": without the rank."""


class EndpointEvents(Protocol):
    """What the endpoint tells the world that owns it."""

    def is_over(self, key: Key) -> bool:
        """Whether this rank has ended that collective, or closed that group."""
        ...

    def late(self, key: Key, src: int, meta: bytes, length: int) -> None:
        """A message of rank ``src`` came for what is over; it is dropped."""
        ...

    def collective_failed(self, src: int, group: int, sequence: int, error: memoryview) -> None:
        """Rank ``src`` says why that collective failed."""
        ...

    def agree_arrived(self, src: int, group: int, number: int, message: bytes) -> None:
        """Rank ``src`` says something in agreement ``number`` of that group."""
        ...

    def present(self, group: int, sequence: int) -> Presence:
        """What this rank says to one that waits for it in that collective."""
        ...

    def status_answered(self, src: int, group: int, sequence: int, presence: Presence) -> None:
        """Rank ``src`` has answered to `Endpoint.query_status`."""
        ...

    def woken(self, group: int) -> None:
        """A flag that this rank sleeps over was raised in the memory that ``group`` shares."""
        ...

    def explained(self, error: PeerLostError, last: Frame | None) -> PeerLostError:
        """``error`` with what is known of that rank and it does not say yet.

        ``last``: the last message that came from it.
        """
        ...

    def peer_lost(self, rank: int, error: PeerLostError, *, departed: bool) -> None:
        """``rank`` is gone; ``departed`` if it said goodbye first."""
        ...

    def activity(self) -> str:
        """What this rank does or last did, in words; asked from another thread."""
        ...
