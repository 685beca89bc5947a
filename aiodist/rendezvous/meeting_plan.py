"""Find rank and meeting place from arguments, URL and environment. Pure.

Precedence, for each fact separately: the argument of init_process_group or the URL's query (never
both), then RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, then the launcher's own
variables.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aiodist.errors import InvalidUsageError
from aiodist.rendezvous.environments import LaunchEnvironment, Meeting, Number, read_environment
from aiodist.rendezvous.methods import InitMethod, parse
from aiodist.store.addresses import show

UNSET = -1
"""The value of rank and world_size if the caller left them out, as in torch."""

AGENT = "torchrun's store"
TORCH_GROUP = "the store of torch's default group"

_UNSET_IS = f"(rank={UNSET} or world_size={UNSET} means that it is not given)"


@dataclass(frozen=True)
class Master:
    """Where a store is served. ``server``: what serves a torch TCPStore there, for messages.

    Without one, rank 0 serves an aiodist store.
    """

    host: str
    port: int
    server: str = ""

    def __str__(self) -> str:
        return show(self.host, self.port)


@dataclass(frozen=True)
class MeetingPlan:
    """Rank, size and meeting place.

    At most one of ``master`` and ``file`` is set; with neither, the rank is alone or was handed a
    store. ``source``: where the facts come from, for messages. ``one_host``: whether the launcher
    says that all ranks are on this host. ``by_munge``: whether ranks without a secret may share one
    by MUNGE.
    """

    rank: int
    size: int
    local_rank: int | None
    source: str
    one_host: bool = False
    master: Master | None = None
    file: Path | None = None
    by_munge: bool = False


def plan(
    init_method: str | None, *, rank: int, size: int, environ: Mapping[str, str]
) -> MeetingPlan:
    """Return the plan without a caller's store.

    Raises TypeError, or InvalidUsageError that names everything missing at once.
    """
    method = parse("env://" if init_method is None else init_method)
    here = read_environment(environ)
    own_rank = _argument_or_query("rank", rank, method.rank, method) or here.rank()
    own_size = _argument_or_query("world_size", size, method.size, method) or here.size()
    check_rank(own_rank, own_size)
    meeting = _meeting(method, here)
    alone = own_size is not None and own_size.value == 1 and own_rank is not None
    missing = [
        name
        for name, value in ((here.launcher.rank, own_rank), (here.launcher.size, own_size))
        if value is None
    ]
    if own_rank is None or own_size is None or (meeting.missing and not alone):
        raise _missing(method, here, [*missing, *meeting.missing])
    master = None
    if meeting.host is not None and meeting.port is not None:
        host = meeting.host.removeprefix("[").removesuffix("]")
        server = AGENT if _is_agents(host, meeting.port, method, here) else ""
        master = Master(host, meeting.port.value, server)
    return MeetingPlan(
        own_rank.value,
        own_size.value,
        local_rank=here.local_rank(),
        source=_source(method, here, own_rank, own_size),
        one_host=here.local_size() == own_size.value,
        master=master,
        file=meeting.file,
        by_munge=meeting.by_munge,
    )


def plan_with_store(*, rank: int, size: int, environ: Mapping[str, str]) -> MeetingPlan:
    """Return the plan for a caller's store, for which rank and size must be arguments."""
    own_rank, own_size = _argument("rank", rank), _argument("world_size", size)
    if own_rank is None or own_size is None:
        raise InvalidUsageError(
            "init_process_group(store=...) needs rank= and world_size= as well: a store does not "
            f"say which rank this is. {_UNSET_IS}"
        )
    check_rank(own_rank, own_size)
    here = read_environment(environ)
    return MeetingPlan(
        own_rank.value, own_size.value, local_rank=here.local_rank(), source="the store given"
    )


def check_rank(rank: Number | None, size: Number | None) -> None:
    """Raise InvalidUsageError unless 0 <= rank < size, as far as they are known."""
    if size is not None and size.value < 1:
        raise InvalidUsageError(f"{size} is impossible: a world has at least one rank")
    if rank is not None and rank.value < 0:
        raise InvalidUsageError(f"{rank} is impossible: ranks go from 0 to the world size less 1")
    if rank is not None and size is not None and rank.value >= size.value:
        raise InvalidUsageError(f"{rank} does not fit {size}: ranks go from 0 to {size.value - 1}")


def _argument_or_query(
    name: str, argument: int, queried: Number | None, method: InitMethod
) -> Number | None:
    number = _argument(name, argument)
    if number is not None and queried is not None:
        raise InvalidUsageError(
            f"{name} is given twice, as the argument {number} and in init_method {method.url!r}: "
            "leave one out"
        )
    return number or queried


def _argument(name: str, value: int) -> Number | None:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {value!r}") from None
    return None if number == UNSET else Number(number, name)


def _meeting(method: InitMethod, here: LaunchEnvironment) -> Meeting:
    if method.scheme == "env":
        return here.meeting()
    if method.scheme == "file":
        return Meeting(file=method.path)
    return Meeting(method.host, method.port)


def _source(method: InitMethod, here: LaunchEnvironment, rank: Number, size: Number) -> str:
    name = here.launcher.name if method.scheme == "env" else f"init_method {method.url}"
    overruled = here.overruled(rank, size)
    return f"{name} (but {' and '.join(overruled)})" if overruled else name


def _is_agents(host: str, port: Number, method: InitMethod, here: LaunchEnvironment) -> bool:
    """Return whether the launcher's agent serves there: ranks that name its port by URL have to use it."""
    if not here.launcher.agent or method.scheme == "env":
        return here.launcher.agent
    agents = here.meeting()
    return agents.host == host and agents.port is not None and agents.port.value == port.value


def _missing(method: InitMethod, here: LaunchEnvironment, names: list[str]) -> InvalidUsageError:
    what = (
        f"environment variable{'s' if len(names) > 1 else ''} {', '.join(names)} "
        f"{'are' if len(names) > 1 else 'is'} not set"
    )
    if method.scheme == "env":
        name = here.launcher.name
        by = "" if name == "the environment" else f" (ranks seem started by {name})"
        return InvalidUsageError(
            f"init_process_group with init_method 'env://': {what}{by}. `aiodist run`, torchrun, "
            "mpiexec and Slurm's srun set what is needed. Only mpiexec over several hosts "
            "wants MASTER_ADDR and MASTER_PORT from you. Or pass rank=, world_size= and "
            f"init_method='tcp://host:port' or 'file:///path' yourself; a process that is to be alone "
            f"passes rank=0, world_size=1. {_UNSET_IS}"
        )
    return InvalidUsageError(
        f"init_process_group with init_method {method.url!r} needs the rank and the world size: "
        f"pass rank= and world_size=, or add ?rank=0&world_size=2 to the URL; {what} either. "
        f"{_UNSET_IS}"
    )
