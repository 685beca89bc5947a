"""Which ranks of a group live on which host, and the `Channel` of some of them."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.channel import Channel
from aiodist.collectives.select import OVERSUBSCRIBED, PAIRS, Choice, Rules, select
from aiodist.completion import Pending


class HostTopology:
    """The ranks of a group by host. The same on all of them.

    ``hosts``: the ranks of each host, ascending; hosts in the order of their first ranks.
    ``columns``: how many ranks the host with the fewest has. The c-th ranks of all hosts are
    column c: the ranks that talk to each other between hosts.
    ``locality``: where the ranks live, for `select`.
    """

    __slots__ = ("_host_of", "columns", "hosts", "locality")

    def __init__(self, names: Sequence[object], *, oversubscribed: bool = False) -> None:
        """``names``: of each rank's host, by rank. ``oversubscribed``: ranks of some host share cores."""
        by_name: dict[object, list[int]] = {}
        for rank, name in enumerate(names):
            by_name.setdefault(name, []).append(rank)
        self.hosts = tuple(tuple(ranks) for ranks in by_name.values())
        self.columns = min(map(len, self.hosts))
        self.locality = OVERSUBSCRIBED if oversubscribed else PAIRS if self.columns <= 2 else None
        numbers = {name: number for number, name in enumerate(by_name)}
        self._host_of = [numbers[name] for name in names]

    def host_of(self, rank: int) -> int:
        """The number of the host of ``rank``."""
        return self._host_of[rank]

    def select(self, operation: str, nbytes: int, rules: Rules) -> Choice:
        """The algorithm among as many ranks as there are hosts. See `select.select`."""
        return select(operation, len(self.hosts), nbytes, self.locality, rules)

    def column(self, number: int) -> list[int]:
        """The ranks of a column, by host."""
        return [ranks[number] for ranks in self.hosts]

    @property
    def is_even(self) -> bool:
        """Whether all hosts have equally many."""
        return all(len(ranks) == self.columns for ranks in self.hosts)


class SubChannel:
    """Some ranks of a `Channel`, numbered anew in the order of ``members``; this rank is one."""

    __slots__ = ("_channel", "_members", "rank", "size")

    def __init__(self, channel: Channel, members: Sequence[int]) -> None:
        self.rank = members.index(channel.rank)
        self.size = len(members)
        self._channel = channel
        self._members = members

    def send(self, dst: int, data: memoryview) -> Pending[None]:
        return self._channel.send(self._members[dst], data)

    def recv(self, src: int, into: memoryview) -> Pending[None]:
        return self._channel.recv(self._members[src], into)

    def recv_new(self, src: int) -> Pending[memoryview]:
        return self._channel.recv_new(self._members[src])
