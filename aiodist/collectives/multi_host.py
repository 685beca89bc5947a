"""One operation's view of ranks that are spread over several hosts."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.channel import Channel
from aiodist.collectives.host_topology import HostTopology, SubChannel
from aiodist.collectives.intra_host import IntraHost, IntraHostMessages, IntraHostShm
from aiodist.collectives.reduction_protocol import Scratch
from aiodist.collectives.select import RULES, Choice, Rules
from aiodist.collectives.shm_exchange import ShmContext


class MultiHostContext:
    """What a collective over hosts sees: all ranks, those of its own host, those it crosses with."""

    def __init__(
        self,
        channel: Channel,
        topology: HostTopology,
        shm: ShmContext | None,
        scratch: Scratch,
        rules: Rules = RULES,
    ) -> None:
        """``shm``: of the ranks of this one's host, where they share memory.

        ``rules``: by which the algorithms over messages are chosen.
        """
        self.channel = channel
        self.topology = topology
        self.scratch = scratch
        self.rules = rules
        self.host = topology.host_of(channel.rank)
        """The number of this rank's host."""
        self.intra_host: IntraHost = (
            IntraHostMessages(SubChannel(channel, topology.hosts[self.host]), scratch, rules)
            if shm is None
            else IntraHostShm(shm)
        )

    @property
    def crosses(self) -> bool:
        """Whether this rank is in a column: it exchanges with other hosts."""
        return self.intra_host.rank < self.topology.columns

    @property
    def across(self) -> SubChannel:
        """The ranks of this one's column, numbered as their hosts are."""
        return SubChannel(self.channel, self.topology.column(self.intra_host.rank))

    def leaders(self, root: int) -> list[int]:
        """One rank of each host: ``root`` of its own, the first of every other."""
        home = self.topology.host_of(root)
        return [
            root if number == home else ranks[0] for number, ranks in enumerate(self.topology.hosts)
        ]

    def among(self, leaders: Sequence[int]) -> SubChannel | None:
        """``leaders`` numbered as their hosts are, where this rank is one of them."""
        return SubChannel(self.channel, leaders) if self.channel.rank in leaders else None

    def number_of(self, rank: int) -> int:
        """The number inside this host of ``rank``, which lives here."""
        return self.topology.hosts[self.host].index(rank)

    def choice(self, operation: str, nbytes: int) -> Choice:
        """The algorithm between as many ranks as there are hosts."""
        return self.topology.select(operation, nbytes, self.rules)
