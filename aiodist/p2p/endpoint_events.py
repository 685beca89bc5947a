"""What the endpoint reports to the world that owns it, and asks of it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from aiodist.errors import PeerLostError
from aiodist.wire.frames import Frame, Key


class StatusAnswer(NamedTuple):
    """A rank's answer to a status query: what it is doing."""

    entered: bool
    """Whether the collective in question has started there."""
    last: str = ""
    """Text for the last collective of that group that the rank finished; empty before the first."""
    now: str = ""
    """Text for its current activity without the rank, as in "rank 3 is in no operation"."""


class EndpointEvents(Protocol):
    """Callbacks of the endpoint into the world that owns it."""

    def is_over(self, key: Key) -> bool:
        """Return whether this rank has ended that collective, or closed that group."""

    def late_message(self, key: Key, src: int, meta: bytes, length: int) -> None:
        """Report a dropped message of rank ``src`` for an operation that has ended here."""

    def collective_failed(self, src: int, group: int, sequence: int, error: memoryview) -> None:
        """Report that rank ``src`` says why that collective failed."""

    def agree_arrived(self, src: int, group: int, number: int, message: bytes) -> None:
        """Report a message of rank ``src`` in agreement ``number`` of that group."""

    def present(self, group: int, sequence: int) -> StatusAnswer:
        """Return this rank's answer to a peer that waits for it in that collective."""

    def status_answered(self, src: int, group: int, sequence: int, answer: StatusAnswer) -> None:
        """Report the answer of rank ``src`` to `Endpoint.query_status`."""

    def woken(self, group: int) -> None:
        """Report that a flag for which this rank sleeps was set in the shared memory of ``group``."""

    def fingerprint_arrived(self, src: int, group: int, sequence: int, fingerprint: bytes) -> None:
        """Report that rank ``src`` waits in that collective, of that fingerprint, for this rank."""

    def explained(self, error: PeerLostError, last: Frame | None) -> PeerLostError:
        """Return ``error`` with what is known of that rank and is not yet in the text.

        ``last``: the last message that came from the rank.
        """

    def peer_lost(self, rank: int, error: PeerLostError, *, departed: bool) -> None:
        """Report that ``rank`` is lost; ``departed`` if it said goodbye first."""

    def activity(self) -> str:
        """Return text for what this rank does or last did. May be called from another thread."""
