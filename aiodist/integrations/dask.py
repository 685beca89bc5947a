"""Ranks on the workers of a Dask cluster: ``submit`` returns futures by rank, `run` their results.

Needs the package distributed: ``pip install 'aiodist[dask]'``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

try:
    import distributed
except ImportError as error:
    raise ImportError(
        "aiodist.integrations.dask needs Dask's distributed: pip install 'aiodist[dask]'"
    ) from error

from aiodist.errors import InvalidUsageError, PeerLostError
from aiodist.integrations.worker_ranks import call_and_leave, place_by_host, variables_of
from aiodist.launch.environment import job_identity
from aiodist.launch.ports import PortReservation, reserve_port
from aiodist.rank_processes.ranks_error import InterruptedCallError, ranks_error

GRACE_SECONDS = 5.0
"""How long after the first error the other ranks may take to learn of it by themselves."""

_LOOK_SECONDS = 1.0
"""Between looks whether all workers are there."""

_PLUGIN = "aiodist"
"""The name of `_WorkerRanks` among a worker's plugins."""

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

    Each worker process carries one rank at a time: another one waits for a worker of one thread,
    and fails with InvalidUsageError in one of several threads. Results stay in the workers' memory
    until they are gathered.

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
        InvalidUsageError: Workers are threads of one process, there are no workers, one is unknown
            or named twice, or data is no futures or on no chosen worker.
        Exception: What a block of data raised instead of being computed.
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
        InvalidUsageError: Workers are threads of one process, there are no workers, one is unknown
            or named twice, or data is no futures or on no chosen worker.
        Exception: What a block of data raised instead of being computed.
    """
    futures, addresses = _start(client, fn, args, data, workers, env)
    results: dict[int, Any] = {}
    errors: dict[int, Exception] = {}
    waiting = dict(enumerate(futures))
    until = None
    while waiting and (until is None or time.monotonic() < until):
        with contextlib.suppress(TimeoutError, distributed.CancelledError):
            several = list(waiting.values())
            distributed.wait(several, timeout=_LOOK_SECONDS, return_when="FIRST_COMPLETED")
        for rank, future in list(waiting.items()):
            if future.done():
                del waiting[rank]
                try:
                    results[rank] = _result_of(rank, len(futures), future)
                except Exception as error:  # noqa: BLE001  # the function's own
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
    chosen = _workers(client) if workers is None else _checked(workers, _workers(client))
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
    # Dask takes a task whose key it knows for the same task, and jobs may share a run's id.
    key = f"aiodist-{identity['AIODIST_RUN_ID']}-{secrets.token_hex(8)}"
    keys = [f"{key}-rank-{place.rank}" for place in places]
    pids = client.run(_prepare, workers=ordered)
    (port,) = client.run(_reserve, keys[0], workers=ordered[:1]).values()
    give_back = partial(client.run, _release, keys[0], workers=ordered[:1], on_error="ignore")
    futures: list[distributed.Future] = []
    try:
        for place, worker in zip(places, ordered, strict=True):
            variables = identity | variables_of(place, len(places), hosts[places[0].worker], port)
            own = args if blocks is None else (blocks[worker], *args)
            futures.append(
                client.submit(
                    _call,
                    fn,
                    pids[worker],
                    variables,
                    *own,
                    workers=[worker],
                    allow_other_workers=False,
                    priority=_PRIORITY,
                    pure=False,
                    key=keys[place.rank],
                )
            )
    except BaseException:
        for future in futures:
            future.cancel()
        give_back()
        raise

    def ended(future: distributed.Future) -> None:
        # The error may be an argument's, and then the worker never gets the task.
        if future.status == "error":
            give_back()

    futures[0].add_done_callback(ended)
    return futures, ordered


def _workers(client: distributed.Client) -> list[str]:
    """Return the addresses of all workers, as the scheduler has them now.

    ``client.scheduler_info()`` returns what a background task of the client may have shortened.
    """
    return list(client.nthreads())


def _checked(workers: Iterable[str], known: Sequence[str]) -> list[str]:
    """Return ``workers`` as a list. Raises InvalidUsageError unless they are distinct and ``known``."""
    if isinstance(workers, str):
        raise InvalidUsageError(f"workers must be several addresses, not the string {workers!r}")
    chosen = list(workers)
    for number, address in enumerate(chosen):
        if address not in known:
            raise InvalidUsageError(
                f"{address!r} is no address of a worker; the cluster has {', '.join(known) or 'none'}"
            )
        if address in chosen[:number]:
            raise InvalidUsageError(f"{address} is named twice, and a worker carries one rank")
    return chosen


def _result_of(rank: int, size: int, future: distributed.Future) -> Any:
    """Return the result of ``rank``, whose ``future`` is done. Raises the error of a rank without one."""
    if future.status == "finished":
        try:
            return future.result()
        except Exception as lost:
            lost.add_note(f"the result of rank {rank} of {size} did not arrive")
            raise
    error = future.exception() if future.status == "error" else None
    if isinstance(error, distributed.KilledWorker):
        raise PeerLostError(f"rank {rank} of {size} was lost: {error}", rank=rank)
    if not isinstance(error, Exception):
        raise InterruptedCallError(f"the call was {future.status}")
    trace = "".join(traceback.format_tb(future.traceback()))
    error.add_note(f"rank {rank} of {size} raised this:\n\n{trace.rstrip()}")
    raise error


def _blocks_by_worker(
    client: distributed.Client, data: Any, workers: Sequence[str]
) -> dict[str, list[distributed.Future]]:
    """Return the blocks of ``data`` that each of ``workers`` is to work on."""
    futures = distributed.futures_of(data)
    if not futures and (others := list(data)):
        raise InvalidUsageError(
            f"data must be futures or a persisted collection, not {type(data).__name__} of "
            f"{type(others[0]).__name__}: a collection of Dask has persist()"
        )
    distributed.wait(futures)
    for future in futures:
        if future.status == "error":
            future.result()  # raises its error
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


class _WorkerRanks(distributed.WorkerPlugin):  # type: ignore[misc]  # a class without types
    """What a worker keeps of its ranks: which one it carries now, and the ports of ranks 0."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._carried = ""  # the text of the rank that this process carries
        self._ports: dict[str, PortReservation] = {}  # by the key of the task

    def reserve(self, key: str) -> int:
        """Reserve a port until the task ``key`` is no more: it may be cancelled before it begins."""
        self._ports[key] = reservation = reserve_port()
        return reservation.port

    def transition(self, key: Any, start: Any, finish: Any, **more: Any) -> None:
        """Give back the port of a task that has ended. Dask calls this for every task."""
        if finish in ("memory", "error", "released", "forgotten"):
            self.release(key)

    def teardown(self, worker: Any) -> None:
        for key in list(self._ports):
            self.release(key)

    def release(self, key: Any) -> None:
        """Give back the port of the task ``key``, if there is one still."""
        held = self._ports.pop(key, None)
        if held is not None:
            held.close()

    @contextlib.contextmanager
    def carrying(self, text: str) -> Iterator[None]:
        """Carry the rank of that ``text``. Raises InvalidUsageError if another one is carried."""
        with self._lock:
            if self._carried:
                raise InvalidUsageError(
                    f"this worker carries {self._carried}, which has not ended yet, and can carry "
                    "no other rank meanwhile: wait for the other call, or choose other workers"
                )
            self._carried = text
        try:
            yield
        finally:
            self._carried = ""


