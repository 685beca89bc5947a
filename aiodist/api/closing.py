"""``destroy_process_group`` and ``abort_process_group``, and how groups and worlds close."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from aiodist.errors import GroupClosedError
from aiodist.groups.group_engine import GroupEngine, NonGroupMember
from aiodist.groups.handle import Group
from aiodist.groups.world import World, current_world
from aiodist.p2p.departure import FLUSH_SECONDS

log = logging.getLogger("aiodist")

_ABORT_SECONDS = 1.0
"""How long the other ranks may take to hear that this one aborts."""


async def destroy_process_group(group: Group | None = None) -> None:
    """Close a group, or all groups and the connections to the other ranks.

    Operations under way have 5 seconds to finish, receives none. Then they fail with
    GroupClosedError, and those without an ``await`` are logged. If a rank is silent (stopped, for
    example), the call takes up to 8 seconds. Cancelled, it closes without that time. Afterwards
    ``init_process_group`` may be called again.

    Args:
        group: The group to close. None or the default group closes all.

    Raises:
        CollectiveMismatchError: The last collective of another rank was not that of this rank.
            All is closed when it is raised.
    """
    world, chosen = _chosen(group)
    if chosen is None:
        return
    groups = world.groups if chosen is world.default else [chosen]
    never_awaited = [
        (w, w._describe()) for each in groups for w in each.under_way() if not w._is_awaited
    ]
    if chosen is world.default:
        try:
            error = await close_world(world)
        finally:
            world.destroyed = True
    else:
        error = await close_groups(world, [chosen])
    for work, what in never_awaited:
        if isinstance(work._error, GroupClosedError):  # else it is told as that of any other work
            work.exception()
            log.warning("%s had not ended when its group was destroyed; it was never awaited", what)
    if error is not None:
        raise error


async def abort_process_group(group: Group | None = None) -> None:
    """Close a group, or all groups and the connections, without waiting for operations.

    Operations that wait on this rank raise GroupClosedError now. On the other members they raise
    CollectiveCancelledError or GroupRevokedError, which name this rank. Data that was not sent
    yet may be lost. `ProcessGroup.abort` ends a group in the same way and may be called in any
    thread.

    Args:
        group: The group to close. None or the default group closes all.
    """
    await abort_because("", group)


async def abort_because(why: str, group: Group | None = None) -> None:
    """Do as `abort_process_group`. The errors on the other ranks say ``why``."""
    world, chosen = _chosen(group)
    if chosen is None:
        return
    if world.observer is not None:
        world.observer.dump_scheduled()
    aborted = world.groups if chosen is world.default else [chosen]
    try:
        with contextlib.ExitStack() as stack:  # each is aborted, whatever comes before
            for each in reversed(aborted):
                stack.callback(each.abort, why)
    finally:
        if chosen is world.default:
            await _close_aborted(world)
        else:
            world.remove(chosen)


async def _close_aborted(world: World) -> None:
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ABORT_SECONDS):
                await close_world(world, 0.0)
    finally:
        world.destroyed = True


def _chosen(group: Group | None) -> tuple[World, GroupEngine | None]:
    """Return this task's world and the group to close, None where there is nothing to close.

    Raises InvalidUsageError outside the event loop of the group.
    """
    world = current_world()
    if world.abandon_if_orphaned():
        return world, None
    chosen = world.find(group)
    if isinstance(chosen, NonGroupMember):
        return world, None
    world.check_loop()
    return world, chosen


async def close_world(world: World, seconds: float = FLUSH_SECONDS) -> Exception | None:
    """Close all groups of ``world`` and its connections, with ``seconds`` for what is under way.

    Returns what `close_groups` does. Cancelled, it closes all without that time.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    try:
        error = await close_groups(world, world.groups, seconds)
    except (Exception, asyncio.CancelledError):  # a coroutine that is dropped awaits nothing more
        await world.close(0.0)
        raise
    await world.close(max(0.0, end - loop.time()))
    return error


async def close_groups(
    world: World, groups: Sequence[GroupEngine], seconds: float = FLUSH_SECONDS
) -> Exception | None:
    """Close some of ``world``'s groups, after ``seconds`` for what is under way in them.

    Returns the first `GroupEngine.disagreement` of theirs, if there is any. Cancelled, it closes them
    without that time.
    """
    with contextlib.ExitStack() as stack:  # each is closed, whatever comes before
        for each in reversed(groups):
            stack.callback(world.remove, each)
        await _quiet(groups, seconds)
        errors = [error for each in groups if (error := each.disagreement()) is not None]
    return errors[0] if errors else None


async def _quiet(groups: Sequence[GroupEngine], seconds: float = FLUSH_SECONDS) -> None:
    """Let sends and collectives under way finish, for a bounded time."""
    done = asyncio.Event()
    works = [work for group in groups for work in group.unfinished()]
    left = len(works)
    if not left:
        return

    def one_less() -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    for work in works:
        work._when_done(one_less)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await done.wait()
