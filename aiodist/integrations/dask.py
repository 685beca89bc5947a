"""Ranks on the workers of a Dask cluster: ``submit`` returns futures by rank, `run` their results.

Needs the package distributed: ``pip install 'aiodist[dask]'``.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

try:
    import distributed
except ImportError as error:
    raise ImportError(
        "aiodist.integrations.dask needs Dask's distributed: pip install 'aiodist[dask]'"
    ) from error

from aiodist.errors import InvalidUsageError, PeerLostError
from aiodist.integrations.placement import place_by_host, variables_of
from aiodist.integrations.worker_call import call_and_leave
from aiodist.launch.environment import job_identity
from aiodist.launch.ports import PortReservation, reserve_port
from aiodist.rank_processes.ranks_error import InterruptedCallError, ranks_error

GRACE_SECONDS = 5.0
"""How long after the first error the other ranks may take to learn of it by themselves."""

_LOOK_SECONDS = 1.0
"""Between looks whether all workers are there."""

_PRIORITY = 100
"""Above ordinary tasks: a rank that waits for a thread lets all the others wait."""


def submit(
    client: distributed.Client,
    fn: Callable[..., Any],
    *args: Any,
    data: Any = None,
    workers: Iterable[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> list[distributed.Future]:
    """Call ``fn(*args)`` on one rank a worker.

    Each worker process carries one rank at a time. Results stay in the workers' memory until they
    are gathered.

    Args:
        client: A client of the cluster.
        fn: Begins with ``init_process_group()`` of either API, without arguments, and may be a
            coroutine function. Groups that it leaves are destroyed when it ends.
        *args: Futures among them arrive as their values.
        data: Futures, or a persisted collection such as a ``dask.array``. Then ``fn(blocks,
            *args)`` is called, where ``blocks`` is the list of those blocks that this rank's
            worker has in its memory, in order. A block that several workers have goes to the one
            with the fewest.
        workers: Addresses; None is all workers.
        env: Further variables of the ranks.

    Returns:
        The futures of the results, by rank.

    Raises:
        InvalidUsageError: Workers are threads of one process, there are no workers, or data is on
            no chosen worker.
    """
    futures, _ = _start(client, fn, args, data, workers, env)
    return futures


def run(
    client: distributed.Client,
    fn: Callable[..., Any],
    *args: Any,
    data: Any = None,
    workers: Iterable[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Do as ``submit``, and wait.

    A rank whose worker was lost appears with PeerLostError. Dask's nanny starts the worker anew;
    the next call has a rank there.

    Args:
        client: A client of the cluster.
        fn: Begins with ``init_process_group()`` of either API, without arguments, and may be a
            coroutine function. Groups that it leaves are destroyed when it ends.
        *args: Futures among them arrive as their values.
        data: Futures, or a persisted collection such as a ``dask.array``. Then ``fn(blocks,
            *args)`` is called, where ``blocks`` is the list of those blocks that this rank's
            worker has in its memory, in order. A block that several workers have goes to the one
            with the fewest.
        workers: Addresses; None is all workers.
        env: Further variables of the ranks.

    Returns:
        The results, by rank.

    Raises:
        RanksError: A rank fails. The others have 5 seconds to end by themselves, and are then
            left to themselves.
        InvalidUsageError: Workers are threads of one process, there are no workers, or data is on
            no chosen worker.
    """
    futures, addresses = _start(client, fn, args, data, workers, env)
    results: dict[int, Any] = {}
    errors: dict[int, Exception] = {}
    waiting = dict(enumerate(futures))
    until = None
    while waiting and (until is None or time.monotonic() < until):
        _wait_for_one(list(waiting.values()))
        for rank, future in list(waiting.items()):
            if future.done():
                del waiting[rank]
                error = _error_of(rank, len(futures), future)
                if error is None:
                    results[rank] = future.result()
                else:
                    errors[rank] = error
        living = _workers(client)
        for rank in [rank for rank in waiting if addresses[rank] not in living]:
            waiting.pop(rank).cancel()
            text = f"rank {rank} of {len(futures)} was lost: its worker {addresses[rank]} is gone"
            errors[rank] = PeerLostError(text, rank=rank)
        if errors and until is None:
            until = time.monotonic() + GRACE_SECONDS
    for rank, future in waiting.items():
        future.cancel()
        errors[rank] = InterruptedCallError("the call was given up, because another rank failed")
    if errors:
        raise ranks_error(errors, results, list(errors), len(futures))
    return [results[rank] for rank in range(len(futures))]


