"""`spawn`: a function in several processes, as in torch, with the rendezvous ready.

Importing this module does not import torch; calling `spawn` does.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiodist.deadline import Deadline
from aiodist.groups.argument_checks import check_count, check_list
from aiodist.launch.environment import meeting_environment, rank_environment, secret_or_new
from aiodist.launch.failure import SETTLE, Failure
from aiodist.launch.ports import reserve_port
from aiodist.launch.rank_function import call_as_rank

if TYPE_CHECKING:
    from torch.multiprocessing.spawn import ProcessContext

ADDRESS = "127.0.0.1"


def spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Call ``fn(i, *args)`` in new processes, ``i`` from 0.

    torch.multiprocessing.spawn does the work. In addition each process finds the variables that
    `init_process_group` needs: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR,
    MASTER_PORT and AIODIST_SECRET. This process's own environment is left as it is.

    Args:
        fn: A function of a module's top level. A coroutine function runs under uvloop, or asyncio
            if uvloop is not installed.
        args: What follows ``i``.
        nprocs: How many processes.
        join: Whether to wait until all have ended.
        daemon: Whether they end with this process.
        start_method: "spawn", "fork" or "forkserver".

    Returns:
        None with ``join=True``. Else torch's ProcessContext: keep it and call its ``join()``
        until it returns True. The port stays reserved as long as it exists.

    Raises:
        TypeError: ``fn`` cannot be called, or cannot be sent to a new interpreter, or ``args`` is
            no list or tuple. Nothing has been started.
        InvalidUsageError: ``nprocs`` is below 1.
        ValueError: ``start_method`` is unknown.
        Exception: A process failed, and the others were terminated: torch's
            ProcessRaisedException (with the traceback) or ProcessExitedException. Of several
            errors it is the first one that does not only report the failure of another rank.
    """
    if not callable(fn):
        raise TypeError(f"fn must be a function to call as fn(i, *args), not {fn!r}")
    check_list(args, "args")
    nprocs = check_count(nprocs, "nprocs")
    if start_method != "fork" and inspect.isfunction(fn):
        _check_sendable(fn, start_method)
    from torch.multiprocessing.spawn import start_processes

    start: Callable[..., ProcessContext] = start_processes
    with ExitStack() as stack:
        port = stack.enter_context(reserve_port()).port
        # No AIODIST_RUN_ID: ranks with different ones do not meet, and fn may have them meet those of
        # other machines, each of which calls spawn.
        secret = {"AIODIST_SECRET": secret_or_new(os.environ)}
        shared = secret | meeting_environment(ADDRESS, port)
        context = start(
            _become_rank,
            (fn, tuple(args), nprocs, shared),
            nprocs,
            join=False,
            daemon=daemon,
            start_method=start_method,
        )
        if not join:
            weakref.finalize(context, stack.pop_all().close)
            return context
        _join(context)
    return None


def _join(context: ProcessContext) -> None:
    """Wait until all processes have ended, or raise torch's error for one that failed."""
    failed = _failed_process(context)
    if failed is not None:
        # torch ends the other processes, and raises the error of the first sentinel that is ready.
        context.sentinels = {context.processes[failed].sentinel: failed}
        context.join()


def _failed_process(context: ProcessContext) -> int | None:
    """Return the first process that failed of itself; None if all ended well.

    An error that only reports another rank often comes before the cause. It counts if no cause
    follows within `SETTLE` seconds.
    """
    running: dict[Any, int] = dict(context.sentinels)
    reporting: int | None = None
    deadline = Deadline.never()
    while running and not deadline.expired():
        for sentinel in wait(running, None if reporting is None else deadline.remaining()):
            index = running.pop(sentinel)
            process = context.processes[index]
            process.join()
            if process.exitcode == 0:
                continue
            if not _reports_another_rank(context, index):
                return index
            if reporting is None:
                reporting, deadline = index, Deadline(SETTLE)
    return reporting


def _reports_another_rank(context: ProcessContext, index: int) -> bool:
    process = context.processes[index]
    file = Path(context.error_files[index])
    try:
        trace = pickle.loads(file.read_bytes())  # noqa: S301 - a child wrote it
    except FileNotFoundError:  # it raised nothing: a signal or an exit code ended it
        return False
    except (EOFError, pickle.UnpicklingError):  # the disk was full, or it was killed as it wrote
        file.unlink()  # torch then reports the exit code
        return False
    failure = Failure(index, index, process.pid, ADDRESS, process.exitcode, trace)
    return failure.is_consequence()


def _become_rank(
    i: int, fn: Callable[..., Any], args: tuple[Any, ...], nprocs: int, shared: dict[str, str]
) -> None:
    """Runs in the child, after torch has asked the kernel to end it with its parent."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        return  # it was killed before torch asked, for example while this process imported torch
    own = rank_environment(rank=i, local_rank=i, world_size=nprocs, local_world_size=nprocs)
    call_as_rank(fn, (i, *args), shared | own)


def _check_sendable(fn: Callable[..., Any], start_method: str) -> None:
    """Raise TypeError where a new interpreter could not find ``fn``: the child would only die."""
    advice = (
        "put it at the top level of a module that can be imported, or use start_method='fork' "
        "where the system has it, or aiodist.testing.run_ranks for ranks in this process"
    )
    try:
        pickle.dumps(fn)
    except Exception as error:
        raise TypeError(
            f"{fn!r} cannot be sent to a process started by {start_method!r}: {error}; {advice}"
        ) from error
    main = sys.modules["__main__"]
    if fn.__module__ == "__main__" and getattr(main, "__spec__", None) is None:
        file = getattr(main, "__file__", None)
        if file is None or not os.path.exists(file):
            raise TypeError(
                f"{fn!r} was defined interactively, where a process started by "
                f"{start_method!r} cannot find it; {advice}"
            )
