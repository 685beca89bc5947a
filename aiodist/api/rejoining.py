"""How a process takes the place of a rank that was lost: it leaves its rank info at a store, and waits.

The members that call `grow` find it there, agree on it, and each of them leaves the same welcome:
who the ranks are, and what the newcomer needs to know of the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgpack

from aiodist.api.closing import close_world
from aiodist.api.lifecycle import (
    REPLACEMENT_VARIABLE,
    newcomer_key,
    set_world_ranks,
    transports_at,
)
from aiodist.api.process_group import ProcessGroup, handle_of
from aiodist.api.settings import (
    check_later_settings,
    init_timeout_from,
    liveness_timeout_from,
    pickle_from,
    schemes_from,
    streams_from,
    window_from,
    with_bundles,
)
from aiodist.backends.registry import make_group
from aiodist.credentials import Certificates, job_secret
from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError, InvalidUsageError, PeerLostError, StoreTimeoutError
from aiodist.groups.argument_checks import check_int
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.group_lifecycle import GroupSpec, Newcomer
from aiodist.groups.world import World, current_world
from aiodist.links.interfaces import choose_hosts, default_address
from aiodist.links.rank_info import RankInfo
from aiodist.liveness import DEFAULT_TIMEOUT as DEFAULT_LIVENESS
from aiodist.liveness import HeartbeatThread
from aiodist.observe.answering import answer_here
from aiodist.p2p.endpoint import Endpoint
from aiodist.rendezvous.environments import read_environment
from aiodist.rendezvous.meeting_stores import wrap_store
from aiodist.store import PrefixStore, Store, TcpStore
from aiodist.store.waiting import pauses
from aiodist.types import DEFAULT_TIMEOUT, Backend

log = logging.getLogger("aiodist")

STORE_VARIABLE = "AIODIST_REJOIN_STORE"
COUNT_VARIABLE = "AIODIST_RESTART_COUNT"

_LONG_WAIT_SECONDS = 60.0
"""How long a newcomer waits before it logs that it does: members may call `grow` once in an epoch."""

_WITHDRAW_SECONDS = 1.0
"""How long a process that stops waiting may take to remove its entry from the store."""

_ENTRY_SECONDS = 1.0
"""How long a member waits for an entry at the store that was there at its last look."""

_GREETING_SECONDS = 5.0
"""How long a member may take to reach the newcomer; it calls those that do not by itself."""


def is_replacement() -> bool:
    """Return whether the launcher started this process alone, in place of a rank that was lost.

    Then `rejoin` is what it has to call, and not ``init_process_group``.
    """
    return os.environ.get(REPLACEMENT_VARIABLE) == "1"


def get_restart_count() -> int:
    """Return how often ``aiodist run --max-restarts`` has restarted this rank; 0 without it."""
    return int(os.environ.get(COUNT_VARIABLE, "") or 0)


async def register_elastic() -> bool:
    """Tell the launcher that this program goes on without a rank that is lost, and takes in another.

    When all ranks have called it, ``aiodist run --max-restarts N`` starts only the rank that has
    died anew, where it would start all. Call it after ``init_process_group`` or `rejoin`.

    Returns:
        Whether there is such a launcher.

    Raises:
        DistStoreError: The launcher is gone.
    """
    world = current_world()
    world.default_group()
    if not os.environ.get(STORE_VARIABLE):
        return False
    async with meeting_place(world, None, Deadline(DEFAULT_TIMEOUT)) as place:
        await place.set(f"elastic/{world.rank}", b"1")
    return True


async def rejoin(
    store: Any | None = None,
    rank: int = -1,
    timeout: float | timedelta | None = None,
    *,
    buffer_bytes: int | None = None,
) -> ProcessGroup:
    """Take the place of a rank that was lost or never there, instead of ``init_process_group``.

    It returns when the members of the default group have called `grow` and taken this process in.
    Then `sync_state` brings the model's state. Cancelled or failed, it leaves nothing open and
    may be called again.

    Args:
        store: A store of ours or torch's that outlives the ranks, the same that the members pass
            to `grow`. None is that of ``aiodist run --max-restarts``.
        rank: The global rank to become; -1 reads it from the environment.
        timeout: For this call: seconds or a timedelta; None is AIODIST_INIT_TIMEOUT, or 30
            minutes.
        buffer_bytes: How much this rank buffers, as for `init_process_group`.

    Returns:
        The default group, with the members' backend, timeout and ``liveness_timeout``.

    Raises:
        StoreTimeoutError: The members have not taken it in by then.
        InvalidUsageError: The world is initialised, rank or store are not known, or the members
            have another secret than this process.
        DistStoreError: The store fails.
    """
    world = current_world()
    world.abandon_if_orphaned()
    if world.is_initialized or world.opening:
        raise InvalidUsageError(
            "this process is a rank already; rejoin() is for a new one, in place of "
            "init_process_group()"
        )
    own = _own_rank(rank, os.environ)
    deadline = Deadline(init_timeout_from(timeout, os.environ, DEFAULT_TIMEOUT))
    window = window_from(buffer_bytes, os.environ)
    world.allow_pickle = pickle_from(None, os.environ)
    check_later_settings(os.environ)
    world.opening = True
    try:
        async with meeting_place(world, store, deadline) as place:
            launcher = None if store is not None else os.environ[STORE_VARIABLE].rpartition(":")[0]
            return handle_of(await _come_in(world, own, place, launcher, window, deadline))
    except BaseException:
        await close_world(world, 0.0)
        raise
    finally:
        world.opening = False


async def _come_in(
    world: World, rank: int, place: Store, launcher: str | None, window: int, deadline: Deadline
) -> GroupEngine:
    schemes = schemes_from(os.environ)
    hosts = choose_hosts(launcher, os.environ) or (default_address(),)
    world.open(rank, -1, None)
    transports, silence_limit = (
        transports_at(hosts, schemes),
        liveness_timeout_from(None, os.environ),
    )
    # The other ranks may watch this one although its environment says nothing of that.
    heartbeat = HeartbeatThread(rank, -1, transports, silence_limit or DEFAULT_LIVENESS)
    ways = with_bundles(transports, hosts, streams_from(os.environ, schemes))
    endpoint = Endpoint(rank, -1, ways, world, window=window, heartbeat=heartbeat)
    world.attach(endpoint)
    secret = job_secret(os.environ)
    own, name = (await endpoint.open()).encode(), os.urandom(12)
    proof = _proof(newcomer_key(secret), rank, own, name)
    newcomer = Newcomer(rank, own, name, proof)
    try:
        told = await _welcomed(place, newcomer, deadline)
    except StoreTimeoutError as error:
        raise StoreTimeoutError(
            f"rank {rank}: no member has taken this process in within {deadline.timeout:g} s; "
            "the members have to call grow(), at the same store",
            **error.fields,
        ) from None
    if not told:
        raise InvalidUsageError(
            f"the members do not take this process in as rank {rank}: it does not know the job's "
            "secret; give all processes of one job the same AIODIST_SECRET (or AIODIST_SECRET_FILE)"
        )
    facts = msgpack.unpackb(told)
    rank_infos = [RankInfo.decode(rank_info) for rank_info in facts["rank_infos"]]
    world.size = len(rank_infos)
    world.choose_by(facts["table"])
    heartbeat.set_timeout(facts["liveness"])
    set_world_ranks(world, endpoint, rank_infos, facts["token"], secret)
    answer_here(world.observer)
    for rank_info in rank_infos:
        if rank_info.rank not in facts["ranks"] and not rank_info.is_absent:
            text = f"{rank_info} was lost before rank {rank} came"
            endpoint.give_up(rank_info.rank, PeerLostError(text, rank=rank_info.rank))
    spec = GroupSpec(
        facts["name"],
        facts["ranks"],
        Backend(facts["backend"]),
        facts["timeout"],
        lineage=facts["lineage"],
        newcomers=facts["newcomers"],
        generation=facts["generation"],
    )
    group = make_group(world, spec)
    await _greeted(endpoint, [r for r in group.ranks if r not in group.newcomers])
    await group.backend.ready(deadline)
    world.default = group
    return group


async def _welcomed(place: Store, newcomer: Newcomer, deadline: Deadline) -> bytes:
    """Wait at the store until a member has left the welcome for ``newcomer``, and return it.

    It is empty if the members refuse it. Raises StoreTimeoutError. Cancelled or failed, it leaves no
    entry that `grow` would find.
    """
    entry = msgpack.packb(list(newcomer))
    note = asyncio.get_running_loop().call_later(
        _LONG_WAIT_SECONDS,
        log.warning,
        "rank %d has waited %g s in rejoin() for a member to call grow(), and still waits. See whether the "
        "job still runs, and meets at the same store.",
        newcomer.rank,
        _LONG_WAIT_SECONDS,
    )
    try:
        await place.set(_place_of(newcomer.rank), entry)
        return await place.get(_welcome_of(newcomer), deadline)
    except BaseException:
        with contextlib.suppress(DistStoreError, TimeoutError):
            async with asyncio.timeout(_WITHDRAW_SECONDS):
                # Another process that came meanwhile for this rank keeps its entry.
                await place.compare_set(_place_of(newcomer.rank), entry, b"")
        raise
    finally:
        note.cancel()


async def _greeted(endpoint: Endpoint, ranks: Sequence[int]) -> None:
    """Wait until all ``ranks`` have called: one that this rank called first might not know it yet."""
    greeting = Deadline(_GREETING_SECONDS)
    for pause in pauses(longest=0.01):
        if greeting.expired() or all(endpoint.connected(r) or endpoint.lost(r) for r in ranks):
            return
        await asyncio.sleep(pause)


# -- the store, on both sides


@contextlib.asynccontextmanager
async def meeting_place(
    world: World, store: Any | None, deadline: Deadline
) -> AsyncIterator[Store]:
    """Open the store where newcomers and members meet: the caller's store, or the launcher's.

    Raises InvalidUsageError where there is neither, TypeError for what is no store, DistStoreError.
    """
    if store is None:
        yield await _launchers_store(world, deadline)
        return
    place = wrap_store(store)
    try:
        yield PrefixStore("rejoin", place.store)
    finally:
        await place.close()


async def _launchers_store(world: World, deadline: Deadline) -> Store:
    """Return the connection to the launcher's store, which stays open as long as the world."""
    if world.launchers_store is not None:
        return world.launchers_store
    address = os.environ.get(STORE_VARIABLE, "")
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise InvalidUsageError(
            "there is no store where a replacement could meet the others: start the job by "
            "`aiodist run --max-restarts N`, which serves one, or pass store=, one that outlives "
            "the ranks: a FileStore on a disk that all see, or a client of a server of your own"
        )
    secret, certificates = job_secret(os.environ), Certificates.from_environ(os.environ)
    client = await TcpStore.connect(
        host, int(port), deadline, secret=secret, certificates=certificates
    )
    world.on_close(client.close, client.close_in_child)
    world.launchers_store = place = PrefixStore("rejoin", client)
    return place


