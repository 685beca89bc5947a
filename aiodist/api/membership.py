"""``membership``: which ranks come and go."""

from __future__ import annotations

from aiodist.groups.membership_events import MembershipEvents
from aiodist.groups.world import current_world


def membership() -> MembershipEvents:
    """Return an iterator over the ranks that come and go from now on::

        async for event in aiodist.membership():
            print(event.kind, event.rank)  # "lost", "left" or "joined"

    Each rank hears for itself of every other rank of the job, whatever groups they share: a death about
    when its operations raise, a goodbye when the rank has destroyed its process group, a newcomer when
    `grow` has taken it in on this rank. Events that come between two steps of the iteration wait. It
    costs nothing while nothing happens. It is exhausted after the process group was destroyed.

    Raises NotInitializedError, and InvalidUsageError outside the event loop of the process group.
    """
    world = current_world()
    world.group_here(None)
    return world.membership.read()
