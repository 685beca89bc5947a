"""What the thread of the blocking API's loop does, and what a forked child does with an inherited loop."""

from __future__ import annotations

import asyncio
import selectors
from functools import partial

from aiodist.sync.loop_handoff import HandoffLoop, LoopHandoff

JOIN_SECONDS = 5.0
"""How long the end of the process waits for the loop's thread."""


def live(handoff: LoopHandoff, loop: HandoffLoop) -> None:
    """Run ``loop`` in its thread until it is stopped, then close it."""
    try:
        handoff.run(loop, partial(_run_to_end, loop))
    finally:
        handoff.close(loop)


def _run_to_end(loop: HandoffLoop) -> None:
    """Run ``loop`` until it is stopped, then cancel the remaining tasks."""
    asyncio.set_event_loop(loop)
    try:
        # What a callback raises in the turn that stops the loop has asyncio forget that.
        while not _ran_until_stopped(loop) and not loop.stops:
            pass
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=JOIN_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)


def _ran_until_stopped(loop: asyncio.AbstractEventLoop) -> bool:
    """Run ``loop``. Return False if a callback raised what is to end a program: in this thread it does not.

    The operations of the program need the loop, so it is told as any error of a callback.
    """
    try:
        loop.run_forever()
    except (SystemExit, KeyboardInterrupt) as error:
        told = f"a callback in aiodist's thread raised {error!r}, which ends no other thread"
        loop.call_exception_handler({"message": told, "exception": error})
        return False
    return True


def close_inherited(loop: HandoffLoop) -> None:
    """Close the descriptors of the parent's ``loop`` in a forked child, whose end prints nothing of it."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # as asyncio does itself
    # Private names: a later Python may differ.
    for name in ("_ssock", "_csock", "_selector", "_wake_pipe"):
        inherited = getattr(loop, name, None)
        if inherited is not None:
            inherited.close()
    # At the child's end, Python closes the transports, which ask the loop for their readers.
    loop._selector = selectors.SelectSelector()  # type: ignore[attr-defined]
