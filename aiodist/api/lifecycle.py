"""The start and the end: ``init_process_group``, ``destroy_process_group``, and what is available."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import msgpack

from aiodist.api.sharing import SHARED, memory_of, shared_bytes_from
from aiodist.api.streams import streams_from, with_bundles
from aiodist.api.table import table_from
from aiodist.backends.registry import backend_named, bind, rendezvous_for
from aiodist.credentials import VARIABLES as TLS_VARIABLES
from aiodist.credentials import Certificates, job_secret
from aiodist.deadline import Deadline, to_seconds
from aiodist.errors import GroupClosedError, InvalidUsageError
from aiodist.groups.ending import NO_SETTINGS, Settings
from aiodist.groups.process_group import Group, NonGroupMember, ProcessGroup
from aiodist.groups.world import World, current_world
from aiodist.mesh.endpoint import DEFAULT_WINDOW, Endpoint
from aiodist.mesh.interfaces import is_loopback
from aiodist.mesh.leaving import FLUSH_SECONDS
from aiodist.mesh.liveness import DEFAULT_TIMEOUT as DEFAULT_LIVENESS
from aiodist.mesh.liveness import SHORTEST, Heart
from aiodist.mesh.peer import Card
from aiodist.mesh.rendezvous import Rendezvous
from aiodist.mesh.rendezvous.environments import look_around
from aiodist.observe.answering import answer_questions
from aiodist.observe.observer import Observer
from aiodist.observe.recorder import size_from
from aiodist.store import Store, exchange
from aiodist.transport.base import Transport
from aiodist.transport.registry import Transports
from aiodist.types import DEFAULT_TIMEOUT, Backend

log = logging.getLogger("aiodist")

DEFAULT_GROUP = "default_pg"
_ABORT_SECONDS = 1.0
"""How long the other ranks may take to hear that this one aborts."""
_DEFAULT_TRANSPORTS = f"{SHARED},unix,tcp"
_SECURE_TRANSPORTS = f"{SHARED},unix,tls"
LIVENESS_VARIABLE = "AIODIST_LIVENESS_TIMEOUT"


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
    liveness_timeout: float | timedelta | None = None,
) -> None:
    """Meet the other ranks and make the default group. Returns when all of them are there.

    ``backend``: "aiodist" (the default), which "gloo" names too. ``init_method``: ``env://`` (the
    default: from the environment of ``aiodist run``, torchrun, Slurm, Open MPI, MPICH),
    ``tcp://host:port``, ``file:///path``; or a ``store``, ours or torch's, with ``rank`` and
    ``world_size``. Backend "mpi" takes rank and size from MPI. ``timeout`` is for this call and
    the default for every operation. ``group_name`` names the default group in messages.
    ``pg_options``: torch's own options, for one of torch's groups. ``device_id``: this rank's GPU,
    for "nccl" (default: the LOCAL_RANK-th).
    ``liveness_timeout``: seconds of silence after which a rank counts as lost, where the kernel
    does not say so at once; None means AIODIST_LIVENESS_TIMEOUT, or 10. 0 turns the watch off.

    Raises InvalidUsageError (a ValueError) for what cannot be meant, with all missing variables
    in one message, and when the world is initialised already; StoreTimeoutError naming the ranks
    that have not arrived; PeerLostError where a rank that had arrived died, gave up or fell silent;
    DistNetworkError and DistStoreError for hosts and ports. Cancelled or failed, it leaves nothing
    open, the ranks that wait for this one are told, and it may be called again.
    """
    world = current_world()
    world.abandon_if_orphaned()
    if world.is_initialized or world.opening:
        world.check_loop()
        raise InvalidUsageError(
            "trying to initialize the default process group twice; call "
            "destroy_process_group() first"
        )
    chosen = backend_named(backend)
    seconds = to_seconds(timeout)
    # Before the ranks meet: the others would wait for one that finds its mistake afterwards.
    schemes, window = schemes_from(os.environ), window_from(os.environ)
    shared_bytes = shared_bytes_from(os.environ, schemes)
    streams = streams_from(os.environ, schemes)
    size_from(os.environ)
    table_from(os.environ)
    patience = patience_from(liveness_timeout, os.environ)
    deadline = Deadline(seconds)
    world.opening = True
    try:
        met = await rendezvous_for(chosen)(
            init_method,
            rank=rank,
            size=world_size,
            store=store,
            deadline=deadline,
            environ=os.environ,
            patience=patience,
        )
        try:
            async with met.heeding():
                transports = transports_at(met.hosts, schemes) if met.size > 1 else []
                _warn_if_open(met)
                watched = patience > 0 and met.size > 1
                heart = Heart(met.rank, met.size, transports, patience) if watched else None
                memory = memory_of(met.rank, shared_bytes if met.size > 1 else 0)
                make = partial(Endpoint, window=window, heart=heart, memory=memory)
                ways = with_bundles(transports, met.hosts, streams)
                await _open_world(world, met.rank, met.size, met.store, ways, make, deadline)
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
        settings = Settings(pg_options, device_id)
        await _make_default(world, group_name, chosen, seconds, deadline, settings)
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
    seconds = to_seconds(timeout)
    window = DEFAULT_WINDOW if buffer_bytes is None else buffer_bytes
    memory = memory_of(rank, shared_bytes)
    endpoint = partial(Endpoint, window=window, memory=memory, host=host)
    await _open_world(world, rank, size, store, [transport], endpoint, Deadline(seconds))
    await _make_default(world, "", backend_named(backend), seconds, Deadline(seconds))


async def _open_world(
    world: World,
    rank: int,
    size: int,
    store: Store,
    transports: list[Transport],
    make: Callable[[int, int, list[Transport], World], Endpoint],
    deadline: Deadline,
) -> None:
    world.open(rank, size, store)
    endpoint = make(rank, size, transports, world)
    try:
        card = await endpoint.open()
        token = os.urandom(32) if rank == 0 else b""
        table = table_from(os.environ) if rank == 0 else b""
        mine = msgpack.packb([card.encode(), token, table])
        answers = await exchange(store, rank, size, mine, deadline, name="cards")
        everybody = [msgpack.unpackb(answer) for answer in answers]
        cards = [Card.decode(card) for card, _, _ in everybody]
        world.choose_by(everybody[0][2])
        introduce(world, endpoint, cards, everybody[0][1])
    except BaseException:
        await endpoint.close()
        world.clear()
        raise
    world.attach(endpoint)


def introduce(world: World, endpoint: Endpoint, cards: Sequence[Card], token: bytes) -> None:
    """Let ``endpoint`` know all ranks of ``world``, itself among them.

    They prove themselves to each other by the job's secret and the ``token``, which is rank 0's.
    """
    secret = job_secret(os.environ)
    key = hmac.new(secret, token, hashlib.sha256).digest()
    world.token = token
    endpoint.meet(cards, key)
    world.observer = Observer(world, world.rank, cards, key, os.environ)


async def _make_default(
    world: World,
    name: str,
    backend: Backend,
    timeout: float | None,
    deadline: Deadline,
    settings: Settings = NO_SETTINGS,
) -> None:
    ranks = range(world.size)
    group = ProcessGroup(world, name or DEFAULT_GROUP, ranks, backend, timeout, settings)
    bind(group)
    world.add(group)
    try:
        await group.backend.ready(deadline)
    except BaseException:
        await close_world(world, 0.0)
        raise
    world.default = group


def transports_at(hosts: Sequence[str], schemes: Sequence[str]) -> list[Transport]:
    """The transports of a rank whose own addresses are ``hosts``."""
    known = Transports.default(
        hosts[0],
        source_hosts=hosts if len(hosts) > 1 else (),
        certificates=Certificates.from_environ(os.environ),
    )
    return [known.get(scheme) for scheme in schemes if scheme != SHARED]


def _warn_if_open(met: Rendezvous) -> None:
    """Say what is open to whom where nothing keeps strangers out."""
    safe = job_secret(os.environ) or Certificates.from_environ(os.environ) or met.is_private
    if met.rank != 0 or met.size == 1 or safe or is_loopback(met.host):
        return
    log.warning(
        "rank 0 listens at %s, and this job has no secret: whoever can reach the ranks' store can "
        "read what the ranks say there, and take part in the job. Set AIODIST_SECRET (or "
        "AIODIST_SECRET_FILE) to the same long random value on all ranks, for example from: "
        "openssl rand -hex 32",
        met.host,
    )


def schemes_from(environ: Mapping[str, str]) -> list[str]:
    """The transports that AIODIST_TRANSPORT names, in its order."""
    certificates = Certificates.from_environ(environ)
    usual = _SECURE_TRANSPORTS if certificates else _DEFAULT_TRANSPORTS
    text = environ.get("AIODIST_TRANSPORT", "") or usual
    schemes = [scheme.strip() for scheme in text.split(",")]
    known = [SHARED, *Transports.default("", certificates=certificates).schemes]
    if "tls" in schemes and certificates is None:
        raise InvalidUsageError(
            f"AIODIST_TRANSPORT={text!r} names tls, which needs {', '.join(TLS_VARIABLES)}: the "
            "paths of this rank's certificate, its key, and the authority's certificate"
        )
    if certificates is not None:
        certificates.server_context()  # a file that does not serve is found before anybody waits
    if unknown := [scheme for scheme in schemes if scheme not in known]:
        raise InvalidUsageError(
            f"AIODIST_TRANSPORT={text!r} names {unknown[0]!r}, which is no transport: use one or "
            f"several of {', '.join(known)}, separated by commas"
        )
    if set(schemes) == {SHARED}:
        raise InvalidUsageError(
            f"AIODIST_TRANSPORT={text!r} names no stream, which shared memory goes with: write "
            f'"{SHARED},unix" or "{_DEFAULT_TRANSPORTS}"'
        )
    return schemes


def patience_from(argument: float | timedelta | None, environ: Mapping[str, str]) -> float:
    """The liveness timeout in seconds; 0 where nobody is to be watched."""
    if argument is not None:
        seconds = 0.0 if argument == 0 else to_seconds(argument)
        what = f"liveness_timeout={argument!r}"
    else:
        text = environ.get(LIVENESS_VARIABLE, "").strip()
        what = f"{LIVENESS_VARIABLE}={text!r}"
        try:
            seconds = float(text) if text else DEFAULT_LIVENESS
        except ValueError:
            seconds = math.nan
    if seconds is None or not (seconds == 0 or SHORTEST <= seconds < math.inf):
        raise InvalidUsageError(
            f"{what} is no liveness timeout: give a number of seconds, {SHORTEST:g} at least, or 0 "
            "to watch nobody"
        )
    return seconds


def window_from(environ: Mapping[str, str]) -> int:
    """The bytes that AIODIST_BUFFER_BYTES lets a rank buffer for each other one."""
    text = environ.get("AIODIST_BUFFER_BYTES", "")
    if not text:
        return DEFAULT_WINDOW
    if not text.isdecimal() or int(text) < 1 << 16:
        raise InvalidUsageError(
            f"AIODIST_BUFFER_BYTES must be a number of bytes, at least 65536, not {text!r}"
        )
    return int(text)


async def destroy_process_group(group: Group | None = None) -> None:
    """Close ``group``, or where None all groups and the connections to the other ranks.

    What is under way has 5 seconds to finish (receives have none); then it fails with
    GroupClosedError, and what nobody awaits is logged. With a rank that is silent, stopped for
    example, it takes up to 8 seconds in all. Afterwards ``init_process_group`` may be called again.
    """
    world = current_world()
    if world.abandon_if_orphaned():
        return
    chosen = world.find(group)
    if isinstance(chosen, NonGroupMember):
        return
    groups = world.groups if chosen is world.default else [chosen]
    lonely = [(w, w.describe()) for each in groups for w in each.under_way() if not w.is_awaited]
    if chosen is world.default:
        world.check_loop()
        await close_world(world)
    else:
        await close_groups(world, [chosen])
    for work, what in lonely:
        if isinstance(work.exception(), GroupClosedError):
            log.warning("%s had not ended when its group was destroyed; nobody awaited it", what)


async def abort_process_group(group: Group | None = None) -> None:
    """Close ``group``, or where None all groups and the connections, without waiting for anything.

    Whoever waits for an operation is freed now, with GroupClosedError; the other members get
    CollectiveCancelledError or GroupRevokedError that names this rank. What was still to be sent
    may be lost. `ProcessGroup.abort` does the first half and may be called in any thread.
    """
    world = current_world()
    if world.abandon_if_orphaned():
        return
    chosen = world.find(group)
    if isinstance(chosen, NonGroupMember):
        return
    world.check_loop()
    aborted = world.groups if chosen is world.default else [chosen]
    for each in aborted:
        each.abort()
    if chosen is not world.default:
        world.remove(chosen)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ABORT_SECONDS):
            await close_world(world, 0.0)


async def close_world(world: World, seconds: float = FLUSH_SECONDS) -> None:
    """Close all groups of ``world`` and its connections, with ``seconds`` for what is under way."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    await close_groups(world, world.groups, seconds)
    await world.close(max(0.0, end - loop.time()))


