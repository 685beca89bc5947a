"""What the last collectives of a group were that have ended well."""

from __future__ import annotations

from operator import itemgetter

from aiodist.groups.fingerprint import Fingerprint

REMEMBERED = 256


class CompletedOperations:
    """The last `REMEMBERED` of them, by number.

    ``ring[number % REMEMBERED]`` is ``number, fingerprint``. `GroupEngine.start_plan` writes it there.
    """

    __slots__ = ("ring",)

    def __init__(self) -> None:
        self.ring: list[tuple[int, Fingerprint] | None] = [None] * REMEMBERED

    def get(self, sequence: int) -> Fingerprint | None:
        """Return what collective ``sequence`` was; None if it is not remembered, or has not ended well."""
        found = self.ring[sequence % REMEMBERED]
        return None if found is None or found[0] != sequence else found[1]

    def add(self, sequence: int, fingerprint: Fingerprint) -> None:
        """Remember a collective that has ended well."""
        self.ring[sequence % REMEMBERED] = sequence, fingerprint

    def pop(self, sequence: int) -> Fingerprint | None:
        """Return what `get` does, and remember it no more."""
        found = self.get(sequence)
        if found is not None:
            self.ring[sequence % REMEMBERED] = None
        return found

    def last(self) -> tuple[int, Fingerprint] | None:
        """Return the one of the highest number."""
        return max(filter(None, self.ring), default=None, key=itemgetter(0))
