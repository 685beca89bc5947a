"""Messages in the order of their calls, also where some have to be copied from a device first."""

from __future__ import annotations

from collections.abc import Callable

from aiodist.backends.polling import until
from aiodist.completion import Pending
from aiodist.groups.lines import MessageLine
from aiodist.groups.process_group import ProcessGroup
from aiodist.groups.work import Work
from aiodist.wire.frames import POINT_TO_POINT


class Sends:
    """The sends of one group.

    What is sent to a rank with a tag arrives in the order of the calls. A message whose data is on
    its way from a device lets the loop go on meanwhile, and only those with its rank and tag wait.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self._last: dict[tuple[int, int], Pending[None]] = {}
        """By rank and tag, where a message waits: done when the last one is on its way."""

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
    ) -> Work[None]:
        """Start sending to group rank ``dst``; ``is_there()``: whether ``data`` is filled."""
        if is_there is None and not self._last:
            return self._group.send(data, meta, dst, tag, timeout)
        group, place = self._group, (dst, tag)
        before = self._last.get(place)

        async def body(line: MessageLine) -> None:
            try:
                if before is not None:
                    await before
                if is_there is not None:
                    await until(group, is_there)
                to, key = group.ranks[dst], (POINT_TO_POINT, group.id, tag)
                message = line.sending(group.messenger.send(to, key, data, meta))
            finally:
                if before is not None and not before.done:
                    before.callback = go_on  # given up: the next one's turn is still not there
                else:
                    go_on()
            await message

        def go_on() -> None:
            if self._last.get(place) is turn:
                del self._last[place]
            turn.complete(None)

        turn = self._last[place] = Pending[None]()
        return group.carried("send", dst, tag, body, timeout, (meta, len(data)))