async def waiting_at(place: Store, ranks: Sequence[int]) -> list[Newcomer]:
    """Return the newcomers that wait to become one of ``ranks``."""
    newcomers = []
    for rank in ranks:
        if await place.check([_place_of(rank)]):
            # The launcher deletes the entry of a process that has ended, perhaps at this moment.
            with contextlib.suppress(StoreTimeoutError):
                packed = await place.get(_place_of(rank), Deadline(_ENTRY_SECONDS))
                if packed:
                    newcomers.append(Newcomer(*msgpack.unpackb(packed)))
    return newcomers


def knows_secret(newcomer: Newcomer, key: bytes) -> bool:
    """Return whether ``newcomer`` has proven that it knows the secret that ``key`` is made of."""
    proof = _proof(key, newcomer.rank, newcomer.rank_info, newcomer.name)
    return hmac.compare_digest(newcomer.proof, proof)


def _proof(key: bytes, rank: int, rank_info: bytes, name: bytes) -> bytes:
    return hmac.new(key, msgpack.packb([rank, rank_info, name]), hashlib.sha256).digest()


async def refuse(place: Store, newcomer: Newcomer) -> None:
    """Tell ``newcomer``, which does not know the job's secret, that it is not taken in."""
    log.warning(
        "a process that would become rank %d does not know this job's secret and is not taken in: give "
        "all processes of one job the same AIODIST_SECRET (or AIODIST_SECRET_FILE)",
        newcomer.rank,
    )
    await place.set(_welcome_of(newcomer), b"")
    await _remove_entry(place, newcomer)


