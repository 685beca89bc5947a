"""The start: ``init_process_group``, and how a world is opened."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import msgpack

from aiodist.api.closing import close_world
from aiodist.api.settings import (
    SHARED,
    capacity_from,
    check_later_settings,
    init_timeout_from,
    liveness_timeout_from,
    memory_of,
    pickle_from,
    schemes_from,
    shared_bytes_from,
    streams_from,
    table_from,
    timeout_from,
    window_from,
    with_bundles,
)
from aiodist.api.spelling import misspelt_in
from aiodist.backends.registry import backend_named, make_group, rendezvous_for
from aiodist.credentials import Certificates, job_secret
from aiodist.deadline import Deadline
from aiodist.errors import InvalidUsageError, PeerLostError
from aiodist.groups.group_lifecycle import GroupSpec
from aiodist.groups.world import World, current_world
from aiodist.links.interfaces import is_loopback
from aiodist.links.rank_info import RankInfo
from aiodist.liveness import HeartbeatThread
from aiodist.observe.answering import answer_questions
from aiodist.observe.observer import Observer
from aiodist.observe.recorder import size_from
from aiodist.p2p.endpoint import DEFAULT_WINDOW, Endpoint
from aiodist.rendezvous import Rendezvous
from aiodist.store import Store, exchange
from aiodist.transport.base_transport import Transport
from aiodist.transport.transports import Transports
from aiodist.types import DEFAULT_TIMEOUT, Backend

log = logging.getLogger("aiodist")

DEFAULT_GROUP = "default_pg"

REPLACEMENT_VARIABLE = "AIODIST_REPLACEMENT"


async def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: float | timedelta | None = DEFAULT_TIMEOUT,
    world_size: int = -1,
    rank: int = -1,
    store: Any | None = None,
    group_name: str = "",
    pg_options: Any | None = None,
    device_id: Any | None = None,
    *,
    init_timeout: float | timedelta | None = None,
    liveness_timeout: float | timedelta | None = None,
    allow_pickle: bool | None = None,
    buffer_bytes: int | None = None,
    capacity: int | None = None,
) -> None:
    """Meet the other ranks and make the default group. It returns when all of them are there.

    Cancelled or failed, it leaves nothing open, the ranks that wait for this one are told, and it
    may be called again. With a `MemoryStore` or a store of torch they are not told, and wait until
    ``init_timeout``.

    Args:
        backend: "aiodist", which "gloo" names too, "mpi", "nccl", "torch:gloo", or one for each
            kind of device, as ``"cpu:aiodist,cuda:nccl"``. None is "aiodist", and that pair if
            NCCL can run and this process sees several GPUs, one for each rank of its host.
        init_method: ``env://`` (the default: from the environment of ``aiodist run``, torchrun,
            Slurm, Open MPI, MPICH), ``tcp://host:port``, or ``file:///path``. Backend "mpi" takes
            rank and size from MPI.
        timeout: The default of every operation: seconds or a timedelta. None means 30 minutes,
            ``math.inf`` no limit.
        world_size: How many ranks there are; -1 reads it from where ``init_method`` says.
        rank: This rank, from 0; -1 reads it from where ``init_method`` says.
        store: A store of ours or torch's, in place of ``init_method``; with ``rank`` and
            ``world_size``.
        group_name: A name of the default group for messages.
        pg_options: torch's own options, for one of torch's groups.
        device_id: This rank's GPU, for "nccl"; None is the LOCAL_RANK-th.
        init_timeout: How long the ranks have to meet: seconds or a timedelta. None means
            AIODIST_INIT_TIMEOUT, or ``timeout``.
        liveness_timeout: Seconds of silence after which a rank counts as lost, where the kernel
            does not say so at once. None means AIODIST_LIVENESS_TIMEOUT, or 10; 0 turns the watch
            off.
        allow_pickle: The default of every operation on objects; None means AIODIST_ALLOW_PICKLE,
            or False. Unpickling runs code that the sender chose: allow it only where all ranks
            are trusted.
        buffer_bytes: How many bytes this rank buffers, for each other rank, of messages without a
            receive. None means AIODIST_BUFFER_BYTES, or 64 MiB.
        capacity: How many ranks there may be at most, equal on all ranks; further processes come
            in by `grow` and `rejoin`. None means ``world_size``.

    Raises:
        InvalidUsageError: A value is invalid, variables are missing (all are named in one
            message), or the world is initialised already.
        StoreTimeoutError: Ranks have not arrived in time; the error names them.
        PeerLostError: A rank that had arrived died, gave up or fell silent.
        DistNetworkError: A host or a port cannot be used.
        DistStoreError: The store fails.
    """
    world = current_world()
    if asyncio._get_running_loop() is None:
        raise InvalidUsageError(
            "init_process_group needs the event loop of asyncio, and none runs here; with trio, use "
            "aiodist.sync in a thread (trio.to_thread.run_sync)"
        )
    world.abandon_if_orphaned()
    if world.is_initialized or world.opening:
        world.check_loop()
        raise InvalidUsageError(
            "trying to initialize the default process group twice; call "
            "destroy_process_group() first"
        )
    chosen = backend_named(backend)
    seconds = timeout_from(timeout)
    if capacity is not None and Backend.MPI in {chosen, *chosen.by_device().values()}:
        raise InvalidUsageError("no rank can join later where MPI starts them: leave out capacity")
    # Before the ranks meet: the others would wait for one that finds its mistake afterwards.
    schemes, window = schemes_from(os.environ), window_from(buffer_bytes, os.environ)
    shared_bytes = shared_bytes_from(os.environ, schemes)
    streams = streams_from(os.environ, schemes)
    size_from(os.environ)
    check_later_settings(os.environ)
    table_from(os.environ)
    silence_limit = liveness_timeout_from(liveness_timeout, os.environ)
    world.allow_pickle = pickle_from(allow_pickle, os.environ)
    deadline = Deadline(init_timeout_from(init_timeout, os.environ, timeout))
    meets_all = init_method in (None, "env://") and store is None and world_size != 1
    # A replacement that has rejoined and destroyed may begin anew with all others.
    if meets_all and not world.destroyed and os.environ.get(REPLACEMENT_VARIABLE) == "1":
        log.warning(
            "this process takes the place of a lost rank and calls init_process_group, which waits until "
            "all ranks call it: where is_replacement() is true, call rejoin() in its place"
        )
    world.opening = True
    try:
        met = await rendezvous_for(chosen)(
            init_method,
            rank=rank,
            size=world_size,
            store=store,
            deadline=deadline,
            environ=os.environ,
            silence_limit=silence_limit,
        )
        try:
            async with met.failing_on_loss():
                places = capacity_from(capacity, met.size)
                transports = transports_at(met.hosts, schemes) if places > 1 else []
                _warn_if_open(met)
                if met.rank == 0:  # the others were given the same, most likely
                    for misspelt in misspelt_in(os.environ):
                        log.warning("%s", misspelt)
                watched = silence_limit > 0 and places > 1
                heartbeat = (
                    HeartbeatThread(met.rank, places, transports, silence_limit)
                    if watched
                    else None
                )
                memory = memory_of(met.rank, shared_bytes if met.size > 1 else 0)
                make = partial(Endpoint, window=window, heartbeat=heartbeat, memory=memory)
                ways = with_bundles(transports, met.hosts, streams)
                who = met.rank, met.size, met.store, met.secret
                facts = _facts(chosen, group_name, places)
                await _open_world(world, *who, ways, make, deadline, facts)
                try:
                    await answer_questions(world.observer, met.store, met.host, deadline)
                    await met.settle(deadline)
                except BaseException:
                    await world.close()
                    raise
        except BaseException:
            await met.close()
            raise
        world.on_close(met.close, met.close_in_child)
        name = group_name or DEFAULT_GROUP
        spec = GroupSpec(name, range(met.size), chosen, seconds, pg_options, device_id)
        await _make_default(world, spec, deadline)
    finally:
        world.opening = False


async def open_in_process(
    rank: int,
    size: int,
    store: Store,
    transport: Transport,
    timeout: float | timedelta | None,
    buffer_bytes: int | None,
    backend: str | None = None,
    shared_bytes: int = 0,
    host: str = "",
) -> None:
    """Initialise the current world as one of several in this process, over ``transport``.

    ``shared_bytes``: of a segment of shared memory; 0 for none. ``host``: a name;
    ranks with different ones share no memory.
    """
    world = current_world()
    seconds = timeout_from(timeout)
    window = DEFAULT_WINDOW if buffer_bytes is None else buffer_bytes
    memory = memory_of(rank, shared_bytes)
    endpoint = partial(Endpoint, window=window, memory=memory, host=host)
    secret = job_secret(os.environ)
    chosen, limit = backend_named(backend), Deadline(seconds)
    facts = _facts(chosen, "", size)
    await _open_world(world, rank, size, store, secret, [transport], endpoint, limit, facts)
    await _make_default(world, GroupSpec(DEFAULT_GROUP, range(size), chosen, seconds), limit)


def _facts(backend: Backend, group_name: str, capacity: int) -> dict[str, Any]:
    """Return what has to be equal on all ranks, by the name of the parameter."""
    return {"backend": str(backend), "group_name": group_name, "capacity": capacity}


async def _open_world(
    world: World,
    rank: int,
    size: int,
    store: Store,
    secret: bytes,
    transports: list[Transport],
    make: Callable[[int, int, list[Transport], World], Endpoint],
    deadline: Deadline,
    facts: Mapping[str, Any],
) -> None:
    """Open the world at the addresses of all ranks. Raises InvalidUsageError if their ``facts`` differ."""
    places = facts["capacity"]
    world.open(rank, places, store)
    endpoint = make(rank, places, transports, world)
    try:
        rank_info = await endpoint.open()
        token = os.urandom(32) if rank == 0 else b""
        table = table_from(os.environ) if rank == 0 else b""
        mine = msgpack.packb([rank_info.encode(), token, table, facts])
        answers = await exchange(store, rank, size, mine, deadline, name="rank_infos")
        everybody = [msgpack.unpackb(answer) for answer in answers]
        _compare([each[3] for each in everybody])
        rank_infos = [RankInfo.decode(each[0]) for each in everybody]
        rank_infos += [RankInfo.absent(rank) for rank in range(size, places)]
        world.choose_by(everybody[0][2])
        set_world_ranks(world, endpoint, rank_infos, everybody[0][1], secret)
    except BaseException:
        world.clear()  # first: the other one may be cancelled
        await endpoint.close()
        raise
    world.attach(endpoint)


def _compare(facts: Sequence[Mapping[str, Any]]) -> None:
    """Raise InvalidUsageError if ``facts``, by rank, differ from those of rank 0."""
    for name, first in facts[0].items():
        for rank, others in enumerate(facts):
            if (other := others[name]) != first:
                raise InvalidUsageError(
                    f"the ranks disagree about {name}: rank 0 has {first!r}, rank {rank} has {other!r}"
                )


def newcomer_key(secret: bytes) -> bytes:
    """Return the key by which a process that comes later proves that it knows the job's ``secret``."""
    return hmac.new(secret, b"newcomers", hashlib.sha256).digest()


