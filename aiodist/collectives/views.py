"""The memory of one call, and what equal calls on it have made so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiodist.collectives.schedule import Step
from aiodist.shm.group_area import SLOTS


class CachedView:
    """The schedule of an operation in chunks on some memory; see `backends.view_cache`."""

    __slots__ = ("apart", "beside", "schedule", "used")

    def __init__(self) -> None:
        self.schedule: Sequence[Step] | None = None
        self.beside: object = None
        """The other memory that ``schedule`` uses."""
        self.apart: object = None
        """The last memory that was found to share no bytes with this one."""
        self.used = False


class DataView(CachedView):
    """The memory of one tensor."""

    __slots__ = ("reductions", "view")

    def __init__(self, view: memoryview) -> None:
        super().__init__()
        self.view = view
        self.reductions: list[Sequence[Callable[[], object]] | None] = [None] * SLOTS
        """By slot: what reduces the ranks' data into this memory."""


class BlocksView(CachedView):
    """The memory of one tensor or of several, as one block for each rank."""

    __slots__ = ("views",)

    def __init__(self, views: Sequence[memoryview]) -> None:
        super().__init__()
        self.views = views