def _start(
    client: distributed.Client,
    fn: Callable[..., Any],
    args: Sequence[Any],
    data: Any,
    workers: Iterable[str] | None,
    env: Mapping[str, str] | None,
) -> tuple[list[distributed.Future], list[str]]:
    """Do as ``submit``; return the futures and the addresses of their workers, by rank."""
    chosen = list(_workers(client) if workers is None else workers)
    if not chosen:
        raise InvalidUsageError("the cluster has no workers: wait for them, or name some")
    if inside := [address for address in chosen if address.startswith("inproc:")]:
        raise InvalidUsageError(
            f"{inside[0]} is a thread of this process, and each rank needs a process: "
            "LocalCluster(processes=True)"
        )
    hosts = [urlsplit(address).hostname or address for address in chosen]
    places = place_by_host(hosts)
    ordered = [chosen[place.worker] for place in places]
    blocks = None if data is None else _blocks_by_worker(client, data, ordered)
    identity = job_identity(env or {}) | dict(env or {})
    key = f"aiodist-{identity['AIODIST_RUN_ID']}"
    pids = client.run(os.getpid, workers=ordered)
    (port,) = client.run(_reserve, key, workers=ordered[:1]).values()
    futures = []
    for place, worker in zip(places, ordered, strict=True):
        variables = identity | variables_of(place, len(places), hosts[places[0].worker], port)
        own = args if blocks is None else (blocks[worker], *args)
        futures.append(
            client.submit(
                _call,
                fn,
                key,
                pids[worker],
                variables,
                *own,
                workers=[worker],
                allow_other_workers=False,
                priority=_PRIORITY,
                pure=False,
                key=f"{key}-rank-{place.rank}",
            )
        )
    return futures, ordered


def _workers(client: distributed.Client) -> list[str]:
    """Return the addresses of all workers, as the scheduler has them now.

    ``client.scheduler_info()`` returns what a background task of the client may have shortened.
    """
    return list(client.nthreads())


def _wait_for_one(futures: Sequence[distributed.Future]) -> None:
    """Return when one of ``futures`` is done, and after `_LOOK_SECONDS` at the latest."""
    try:
        distributed.wait(futures, timeout=_LOOK_SECONDS, return_when="FIRST_COMPLETED")
    except TimeoutError:
        return


def _error_of(rank: int, size: int, future: distributed.Future) -> Exception | None:
    """Return why the rank of ``future`` has no result; None where it has one."""
    if future.status == "finished":
        return None
    error = future.exception()
    if isinstance(error, distributed.KilledWorker):
        return PeerLostError(f"rank {rank} of {size} was lost: {error}", rank=rank)
    if not isinstance(error, Exception):
        return InterruptedCallError(f"the call was {future.status}")
    trace = "".join(traceback.format_tb(future.traceback()))
    error.add_note(f"rank {rank} of {size} raised this:\n\n{trace.rstrip()}")
    return error


def _blocks_by_worker(
    client: distributed.Client, data: Any, workers: Sequence[str]
) -> dict[str, list[distributed.Future]]:
    """Return the blocks of ``data`` that each of ``workers`` is to work on."""
    futures = distributed.futures_of(data) or list(data)
    distributed.wait(futures)
    holders = client.who_has(futures)
    blocks: dict[str, list[distributed.Future]] = {worker: [] for worker in workers}
    for future in futures:
        near = [worker for worker in workers if worker in holders[future.key]]
        if not near:
            raise InvalidUsageError(
                f"block {future.key!r} is in the memory of no chosen worker, but of "
                f"{', '.join(holders[future.key]) or 'none'}: name all workers that have data"
            )
        blocks[min(near, key=lambda worker: len(blocks[worker]))].append(future)
    return blocks


def _reserve(key: str, dask_worker: Any) -> int:
    """Reserve a port on the worker of rank 0, until that rank ends or the worker does."""
    reservation = reserve_port()
    dask_worker.extensions[key] = reservation
    return reservation.port


def _call(
    fn: Callable[..., Any], key: str, pid: int, variables: Mapping[str, str], *args: Any
) -> Any:
    """Call ``fn`` in the worker's process ``pid``, in one of its threads.

    Dask repeats the tasks of a lost worker where its nanny has started it anew. A rank cannot begin
    again there: the others have lost it.
    """
    if os.getpid() != pid:
        rank = int(variables["RANK"])
        text = f"rank {rank} was lost: its worker, process {pid}, was started anew"
        raise PeerLostError(text, rank=rank, pid=pid)
    try:
        return call_and_leave(fn, args, variables)
    finally:
        held: PortReservation | None = distributed.get_worker().extensions.pop(key, None)
        if held is not None:
            held.close()
