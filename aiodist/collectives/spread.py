"""One operation's view of ranks that are spread over several hosts."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.board import Board
from aiodist.collectives.channel import Channel
from aiodist.collectives.inside import InMemory, InMessages, Inside
from aiodist.collectives.places import Part, Places
from aiodist.collectives.reduction import Scratch
from aiodist.collectives.select import RULES, Choice, Rules, select


class Hosts:
    """What a collective over hosts sees: all ranks, those of its own host, those it crosses with."""

    def __init__(
        self,
        channel: Channel,
        places: Places,
        board: Board | None,
        scratch: Scratch,
        rules: Rules = RULES,
    ) -> None:
        """``board``: of the ranks of this one's host, where they share memory.

        ``rules``: by which the algorithms over messages are chosen.
        """
        self.channel = channel
        self.places = places
        self.scratch = scratch
        self.rules = rules
        self.host = places.host_of(channel.rank)
        """The number of this rank's host."""
        here = Part(channel, places.hosts[self.host])
        self.inside: Inside = InMessages(here, scratch, rules) if board is None else InMemory(board)

    @property
    def crosses(self) -> bool:
        """Whether this rank is in a column: it exchanges with other hosts."""
        return self.inside.rank < self.places.columns

    @property
    def across(self) -> Part:
        """The ranks of this one's column, numbered as their hosts are."""
        return Part(self.channel, self.places.column(self.inside.rank))

    def leaders(self, root: int) -> list[int]:
        """One rank of each host: ``root`` of its own, the first of every other."""
        home = self.places.host_of(root)
        return [
            root if number == home else ranks[0] for number, ranks in enumerate(self.places.hosts)
        ]

    def among(self, leaders: Sequence[int]) -> Part | None:
        """``leaders`` numbered as their hosts are, where this rank is one of them."""
        return Part(self.channel, leaders) if self.channel.rank in leaders else None

    def number_of(self, rank: int) -> int:
        """The number inside this host of ``rank``, which lives here."""
        return self.places.hosts[self.host].index(rank)

    def choice(self, operation: str, nbytes: int) -> Choice:
        """The algorithm between as many ranks as there are hosts."""
        return select(operation, len(self.places.hosts), nbytes, rules=self.rules)
