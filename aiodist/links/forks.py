"""What a forked child must give back at once, whether or not it ever calls aiodist.

A child that kept a copy of its parent's sockets (a data loader's worker, say) would hold them open
when the parent is killed, and the other ranks' kernels would see no end of the streams.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """Has sockets that belong to the parent."""

    def close_in_child(self) -> None:
        """Give them back; the parent's streams go on. Called again, it does nothing."""
        ...


def close_in_children(owner: Inherited) -> None:
    """Have ``owner.close_in_child()`` called in every child forked while ``owner`` lives."""
    reference = weakref.ref(owner)

    def in_child() -> None:
        alive = reference()
        if alive is not None:
            alive.close_in_child()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)
