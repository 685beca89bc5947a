"""The device memory that the members of a group map of each other, and its use by turns.

Every operation begins with a round in which each rank says where its tensors and its areas are. If
all tensors are on one device, each rank allocates an area there, the first time. It offers the area
to every other rank, opens what it was offered, and checks that the bytes in it are those that the
owner announced: locality is proven, never assumed. If all succeed, the areas are used from then on;
otherwise none is. All judge by the same messages, so all come to the same conclusion. A rank that
an error stopped half way says that it has got nowhere, and all try again.

Operations take turns in the order of their start, which is the same on all ranks: an area has room
for one operation.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aiodist.backends.polling import until
from aiodist.collectives.all_gather_ring import all_gather_new
from aiodist.collectives.channel import Channel
from aiodist.completion import Pending
from aiodist.errors import DistError, ProtocolError
from aiodist.groups.group_engine import GroupEngine
from aiodist.wire.object_codec import ObjectCodec

if TYPE_CHECKING:
    from torch import Tensor

    from aiodist.tensors.device_memory import DeviceMemory

log = logging.getLogger("aiodist")

HALF = 32 << 20
"""Bytes of each of an area's two halves: a step is long beside the round between steps."""

NONCE_BYTES = 16

UNKNOWN, SHARED, REFUSED = range(3)


class Areas:
    """The areas of one group on one of this rank's devices.

    ``of[r]`` is group rank r's area, once `meet` has returned lengths.
    """

    def __init__(self, group: GroupEngine, memory: DeviceMemory, half: int = HALF) -> None:
        self.memory = memory
        self.half = half
        self.of: list[Tensor] = []
        self._group = group
        self._state = UNKNOWN
        self._codec = ObjectCodec()
        self._busy = False
        self._waiting: deque[Pending[None]] = deque()

    # -- turns

    async def enter(self) -> None:
        """Wait for the caller's turn, which ends with `leave`."""
        if not self._busy:
            self._busy = True
            return
        turn: Pending[None] = Pending()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:  # it was given the turn, and does not take it
                self.leave()
            raise

    def leave(self) -> None:
        """End the caller's turn. The next one begins in the loop's next turn."""
        if self._waiting:
            self._group.world.loop.call_soon(self._waiting.popleft().complete, None)
        else:
            self._busy = False

    # -- how they come to it

    async def meet(self, channel: Channel, lengths: Sequence[int]) -> list[list[int]] | None:
        """Return every rank's ``lengths``, by rank; None if the areas cannot be used.

        All ranks get the same answer. Each operation calls this once, at the beginning of its turn.
        """
        memory = self.memory
        told = await self._say(channel, [self._state, memory.where, memory.process, *lengths])
        places = {where for _, where, *_ in told}
        processes = [process for _, _, process, *_ in told]
        if len(places) > 1 or (memory.process and len(set(processes)) < len(processes)):
            return None
        if any(state == UNKNOWN for state, *_ in told):
            self._state = UNKNOWN
            self.of = []
            self._state = SHARED if await self._lay_out(channel) else REFUSED
        return [row for _, _, _, *row in told] if self._state == SHARED else None

    async def _lay_out(self, channel: Channel) -> bool:
        """Return whether all ranks have mapped all areas."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        told = await self._say(channel, await self._offer(nonce))
        mapped = await self._say(channel, [self._map(told)])
        if all(word for (word,) in mapped):
            return True
        self.of = []
        return False

    async def _offer(self, nonce: bytes) -> list[Any]:
        """Return ``nonce``, which ends this rank's area, and each rank's handle; empty without an area."""
        memory, rank = self.memory, self._group.rank
        try:
            area = memory.allocate(2 * self.half + NONCE_BYTES)

            def sign() -> None:
                end = area[-NONCE_BYTES:]
                end.copy_(end.new_tensor(list(nonce)))

            await until(self._group, memory.run(sign))
            others = range(self._group.size)
            offers = [None if other == rank else memory.offer(area) for other in others]
        except DistError:  # which are among the next: the operation's own end, such as its timeout
            raise
        except (RuntimeError, OSError) as error:  # torch's, and the system's
            log.info("no device memory to share: %s", error)
            return []
        self.of = [area]
        return [nonce, offers]

    def _map(self, told: Sequence[Sequence[Any]]) -> bool:
        rank = self._group.rank
        if not all(told):
            return False
        areas = []
        for other, (nonce, offers) in enumerate(told):
            if other == rank:
                areas += self.of
                continue
            try:
                area = self.memory.open(offers[rank])
                found = bytes(area[-NONCE_BYTES:].tolist())
            except (RuntimeError, OSError, ValueError, TypeError) as error:
                log.info("device memory of rank %d cannot be mapped: %s", other, error)
                return False
            if found != nonce:
                log.info("what was mapped is not the device memory of rank %d", other)
                return False
            areas.append(area)
        self.of = areas
        return True

    async def _say(self, channel: Channel, words: list[Any]) -> list[list[Any]]:
        """Return what each rank passes as ``words``."""
        told = await all_gather_new(channel, memoryview(self._codec.dumps(words)))
        heard = [self._codec.loads(part) for part in told]
        if not all(isinstance(each, list) for each in heard):
            raise ProtocolError("another rank told nothing of its device memory")
        return heard

    def close(self) -> None:
        """Drop all areas. Peers that still read this rank's area keep its memory alive themselves."""
        self.of = []
        self._state = UNKNOWN
