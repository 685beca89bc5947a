"""Plans of short messages, which may complete before a context and a record are made for them.

They correspond to the plans of collectives in `plan_cache`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.messaging import MessagePlan
from aiodist.groups.operation import Tensor
from aiodist.observe.recorder import CompletedRecord
from aiodist.p2p.shm_sender import RING_BYTES
from aiodist.tensors import Buffer, encode_meta
from aiodist.wire.frames import TENSOR

_KEPT = 256
"""The most plans that one group caches."""

_Open = Callable[[Tensor], memoryview | None]

_Known = dict[Hashable, tuple[MessagePlan, _Open]]


class MessagePlans:
    """The plans of one group's short messages, for tensors whose bytes lie in host memory without
    gaps.
    """

    __slots__ = ("_group", "_known")

    def __init__(self, group: GroupEngine) -> None:
        self._group = group
        self._known: _Known = {}

    def send(self, tensor: Tensor, dst: int, tag: int) -> CompletedRecord | None:
        """Send it to group rank ``dst`` now, if an equal message was sent before; else return None."""
        found = self.find("send", tensor, dst, tag)
        return None if found is None else self._group.send_at_once(*found)

    def keep(self, what: str, buffer: Buffer, other: int, tag: int) -> None:
        """Cache the plan of messages like this one."""
        tensor = buffer.owner
        if buffer.is_staged or not 0 < buffer.nbytes <= RING_BYTES:
            return
        key = what, type(tensor), tensor.dtype, tensor.shape, other, tag
        if key in self._known or (opener := buffer.opener()) is None:
            return
        if len(self._known) >= _KEPT:
            self.forget()
        group = self._group
        where = TENSOR, group.id, tag
        plan = MessagePlan(what, group.ranks[other], where, encode_meta(buffer), buffer.nbytes)
        self._known[key] = plan, opener

    def forget(self) -> None:
        """Drop all plans."""
        self._known.clear()

    def find(
        self, what: str, tensor: Tensor, other: int, tag: int
    ) -> tuple[MessagePlan, memoryview] | None:
        """Return the plan of equal messages and the bytes of ``tensor``, or None on a miss.

        The bytes hold good while ``tensor`` lives.
        """
        if not self._known:
            return None
        try:
            known = self._known.get((what, type(tensor), tensor.dtype, tensor.shape, other, tag))
            if known is None:
                return None
            plan, opener = known
            data = opener(tensor)
        except (AttributeError, TypeError, RuntimeError):  # not a tensor, or one without a shape
            return None
        if data is None or (what == "recv" and data.readonly):
            return None
        return plan, data