async def welcome(place: Store, newcomer: Newcomer, group: GroupEngine) -> None:
    """Tell ``newcomer`` all it needs to know as a member of ``group``. Every member does so."""
    facts = {
        "rank_infos": [rank_info.encode() for rank_info in group.endpoint.rank_infos()],
        "token": group.world.token,
        "table": group.world.table,
        "name": group.group_name,
        "ranks": group.ranks,
        "lineage": group.lineage,
        "generation": group.generation,
        "newcomers": group.newcomers,
        "backend": str(group.backend_name),
        "timeout": group.timeout,
        "liveness": group.endpoint.liveness_timeout,
    }
    await place.set(_welcome_of(newcomer), msgpack.packb(facts))
    await _remove_entry(place, newcomer)


async def _remove_entry(place: Store, newcomer: Newcomer) -> None:
    # It waits no more; another one that came meanwhile does.
    await place.compare_set(_place_of(newcomer.rank), msgpack.packb(list(newcomer)), b"")


def _place_of(rank: int) -> str:
    return f"waits/{rank}"


def _welcome_of(newcomer: Newcomer) -> str:
    return f"welcome/{newcomer.name.hex()}"


def _own_rank(rank: int, environ: Mapping[str, str]) -> int:
    rank = check_int(rank, "rank")
    if rank >= 0:
        return rank
    if rank < -1:
        raise InvalidUsageError(f"rank={rank} is impossible: ranks go from 0, and -1 reads RANK")
    known = read_environment(environ).rank()
    if known is None:
        raise InvalidUsageError(
            "rejoin() needs the rank to take the place of: pass rank=, or set RANK as a launcher does"
        )
    return known.value