def set_world_ranks(
    world: World, endpoint: Endpoint, rank_infos: Sequence[RankInfo], token: bytes, secret: bytes
) -> None:
    """Tell ``endpoint`` all ranks of ``world``, including this one and those that may come later.

    Ranks authenticate to each other with the job's ``secret`` and the ``token``, which is rank 0's.
    """
    key = hmac.new(secret, token, hashlib.sha256).digest()
    world.token, world.newcomer_key = token, newcomer_key(secret)
    endpoint.meet(rank_infos, key)
    for rank_info in rank_infos:
        if rank_info.is_absent:
            text = f"{rank_info} has not come yet: `grow` takes in a process that calls `rejoin`"
            endpoint.give_up(rank_info.rank, PeerLostError(text, rank=rank_info.rank))
    present = [rank_info for rank_info in rank_infos if not rank_info.is_absent]
    world.observer = Observer(world, world.rank, present, key, os.environ)


async def _make_default(world: World, spec: GroupSpec, deadline: Deadline) -> None:
    try:
        group = make_group(world, spec._replace(lineage=range(world.size)))
        await group.backend.ready(deadline)
    except BaseException:
        await close_world(world, 0.0)
        raise
    world.default = group


def transports_at(hosts: Sequence[str], schemes: Sequence[str]) -> list[Transport]:
    """Return the transports of a rank whose own addresses are ``hosts``."""
    known = Transports.default(
        hosts[0],
        source_hosts=hosts if len(hosts) > 1 else (),
        certificates=Certificates.from_environ(os.environ),
    )
    return [known.get(scheme) for scheme in schemes if scheme != SHARED]


def _warn_if_open(met: Rendezvous) -> None:
    """Log a warning on rank 0 if any process in the network could take part in the job."""
    safe = met.secret or Certificates.from_environ(os.environ) or met.is_private
    if met.rank != 0 or met.size == 1 or safe or is_loopback(met.host):
        return
    log.warning(
        "rank 0 listens at %s, and this job has no secret: a process that reaches the ranks' store "
        "can read it and take part in the job. Set AIODIST_SECRET (or "
        "AIODIST_SECRET_FILE) to the same long random value on all ranks, for example from: "
        "openssl rand -hex 32",
        met.host,
    )
