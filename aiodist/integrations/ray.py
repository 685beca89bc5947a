"""Ranks as Ray actors: `run` calls a function on each, and Ray starts lost ones anew.

Needs the package ray: ``pip install 'aiodist[ray]'``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

try:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    raise ImportError("aiodist.integrations.ray needs Ray: pip install 'aiodist[ray]'") from error

from aiodist.credentials import Certificates, job_secret
from aiodist.errors import InvalidUsageError, PeerLostError
from aiodist.groups.argument_checks import check_int
from aiodist.integrations.worker_ranks import call_and_leave, place_by_host, variables_of
from aiodist.launch.environment import job_identity
from aiodist.launch.ports import PortReservation, reserve_port
from aiodist.rank_processes.ranks_error import InterruptedCallError, ranks_error
from aiodist.store import TcpStoreServer

GRACE_SECONDS = 5.0
"""How long after the first error the other ranks may take to learn of it by themselves."""


def run(
    fn: Callable[..., Any],
    *args: Any,
    n: int,
    resources: Mapping[str, float] | None = None,
    strategy: str = "PACK",
    max_restarts: int = 0,
    placement_timeout: float | None = None,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Call ``fn(*args)`` on several ranks, each a Ray actor of its own.

    Ray is initialised where it is not yet. It blocks. Groups that ``fn`` leaves are destroyed. No
    actor and no placement group is left behind.

    Args:
        fn: Begins with ``init_process_group()`` of either API, without arguments, and may be a
            coroutine function.
        *args: They travel as Ray's do; an ``ObjectRef`` among them arrives as its value.
        n: How many ranks.
        resources: What each rank takes; None is ``{"CPU": 1}``.
        strategy: Where the placement group puts ranks: "PACK", "SPREAD", "STRICT_PACK",
            "STRICT_SPREAD".
        max_restarts: How often Ray starts a rank anew whose process was lost. ``fn`` is called
            again there, with ``is_replacement()`` true: it calls ``rejoin()`` in place of
            ``init_process_group()``, and the others take it in by ``grow(ranks=[lost])``.
        placement_timeout: Seconds to wait for the resources; None is no limit.
        env: Further variables of the ranks.

    Returns:
        The results, by rank.

    Raises:
        RanksError: A rank fails; the others have 5 seconds to end by themselves. A rank whose
            process was lost appears with PeerLostError.
        InvalidUsageError: A value is invalid.
        TimeoutError: The resources are not there in time.
    """
    check_int(n, "n")
    check_int(max_restarts, "max_restarts")
    if n < 1 or max_restarts < 0:
        raise InvalidUsageError(
            f"n must be at least 1 and max_restarts 0 or more, not n={n}, "
            f"max_restarts={max_restarts}"
        )
    if not ray.is_initialized():
        ray.init()
    bundle = dict(resources or {"CPU": 1})
    group = placement_group([bundle] * n, strategy=strategy)
    actors: list[Any] = []
    try:
        if not group.wait(placement_timeout if placement_timeout is not None else 1 << 30):
            raise TimeoutError(
                f"Ray has not had {n} times {bundle} ({strategy}) within {placement_timeout:g} s"
            )
        actors += [_rank_actor(group, number, bundle, max_restarts) for number in range(n)]
        places = place_by_host(ray.get([actor.host.remote() for actor in actors]))
        ranks = [actors[place.worker] for place in places]
        address, port = ray.get(ranks[0].reserve.remote())
        identity = job_identity(env or {}) | dict(env or {})
        restarts = None
        if max_restarts:
            options = {"num_cpus": 0, "scheduling_strategy": _bundle(group, places[0].worker)}
            restarts = ray.remote(_RestartStore).options(**options).remote(identity)
            actors.append(restarts)
        calls = [
            rank.call.remote(fn, args, identity | variables_of(place, n, address, port), restarts)
            for rank, place in zip(ranks, places, strict=True)
        ]
        return _results(calls, ranks)
    finally:
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(group)


