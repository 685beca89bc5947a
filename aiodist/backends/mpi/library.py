"""The MPI library: whether it is there, how it is loaded, and what its errors mean here."""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from aiodist.completion import Pending, T
from aiodist.errors import CollectiveMismatchError, DistBackendError

Mpi = Any
"""The module mpi4py.MPI, or an object of it. mpi4py is optional, and so are its types."""


def why_not() -> str:
    """Return why backend "mpi" cannot run here; "" if it can. Does not initialise MPI.

    A program that was not started by ``mpiexec`` is rank 0 of one rank, which is no reason.
    """
    if "mpi4py.MPI" in sys.modules:
        return ""
    try:
        found = importlib.util.find_spec("mpi4py.MPI")  # its wheels look for the library here
    except ModuleNotFoundError:
        return "mpi4py is not installed: pip install 'aiodist[mpi]', and an MPI library"
    except (ImportError, RuntimeError) as error:
        return f"mpi4py finds no MPI library: {_context(error)}"
    if found is None or found.origin is None:
        return "mpi4py has no module for the MPI library that is installed"
    try:
        # As a plain library: as a module, it would initialise MPI.
        ctypes.CDLL(found.origin)
    except OSError as error:
        return f"mpi4py cannot load its MPI library: {_context(error)}"
    return ""


def load() -> Mpi:
    """Return ``mpi4py.MPI``, initialised. To initialise it blocks: do not call this in the loop's thread.

    Raises DistBackendError if MPI cannot be used, or has been finalised.
    """
    reason = why_not()
    if reason:
        raise DistBackendError(f"backend 'mpi' is not available here: {reason}")
    from mpi4py import MPI

    if MPI.Is_finalized():
        raise DistBackendError("MPI has been finalised in this process, and cannot start again")
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return MPI


def check_thread(mpi: Mpi) -> None:
    """Raise DistBackendError unless MPI may be called in this thread, which is the loop's."""
    level = mpi.Query_thread()
    if level >= mpi.THREAD_SERIALIZED:
        return
    if level == mpi.THREAD_FUNNELED and mpi.Is_thread_main():
        return
    raise DistBackendError(
        f"MPI was initialised with thread level {level}, which lets only the thread that did so "
        f"call it; backend 'mpi' calls it from the event loop's thread: initialise MPI with "
        "MPI.Init_thread(MPI.THREAD_MULTIPLE), mpi4py's own choice"
    )


def in_thread(loop: asyncio.AbstractEventLoop, function: Callable[[], T]) -> Pending[T]:
    """Call ``function``, which may block, in a thread of its own. The result is set in the loop's thread.

    The thread is a daemon: if ``function`` waits for ranks that never come, the process can still end.
    """
    answer: Pending[T] = Pending()

    def run() -> None:
        try:
            finish = partial(answer.complete, function())
        except BaseException as error:  # noqa: BLE001  # raised where the answer is awaited
            finish = partial(answer.fail, error)
        with suppress(RuntimeError):  # the loop has ended, so no task waits
            loop.call_soon_threadsafe(finish)

    threading.Thread(target=run, name="aiodist-mpi", daemon=True).start()
    return answer


def translated(mpi: Mpi, error: Exception) -> Exception:
    """Return an error of mpi4py as an error of aiodist; other errors are returned unchanged."""
    if not isinstance(error, mpi.Exception):
        return error
    text = _context(error)
    if error.Get_error_class() == mpi.ERR_TRUNCATE:
        return CollectiveMismatchError(
            f"MPI received more than was expected, so the ranks disagree about an operation: {text}"
        )
    return DistBackendError(f"MPI failed: {text}")


def _context(error: BaseException) -> str:
    return "; ".join(context.strip() for context in str(error).splitlines() if context.strip())
