"""The collectives of a group that carry Python objects, as their caller has described them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from aiodist.completion import T
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.operation import Collective, Opened, description
from aiodist.groups.tensor_checks import M


@description
class BroadcastObject(Collective[T]):
    """Send ``obj`` of ``root`` to all; the result is what ``finish(object)`` returns, on each."""

    kind: ClassVar[str] = "broadcast_object"
    has_value: ClassVar[bool] = True
    name: str
    """The operation's, on which the ranks have to agree."""
    obj: Any
    finish: Callable[[Any], T]
    root: int
    pickle: bool

    def fingerprint(self, opened: Opened[M]) -> Fingerprint:
        return Fingerprint(self.name, root=self.root)


@description
class AllGatherObject(Collective[None]):
    """Fill ``objects[r]`` with rank r's ``obj``."""

    kind: ClassVar[str] = "all_gather_object"
    objects: list[Any]
    obj: Any
    pickle: bool


@description
class GatherObject(Collective[None]):
    """Fill ``objects[r]`` of ``root`` with rank r's ``obj``."""

    kind: ClassVar[str] = "gather_object"
    obj: Any
    objects: list[Any] | None
    root: int
    pickle: bool


@description
class ScatterObject(Collective[None]):
    """Put ``inputs[r]`` of ``root`` into ``output[0]`` of rank r."""

    kind: ClassVar[str] = "scatter_object_list"
    objects: list[Any]
    given: Sequence[Any] | None
    root: int
    pickle: bool