async def _prepare(dask_worker: Any) -> int:
    """Let the worker have `_WorkerRanks`; return the id of its process."""
    if _PLUGIN not in dask_worker.plugins:
        await dask_worker.plugin_add(_WorkerRanks(), _PLUGIN)
    return os.getpid()


def _reserve(key: str, dask_worker: Any) -> int:
    """Reserve a port on the worker of rank 0, as long as there is the task ``key``."""
    port: int = dask_worker.plugins[_PLUGIN].reserve(key)
    return port


def _release(key: str, dask_worker: Any) -> None:
    """Give back the port of the task ``key``, if there is one still."""
    dask_worker.plugins[_PLUGIN].release(key)


def _call(fn: Callable[..., Any], pid: int, variables: Mapping[str, str], *args: Any) -> Any:
    """Call ``fn`` in the worker's process ``pid``, in one of its threads.

    Dask repeats the tasks of a lost worker where its nanny has started it anew. A rank cannot begin
    again there: the others have lost it.
    """
    rank = int(variables["RANK"])
    if os.getpid() != pid:
        text = f"rank {rank} was lost: its worker, process {pid}, was started anew"
        raise PeerLostError(text, rank=rank, pid=pid)
    ranks: _WorkerRanks = distributed.get_worker().plugins[_PLUGIN]
    with ranks.carrying(f"rank {rank} of job {variables['AIODIST_RUN_ID']}"):
        return call_and_leave(fn, args, variables)
