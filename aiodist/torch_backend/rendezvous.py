"""``init_method="aiodist://"``: torch's ranks meet as their launcher lets them.

torch's own ``env://`` knows only the variables of torchrun. This method knows all that
``aiodist.init_process_group`` knows, also those of srun and mpiexec.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from torch._C import _distributed_c10d as c10d
from torch.distributed import DistNetworkError

from aiodist.deadline import Deadline
from aiodist.errors import InvalidUsageError
from aiodist.rendezvous.meeting_plan import UNSET, MeetingPlan, plan
from aiodist.rendezvous.node_address import address_of_node
from aiodist.types import DEFAULT_TIMEOUT

_RETRY_SECONDS = 0.05
"""From the end of a store that a rank has reached to the next attempt."""

Met = tuple[Any, int, int]
"""A store of torch, the rank, and the number of ranks."""


def rendezvous(url: str, timeout: timedelta = DEFAULT_TIMEOUT, **kwargs: Any) -> Iterator[Met]:
    """Yield the store, rank and size of the calling process, once.

    torch calls it for ``aiodist://`` and puts ``rank`` and ``world_size`` into the query if its
    caller has given them. ``kwargs``: more from torch, ignored here. Raises InvalidUsageError that
    says which variables are missing, and what torch's stores raise.
    """
    parts = urlsplit(url)
    if parts.netloc or parts.path:
        raise InvalidUsageError(f'init_method {url!r} names a place: write "aiodist://" alone')
    given = dict(parse_qsl(parts.query))
    rank, size = (int(given.get(name, UNSET)) for name in ("rank", "world_size"))
    found = plan(None, rank=rank, size=size, environ=os.environ)
    yield _store(found, timeout), found.rank, found.size
    raise RuntimeError("a rendezvous by aiodist:// cannot be repeated: destroy the process group")


def _store(found: MeetingPlan, timeout: timedelta) -> Any:
    if found.file is not None:
        # torch's store has a format of its own, so it takes a file beside the engine's.
        return c10d.FileStore(f"{found.file}.torch", found.size)
    if found.master is None:
        return c10d.HashStore()
    master = found.master
    if not master.server:
        store = _of_rank_0(found, Deadline(timeout))
        store.set_timeout(timeout)
        return store
    # torchrun's agent serves the same store to the workers of each attempt.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = _tcp_store(found, Deadline(timeout))
    return c10d.PrefixStore(f"/aiodist/attempt_{attempt}", store)


def _of_rank_0(found: MeetingPlan, deadline: Deadline) -> Any:
    """Return the store that rank 0 serves for this meeting.

    A rank that meets again at the same port may reach the store of the meeting before, which ends a
    moment later. So rank 0 welcomes each rank, and a rank whose store ends connects anew.
    """
    if found.rank == 0:
        store = _tcp_store(found, deadline)
        for rank in range(1, found.size):
            store.set_timeout(time_left(deadline))
            token = store.get(f"aiodist/here/{rank}")
            store.delete_key(f"aiodist/here/{rank}")  # else it would be welcomed the next time
            store.set(f"aiodist/welcome/{token.decode()}", b"")
        return store
    while True:
        token = secrets.token_hex(8)
        try:
            store = _tcp_store(found, deadline)
            store.set(f"aiodist/here/{found.rank}", token)
            store.set_timeout(time_left(deadline))
            store.get(f"aiodist/welcome/{token}")
        except DistNetworkError:
            if deadline.remaining() < _RETRY_SECONDS:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return store


def _tcp_store(found: MeetingPlan, deadline: Deadline) -> Any:
    master = found.master
    assert master is not None
    return c10d.TCPStore(
        address_of_node(master.host, os.environ),
        master.port,
        found.size,
        is_master=found.rank == 0 and not master.server,
        timeout=time_left(deadline),
        multi_tenant=True,
    )


def time_left(deadline: Deadline) -> timedelta:
    """Return the time left until ``deadline`` for a store of torch, at least a millisecond."""
    return timedelta(seconds=max(deadline.remaining(), 0.001))