async def close_groups(
    world: World, groups: Sequence[ProcessGroup], seconds: float = FLUSH_SECONDS
) -> None:
    """Close some of ``world``'s groups, after ``seconds`` for what is under way in them."""
    await _quiet(groups, seconds)
    for each in groups:
        world.remove(each)


async def _quiet(groups: Sequence[ProcessGroup], seconds: float = FLUSH_SECONDS) -> None:
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
        work.when_done(one_less)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await done.wait()


def is_initialized() -> bool:
    """Whether the default group is there."""
    return current_world().is_initialized


def is_available() -> bool:
    """True: where aiodist imports, it works."""
    return True


def is_mpi_available() -> bool:
    """Whether backend "mpi" can be used here."""
    return is_backend_available(Backend.MPI)


def is_nccl_available() -> bool:
    """Whether backend "nccl" can be used here."""
    return is_backend_available(Backend.NCCL)


def is_gloo_available() -> bool:
    """True: "gloo" names the native backend."""
    return is_backend_available(Backend.GLOO)


def is_backend_available(backend: str) -> bool:
    """Whether ``init_process_group`` takes ``backend`` here; False also for an unknown name."""
    try:
        backend_named(backend)
    except ValueError:
        return False
    return True


def is_torchelastic_launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """This rank's number on its host, as LOCAL_RANK or the launcher's own variable has it.

    Where neither is set, ``fallback_rank``; and where that is None, raises InvalidUsageError.
    """
    local = look_around(os.environ).local_rank()
    if local is not None:
        return local
    if fallback_rank is None:
        raise InvalidUsageError(
            "LOCAL_RANK is not set: start this script by a launcher (aiodist run, torchrun), or "
            "pass fallback_rank"
        )
    return int(fallback_rank)
