"""Send messages in the order of their calls, even if some must be prepared first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from aiodist.backends.polling import until
from aiodist.completion import Pending
from aiodist.groups.contexts import MessageContext
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.work import Work
from aiodist.wire.frames import TENSOR

Start = Callable[[MessageContext], Coroutine[Any, Any, Awaitable[object]]]
"""Returns when a message is completely on its way; its result completes when the message has gone."""


class Sends:
    """The sends of one group.

    Messages of one kind to one rank with one tag arrive in the order of the calls. While a message
    is being prepared (copied from a device, packed), the loop goes on. Only messages of its own
    kind, rank and tag wait for it.
    """

    def __init__(self, group: GroupEngine) -> None:
        self._group = group
        self._last: dict[tuple[int, int, int], Pending[None]] = {}
        """By rank, tag and kind, if a message waits: completes when the last one is on its way."""

    @property
    def is_idle(self) -> bool:
        """Whether no message waits for its data, so that another would overtake it."""
        return not self._last

    def send(
        self,
        data: memoryview,
        meta: bytes,
        dst: int,
        tag: int,
        timeout: float | None,
        is_there: Callable[[], bool] | None = None,
        kind: int = TENSOR,
    ) -> Work[None]:
        """Start sending to group rank ``dst``; ``is_there()``: whether ``data`` is filled."""
        if is_there is None and not self._last:
            return self._group.send(data, meta, dst, tag, timeout, kind=kind)
        group = self._group

        async def start(context: MessageContext) -> Awaitable[object]:
            if is_there is not None:
                await until(group, is_there)
            key = (kind, group.id, tag)
            return context.sending(group.messenger.send(group.ranks[dst], key, data, meta))

        return self.in_turn(start, dst, tag, kind, timeout, (meta, len(data)))

    def in_turn(
        self,
        start: Start,
        dst: int,
        tag: int,
        kind: int,
        timeout: float | None,
        facts: tuple[bytes, int],
    ) -> Work[None]:
        """Run ``start(context)`` when earlier messages are on their way, then await what it returns.

        ``facts``: as of `Messaging.message`.
        """
        place = (dst, tag, kind)
        before = self._last.get(place)

        async def body(context: MessageContext) -> None:
            try:
                if before is not None:
                    await before
                rest = await start(context)
            finally:
                if before is not None and not before.done:
                    # Given up, while an earlier one is still not on its way.
                    before.callback = go_on
                else:
                    go_on()
            await rest

        def go_on() -> None:
            if self._last.get(place) is on_its_way:
                del self._last[place]
            on_its_way.complete(None)

        on_its_way = self._last[place] = Pending[None]()
        return self._group.message("send", dst, tag, body, timeout, facts, kind=kind)
