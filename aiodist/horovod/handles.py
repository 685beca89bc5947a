"""What an operation that has begun is to Horovod's scripts: a handle for `poll` and `synchronize`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aiodist.groups.work import Work
from aiodist.sync.coalescing import wait_for_all


class Handle:
    """Operations under way. `synchronize` waits for them and returns what they result in."""

    def __init__(self, works: Sequence[Work[None] | None], result: Callable[[], Any]) -> None:
        """``result``: makes the result when all ``works`` have ended."""
        self._works = [work for work in works if work is not None]
        self._make = result
        self._result: Any = None
        self._is_made = False

    def is_done(self) -> bool:
        """Return whether all works have ended."""
        return all(work.is_completed() for work in self._works)

    def wait(self) -> Any:
        """Return the result when all works have ended; raise the first error."""
        wait_for_all(self._works)
        if not self._is_made:
            self._result = self._make()
            self._is_made = True
        return self._result

    __call__ = wait
    """Horovod calls what `sparse_allreduce_async` returns."""


def poll(handle: Handle) -> bool:
    """Return whether `synchronize` would return at once.

    Args:
        handle: What a function with ``async`` in its name returned.

    Raises:
        TypeError: ``handle`` is something else.
    """
    return _checked(handle).is_done()


def synchronize(handle: Handle) -> Any:
    """Wait for an operation and return its result.

    Args:
        handle: What a function with ``async`` in its name returned.

    Raises:
        CollectiveError: What the collective raises.
        TypeError: ``handle`` is something else.
    """
    return _checked(handle).wait()


def _checked(handle: Any) -> Handle:
    if not isinstance(handle, Handle):
        raise TypeError(
            "handle must be what a function with async in its name returned, such as "
            f"hvd.allreduce_async(), not {type(handle).__name__}"
        )
    return handle


def together(handles: Sequence[Handle]) -> Handle:
    """Return a handle whose result is the list of the others' results."""
    works = [work for handle in handles for work in handle._works]
    return Handle(works, lambda: [handle.wait() for handle in handles])
