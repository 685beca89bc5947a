"""What a forked child must release at once, even if it never calls aiodist.

A child, for example a data loader's worker, inherits its parent's sockets. If it kept them open
when the parent is killed, the other ranks' kernels would see no end of the streams.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Protocol
from weakref import WeakValueDictionary


class Inherited(Protocol):
    """An object with sockets that belong to the parent."""

    def close_in_child(self) -> None:
        """Release them; the parent's streams stay open. Idempotent."""


class ForkRegistry:
    """The objects that a forked child closes. They do not live longer by being here.

    Python never forgets a hook for forks. So there is one, and not one for each object.
    """

    def __init__(self) -> None:
        self._owners: WeakValueDictionary[int, Inherited] = WeakValueDictionary()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._close_all)

    def add(self, owner: Inherited) -> None:
        """Close ``owner`` in children from now on. Idempotent."""
        self._owners[id(owner)] = owner

    def _close_all(self) -> None:
        with ExitStack() as closing:  # one that raises leaves no other open
            for owner in reversed(list(self._owners.values())):
                closing.callback(owner.close_in_child)


# One for the process.
_registry: ContextVar[ForkRegistry] = ContextVar("aiodist_forks", default=ForkRegistry())  # noqa: B039


def close_in_children(owner: Inherited) -> None:
    """Call ``owner.close_in_child()`` in every child that is forked while ``owner`` lives. Idempotent."""
    _registry.get().add(owner)