class _RankActor:
    """One rank. Ray makes it anew after its process was lost, and repeats the call there."""

    def __init__(self) -> None:
        self._port: PortReservation | None = None

    def host(self) -> str:
        """Return Ray's id of this node."""
        node: str = ray.get_runtime_context().get_node_id()
        return node

    def reserve(self) -> tuple[str, int]:
        """Return this node's address, and a port of it that stays free for rank 0."""
        self._port = reserve_port()
        return ray.util.get_node_ip_address(), self._port.port

    def call(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        variables: Mapping[str, str],
        restarts: Any,
    ) -> Any:
        """Return what ``fn`` returns. ``restarts``: the actor of `_RestartStore`, or None."""
        own = dict(variables)
        if restarts is not None:
            own |= ray.get(restarts.variables.remote(int(own["RANK"])))
        given = [ray.get(arg) if isinstance(arg, ray.ObjectRef) else arg for arg in args]
        return call_and_leave(fn, given, own)


class _RestartStore:
    """Serves the store at which replacements meet the members, and counts the starts of each rank."""

    def __init__(self, identity: Mapping[str, str]) -> None:
        self._identity = identity
        self._starts: dict[int, int] = {}
        self._server: TcpStoreServer | None = None
        self._opening = asyncio.Lock()

    async def variables(self, rank: int) -> dict[str, str]:
        """Return what a process of ``rank`` that begins now has to know of restarts."""
        address = ray.util.get_node_ip_address()
        async with self._opening:
            if self._server is None:
                self._server = await TcpStoreServer.start(
                    address,
                    secret=job_secret(self._identity),
                    certificates=Certificates.from_environ(self._identity),
                )
        count = self._starts.get(rank, 0)
        self._starts[rank] = count + 1
        found = {
            "AIODIST_REJOIN_STORE": f"{address}:{self._server.port}",
            "AIODIST_RESTART_COUNT": str(count),
        }
        return found | ({"AIODIST_REPLACEMENT": "1"} if count else {})


_LOST = (
    ray.exceptions.RayActorError,
    ray.exceptions.LocalRayletDiedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.WorkerCrashedError,
)
"""Errors of Ray by which the process of a rank, or what it returned, is gone."""


def _bundle(group: Any, number: int) -> Any:
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)


def _rank_actor(group: Any, number: int, bundle: Mapping[str, float], max_restarts: int) -> Any:
    """Return an actor in bundle ``number`` of ``group``."""
    named = ("CPU", "GPU", "memory")
    others = {name: amount for name, amount in bundle.items() if name not in named}
    options = {
        "num_cpus": bundle.get("CPU", 0),
        "num_gpus": bundle.get("GPU", 0),
        "memory": bundle.get("memory"),
        "resources": others,
        "scheduling_strategy": _bundle(group, number),
        "max_restarts": max_restarts,
        "max_task_retries": max_restarts,  # the call begins again in the new process
    }
    return ray.remote(_RankActor).options(**options).remote()


def _results(calls: Sequence[Any], ranks: Sequence[Any]) -> list[Any]:
    """Wait for all calls; return their results, or raise the error of those that failed."""
    rank_of = {call: rank for rank, call in enumerate(calls)}
    results: dict[int, Any] = {}
    errors: dict[int, Exception] = {}
    waiting = list(calls)
    until = None
    while waiting:
        seconds = None if until is None else max(0.0, until - time.monotonic())
        done, waiting = ray.wait(waiting, num_returns=1, timeout=seconds)
        for call in done:
            rank = rank_of[call]
            try:
                results[rank] = ray.get(call)
            except ray.exceptions.RayError as error:
                errors[rank] = _error(rank, len(calls), error)
        if errors and until is None:
            until = time.monotonic() + GRACE_SECONDS
        if not done:
            break
    for call in waiting:
        rank = rank_of[call]
        ray.kill(ranks[rank])
        errors[rank] = InterruptedCallError("the call was ended, because another rank failed")
    if errors:
        raise ranks_error(errors, results, list(errors), len(calls))
    return [results[rank] for rank in range(len(calls))]


def _error(rank: int, size: int, error: Exception) -> Exception:
    """Return what the function of ``rank`` raised, that its process was lost, or Ray's own error."""
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        found = cause if isinstance(cause, Exception) else RuntimeError(str(cause))
        found.add_note(f"rank {rank} of {size} raised this:\n\n{error}")
        return found
    if isinstance(error, _LOST):
        return PeerLostError(f"rank {rank} of {size} was lost: {error}", rank=rank)
    error.add_note(f"rank {rank} of {size} has no result: its outcome did not arrive")
    return error
