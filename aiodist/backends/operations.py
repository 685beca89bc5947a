"""What moves and reduces the bytes of a collective: our own algorithms, or another library's."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from aiodist.collectives.channel import Channel
from aiodist.collectives.reduction import Scratch
from aiodist.tensors import Reduction

Run = Coroutine[Any, Any, None]
Blocks = Sequence[memoryview]


class Operations(Protocol):
    """The collectives on bytes; `aiodist.collectives.operations` is one, and says what each does.

    Arguments are those of that module, and the same promises hold: inputs are only read, outputs
    filled completely, ``all_reduce`` works in place, as does ``reduce`` on the root, and
    ``all_gather`` finds this rank's own block in place.
    """

    def barrier(self, channel: Channel, /) -> Run: ...

    def broadcast(self, channel: Channel, root: int, data: memoryview, /) -> Run: ...

    def reduce(
        self,
        channel: Channel,
        root: int,
        data: memoryview,
        op: Reduction,
        scratch: Scratch,
        /,
    ) -> Run: ...

    def all_reduce(
        self, channel: Channel, data: memoryview, op: Reduction, scratch: Scratch, /
    ) -> Run: ...

    def all_gather(self, channel: Channel, blocks: Blocks, scratch: Scratch, /) -> Run: ...

    def gather(
        self,
        channel: Channel,
        root: int,
        data: memoryview,
        blocks: Blocks | None,
        scratch: Scratch,
        /,
    ) -> Run: ...

    def scatter(
        self,
        channel: Channel,
        root: int,
        blocks: Blocks | None,
        out: memoryview,
        scratch: Scratch,
        /,
    ) -> Run: ...

    def reduce_scatter(
        self,
        channel: Channel,
        blocks: Blocks,
        out: memoryview,
        op: Reduction,
        scratch: Scratch,
        /,
    ) -> Run: ...

    def all_to_all(
        self,
        channel: Channel,
        inputs: Blocks,
        outputs: Blocks,
        scratch: Scratch,
        /,
    ) -> Run: ...
