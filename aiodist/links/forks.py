"""What a forked child must release at once, even if it never calls aiodist.

A child, for example a data loader's worker, inherits its parent's sockets. If it kept them open
when the parent is killed, the other ranks' kernels would see no end of the streams.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """An object with sockets that belong to the parent."""

    def close_in_child(self) -> None:
        """Release them; the parent's streams stay open. Idempotent."""


def close_in_children(owner: Inherited) -> None:
    """Call ``owner.close_in_child()`` in every child that is forked while ``owner`` lives."""
    reference = weakref.ref(owner)

    def in_child() -> None:
        alive = reference()
        if alive is not None:
            alive.close_in_child()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)
