"""Which members of a group share memory, and whether the group lives on several hosts.

Every rank has the cards of all, so all ranks of a group come to the same answer without a word.
Which ranks of a host have indeed mapped each other's memory, the plane finds out later, for the
host alone: the ranks of other hosts need not know how those exchange among themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodist.collectives.places import Places
from aiodist.groups.lines import CollectiveLine
from aiodist.groups.plane import Plane
from aiodist.mesh.endpoint import Endpoint

if TYPE_CHECKING:
    from aiodist.collectives.channel import Channel
    from aiodist.groups.process_group import ProcessGroup


def place(group: ProcessGroup, endpoint: Endpoint, incarnation: int) -> None:
    """Give ``group`` the plane of this rank's host, and its places, where there are such.

    Members without any shared memory to offer make the whole group go flat, over streams.
    """
    memory = endpoint.memory
    cards = {card.rank: card for card in endpoint.cards()}
    members = [cards[rank] for rank in group.ranks]
    if memory is None or not all(card.segment for card in members):
        return
    places = Places([card.host_id for card in members])
    if len(places.hosts) == 1:
        group.plane = Plane(group, memory, incarnation)
    elif len(places.hosts) < len(members):
        group.places = places
        here = places.hosts[places.host_of(group.own_rank)]
        if len(here) > 1:
            group.plane = Plane(group, memory, incarnation, here)


def places_of(channel: Channel) -> Places | None:
    """Where the ranks of the collective live, if on several hosts of which some have several."""
    return channel.places if isinstance(channel, CollectiveLine) else None
