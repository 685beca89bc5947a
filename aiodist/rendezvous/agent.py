"""Connect to a torch TCPStore that torchrun's agent or torch's default group serves.

Only torch's own client speaks its protocol.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError
from aiodist.rendezvous.meeting_plan import TORCH_GROUP, Master
from aiodist.store.waiting import limit

_LONGEST_TIMEOUT = timedelta(days=30)


async def connect_agent(master: Master, deadline: Deadline) -> Any:
    """Return a torch TCPStore that is connected to ``master``.

    torch's client waits for ever for a server that accepts it and says nothing, whatever its timeout.
    So it connects in a thread of its own, which neither the deadline nor the end of the program waits
    for. Raises DistNetworkError if no torch store answers there by ``deadline``.
    """
    connected: Future[Any] = Future()
    connected.set_running_or_notify_cancel()  # a cancelled caller leaves it to the thread

    def connect() -> None:
        try:
            connected.set_result(_client(master, deadline))
        except Exception as error:  # noqa: BLE001  # the caller raises it
            connected.set_exception(error)

    threading.Thread(target=connect, name="aiodist-agent", daemon=True).start()
    try:
        async with asyncio.timeout(limit(deadline)):
            return await asyncio.wrap_future(connected)
    except TimeoutError:
        raise _out_of_reach(master, f"it did not answer within {deadline.timeout:g} s") from None


def _client(master: Master, deadline: Deadline) -> Any:
    """Return a torch TCPStore that is connected to ``master``. Blocks."""
    torch = importlib.import_module("torch.distributed")
    timeout = _LONGEST_TIMEOUT
    if deadline.remaining() < timeout.total_seconds():
        timeout = timedelta(seconds=max(deadline.remaining(), 0.001))
    try:
        return torch.TCPStore(
            master.host, master.port, is_master=False, timeout=timeout, wait_for_workers=False
        )
    except RuntimeError as error:
        raise _out_of_reach(master, str(error)) from error


def _out_of_reach(master: Master, why: str) -> DistNetworkError:
    return DistNetworkError(
        f"{master.server} at {master} cannot be reached: {why}. See whether the process that serves "
        "it, on the first node, still runs"
    )


def torchs_store() -> tuple[Master, int, int] | None:
    """Return where torch's default group has met, with its rank and size.

    Returns None if torch has no default group, or if that group did not meet at a TCPStore.
    """
    torch = sys.modules.get("torch.distributed")
    if torch is None or not torch.is_available() or not torch.is_initialized():
        return None
    store = torch.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if not isinstance(store, torch.TCPStore):
        return None
    master = Master(store.host, store.port, TORCH_GROUP)
    return master, torch.get_rank(), torch.get_world_size()
