"""torch's default group over the ranks of the blocking API, for what asks torch for it.

``DistributedSampler(data)`` and ``DistributedDataParallel(net)`` take torch's default group, where
they are given none. `make` gives torch one that is the blocking API's own: one engine and one
order of operations. docs/design/torch-default-group.md says why and when.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from aiodist.errors import InvalidUsageError
from aiodist.groups.switches import switch_from
from aiodist.groups.world import World, current_world
from aiodist.types import DEFAULT_TIMEOUT

log = logging.getLogger("aiodist")

VARIABLE = "AIODIST_TORCH_GROUP"

_LONGEST = timedelta(days=365)
"""torch knows no group without a timeout."""


@dataclass
class SharedWorld:
    """A world that torch's default group stands for; torch hands it to backend "aiodist"."""

    world: World
    gives_way: bool
    """Whether torch's own ``init_process_group`` may replace the group."""
    store: Any = None
    """What torch holds only in part, and what has to live as long as the group."""
    release: Callable[[], None] = lambda: None
    """The backend puts here what makes the group's end leave the world open."""
    pid: int = field(default_factory=os.getpid)


def wanted(argument: bool | None, environ: Mapping[str, str]) -> bool | None:
    """Return what ``torch_group`` and AIODIST_TORCH_GROUP say; None where both leave it open.

    Raises InvalidUsageError for a value of the variable that is neither 0 nor 1, and where a
    group is asked for and torch is not imported.
    """
    if argument is None:
        argument = switch_from(VARIABLE, environ)
    if argument and _torch() is None:
        raise InvalidUsageError(
            f"torch_group=True or {VARIABLE}=1 asks for torch's default group, and torch is not "
            "imported: import torch.distributed first"
        )
    return argument


def make(world: World, asked: bool | None) -> None:
    """Make torch's default group over the default group of ``world``, where that is wanted.

    ``asked``: what `wanted` returned. None: make it where torch is imported and has none, and for
    the world of the process, not for that of one thread. Raises what torch raises, if ``asked``.
    """
    torch = _torch()
    if torch is None or asked is False:
        return
    inherited = _shared(torch)
    if inherited is not None and inherited.pid != os.getpid():
        _drop(torch, inherited)  # a forked child cannot use its parent's
    if asked is None and not _is_called_for(torch, world):
        return
    _make(torch, SharedWorld(world, gives_way=asked is None))


def remake(world: World) -> None:
    """Let torch's default group follow that of ``world``, which has become another one."""
    torch = _torch()
    shared = None if torch is None else _shared(torch)
    if shared is not None and shared.world is world:
        _drop(torch, shared)
        _make(torch, SharedWorld(world, shared.gives_way))


def forget(world: World) -> None:
    """Take torch's default group away if it stands for ``world``, which has been closed."""
    torch = _torch()
    shared = None if torch is None else _shared(torch)
    if shared is not None and shared.world is world:
        _drop(torch, shared)


def _is_called_for(torch: Any, world: World) -> bool:
    return (
        not torch.is_initialized()
        and hasattr(torch.Backend, "AIODIST")
        and contextvars.Context().run(current_world) is world
    )


def _make(torch: Any, shared: SharedWorld) -> None:
    """Make the group. Where it was not asked for, a failure is a warning."""
    try:
        _init_torch(torch, shared)
    except Exception as error:
        if not shared.gives_way:
            raise
        log.warning(
            "torch's default group could not be made, so DistributedDataParallel and other modules "
            "of torch need a group of their own: %s",
            error,
        )
    else:
        if shared.gives_way:
            _allow_replacement(torch)


def _init_torch(torch: Any, shared: SharedWorld) -> None:
    world = shared.world
    group = world.default_group()
    if world.store is None:  # of a rank that came by rejoin()
        shared.store = torch.HashStore()
    else:
        from aiodist.backends.torch_groups.store import BlockingStore

        shared.store = BlockingStore(world.store, world.loop, DEFAULT_TIMEOUT.total_seconds())
    hook = sys.excepthook
    torch.init_process_group(
        "aiodist",
        store=torch.PrefixStore(f"torch/{group.generation}", shared.store),
        rank=group.rank,
        world_size=group.size,
        timeout=_LONGEST if group.timeout is None else timedelta(seconds=group.timeout),
        pg_options=shared,
    )
    sys.excepthook = hook  # torch's own prefixes the tracebacks, once more after each init


def _allow_replacement(torch: Any) -> None:
    """Let the program's own call of torch's ``init_process_group`` replace the group.

    Such a program wants a group apart from that of the blocking API.
    """
    original = torch.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        torch.init_process_group = original
        shared = _shared(torch)
        if shared is not None:
            _drop(torch, shared)
        return original(*args, **kwargs)

    torch.init_process_group = init_process_group


def _drop(torch: Any, shared: SharedWorld) -> None:
    """Take the group out of torch, and the groups that torch has made of it. The world goes on."""
    shared.release()
    torch.destroy_process_group()


def _shared(torch: Any) -> SharedWorld | None:
    """Return what torch's default group stands for; None where that is not ours."""
    shared = getattr(torch.group.WORLD, "shared", None)
    return shared if isinstance(shared, SharedWorld) else None


def _torch() -> Any:
    """Return torch.distributed; None where it is not imported, or torch was built without it."""
    torch = sys.modules.get("torch.distributed")
    return torch if torch is not None and torch.is_available() else None
