"""What an algorithm may know of the world: its rank, how many there are, and how to exchange."""

from __future__ import annotations

from typing import Protocol

from aiodist.completion import Pending


class Channel(Protocol):
    """One operation's private channel between the ranks of a group.

    Messages between two ranks arrive in the order in which they were sent, and the k-th receive
    from a rank gets the k-th message from it. Nothing of another operation is ever seen. Sends
    and receives start at the call; awaiting the `Pending` waits for the end. An algorithm that
    posts its receives before its sends lets large payloads go straight into place.

    When the operation fails (deadline, lost peer, cancellation), the error is raised inside the
    algorithm at its current ``await``; receives and sends that are left are withdrawn by the
    channel. Memory handed to a withdrawn receive is not written any more.
    """

    rank: int
    """This rank's number in the group, from 0."""
    size: int
    """How many ranks the group has."""

    def send(self, dst: int, data: memoryview) -> Pending[None]:
        """Send bytes (any length, also 0) to group rank ``dst`` (never this rank itself).

        Done when ``data``'s memory may be overwritten.
        """

    def recv(self, src: int, into: memoryview) -> Pending[None]:
        """Receive the next message from group rank ``src`` into ``into``, which is just as long.

        A message of another length fails the operation with CollectiveMismatchError.
        """

    def recv_new(self, src: int) -> Pending[memoryview]:
        """Receive the next message from ``src``, of whatever length, into memory of its own."""
