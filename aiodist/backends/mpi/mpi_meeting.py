"""Where the ranks of an MPI job meet: rank and size are MPI's, and MPI carries the address.

Our own streams are there beside MPI's: they carry the agreement on groups' names and the word of a
failure, which MPI has no way to tell. They are opened when first needed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgpack
import numpy as np

from aiodist.backends.mpi.library import Mpi, check_thread, in_thread, load
from aiodist.backends.mpi.poller import Request
from aiodist.backends.polling import awaited
from aiodist.deadline import Deadline
from aiodist.errors import InvalidUsageError, StoreTimeoutError
from aiodist.links.interfaces import choose_hosts, default_address
from aiodist.rendezvous import Rendezvous, rendezvous
from aiodist.rendezvous.meeting import host_identity, meet_at
from aiodist.rendezvous.meeting_stores import MeetingStore
from aiodist.rendezvous.silence_watch import over_tcp, over_tcp_served
from aiodist.store import Store, TcpStore, TcpStoreServer

log = logging.getLogger("aiodist")

_LOOPBACK = "127.0.0.1"
_ADDRESS_BYTES = 256
_UNSET = -1
_PAUSE = 1e-3

_COUNTED_ELSEWHERE = (
    ("WORLD_SIZE", "mpiexec -n {} python script.py"),
    # It counts the tasks of one srun. SLURM_NTASKS may count those of the allocation, which mpiexec splits.
    (
        "SLURM_STEP_NUM_TASKS",
        "srun --mpi=pmix python script.py, with the --mpi of `srun --mpi=list` that the MPI library takes",
    ),
)
"""Variables of other launchers with their number of ranks, and how to start as many with MPI."""


async def rendezvous_of_mpi(
    init_method: str | None,
    *,
    rank: int,
    size: int,
    store: Any | None,
    deadline: Deadline,
    environ: Mapping[str, str],
    silence_limit: float = 0.0,
) -> Rendezvous:
    """Do as `rendezvous.rendezvous`, with MPI's rank and size. Initialises MPI if need be.

    ``rank`` and ``size``: -1, or MPI's own. Without a ``store`` and with ``env://`` or no
    ``init_method``, MPI tells the ranks where to meet.

    Raises InvalidUsageError where the caller's numbers are not MPI's, DistBackendError where MPI
    cannot be used, StoreTimeoutError where not all of its ranks come.
    """
    loop = asyncio.get_running_loop()
    mpi = await awaited(in_thread(loop, load))
    check_thread(mpi)
    world = mpi.COMM_WORLD
    for name, given, theirs in (("rank", rank, world.rank), ("world_size", size, world.size)):
        if given not in (_UNSET, theirs):
            raise InvalidUsageError(
                f"{name}={given} was given, and MPI says {theirs}: with backend 'mpi' leave rank "
                "and world_size out, and start the ranks by mpiexec -n N python script.py"
            )
    if size == _UNSET:
        _warn_of_another_launcher(world.size, environ)
    if store is not None or init_method not in (None, "env://"):
        return await rendezvous(
            init_method,
            rank=world.rank,
            size=world.size,
            store=store,
            deadline=deadline,
            environ=environ,
            silence_limit=silence_limit,
        )
    comm, request = world.Idup()
    await _finished(request, comm, world.size, deadline)
    place = await _open_place(mpi, comm, deadline, environ)
    comm.Free()  # not after an error: a collective may be in progress on it
    return await meet_at(
        place,
        rank=world.rank,
        size=world.size,
        source="MPI",
        deadline=deadline,
        environ=environ,
        silence_limit=silence_limit,
    )


def _warn_of_another_launcher(size: int, environ: Mapping[str, str]) -> None:
    """Log where another launcher than mpiexec has started several ranks: each is alone in MPI."""
    for variable, remedy in _COUNTED_ELSEWHERE:
        told = environ.get(variable, "")
        if size == 1 and told.isdecimal() and int(told) > 1:
            log.warning(
                "MPI has started this process alone, although %s is %s: with backend 'mpi' each such "
                "process is a world of one rank. Start the ranks by %s",
                variable,
                told,
                remedy.format(told),
            )
            return


async def _open_place(
    mpi: Mpi, comm: Mpi, deadline: Deadline, environ: Mapping[str, str]
) -> MeetingStore:
    """Return the store that rank 0 serves at a free port, and whose address and secret it broadcasts."""
    mine = hashlib.sha256(host_identity().encode()).digest()
    hosts = np.empty((comm.size, len(mine)), np.uint8)
    hosts[comm.rank] = np.frombuffer(mine, np.uint8)
    request = comm.Iallgather(mpi.IN_PLACE, [hosts, mpi.BYTE])
    await _finished(request, hosts, comm.size, deadline)
    one_host = bool((hosts == hosts[0]).all())
    told = np.zeros(_ADDRESS_BYTES, np.uint8)
    server: TcpStoreServer | None = None
    if comm.rank == 0:
        chosen = choose_hosts(_LOOPBACK if one_host else None, environ) or (default_address(),)
        secret = os.urandom(32)
        server = await TcpStoreServer.start(
            chosen[0], 0, secret=secret, expected_clients=comm.size - 1
        )
        packed = msgpack.packb([server.host, server.port, secret])
        told[: len(packed)] = np.frombuffer(packed, np.uint8)
    try:
        await _finished(comm.Ibcast([told, mpi.BYTE], 0), told, comm.size, deadline)
    except BaseException:
        if server is not None:
            await server.close()
        raise
    unpacker = msgpack.Unpacker()
    unpacker.feed(told.tobytes())
    host, port, secret = unpacker.unpack()
    store: Store
    keeper: TcpStore | TcpStoreServer
    if server is None:
        store = keeper = await TcpStore.connect(host, port, deadline, secret=secret)
        watch = partial(over_tcp, host, secret, None)
    else:
        store, keeper = server.store(), server
        watch = partial(over_tcp_served, host, secret, None)
    return MeetingStore(
        store,
        f"{host}:{port}, told by MPI",
        keeper.close,
        _LOOPBACK if one_host else host,
        keeper.close_in_child,
        serves=server is not None,
        once=server is None,
        private=True,
        watch=watch,
    )


async def _finished(request: Mpi, memory: object, size: int, deadline: Deadline) -> None:
    """Poll a request of all ranks until it has completed.

    ``memory``: all that MPI reads or writes for it.
    """
    watched = Request(request, memory)
    while not watched.test():
        if deadline.expired():
            raise StoreTimeoutError(
                f"not all of the {size} ranks that mpiexec started called init_process_group "
                f"within {deadline.timeout} s"
            )
        await asyncio.sleep(_PAUSE)
