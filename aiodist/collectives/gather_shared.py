"""Gather and scatter over shared memory: the root copies what others publish, or the reverse.

Only the root knows all lengths. In a gather each rank publishes its length in a slot, with its data
where that fits. Longer data follows in chunks, which only the root reads. In a scatter the root's slot
holds the lengths of all blocks. It holds the blocks as well if all of them fit; otherwise they follow
in chunks that are cut into n parts. Bytes: everything is written once and read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aiodist.collectives.barrier_slots import others_of
from aiodist.collectives.layout import segments_of
from aiodist.collectives.schedule import READ, RELEASE, WRITE, Step, carry_out
from aiodist.collectives.shm_context import ShmContext
from aiodist.collectives.slot_blocks import blocks_of, publish_blocks
from aiodist.copying import copy

_ALIGN = 64


async def gather_shared(
    shm: ShmContext, root: int, data: memoryview, blocks: Sequence[memoryview] | None
) -> None:
    """Fill ``blocks[r]`` on ``root`` with rank r's ``data``; ``blocks`` is ignored elsewhere."""
    if shm.rank == root:
        assert blocks is not None
        await _gather(shm, data, blocks)
        return
    nbytes = len(data)
    shm.release_all()
    own = await shm.slot(min(nbytes, shm.slot_bytes))
    if nbytes <= shm.slot_bytes:
        copy(own, data)
    shm.publish(nbytes)
    if nbytes <= shm.slot_bytes:
        return
    await shm.slot_of(root, 0)  # the root is in the same operation: it will read
    shm.begin_chunks()
    await carry_out(shm, _sent(shm, data))


def _sent(shm: ShmContext, data: memoryview) -> Iterator[Step]:
    rank, width = shm.rank, shm.chunk_bytes
    for step in range(segments_of(len(data), width)):
        part = data[step * width : (step + 1) * width]
        yield WRITE, rank, step, [(shm.chunk(rank, step)[: len(part)], part)], ()
        yield RELEASE, rank, 0, (), ()


async def _gather(shm: ShmContext, data: memoryview, blocks: Sequence[memoryview]) -> None:
    await shm.slot(0)
    shm.publish(0)
    copy(blocks[shm.rank], data)
    long = {}
    for other in others_of(shm):
        place = blocks[other]
        slot = await shm.slot_of(other, len(place))
        if len(place) <= shm.slot_bytes:
            copy(place, slot)
        else:
            long[other] = place
    if long:
        shm.begin_chunks()
        await carry_out(shm, _gathered(shm, long))


def _gathered(shm: ShmContext, places: Mapping[int, memoryview]) -> Iterator[Step]:
    width = shm.chunk_bytes
    for step in range(segments_of(max(map(len, places.values())), width)):
        for other, place in places.items():
            part = place[step * width : (step + 1) * width]
            if len(part):
                yield READ, other, step, [(part, shm.chunk(other, step)[: len(part)])], ()
        yield RELEASE, shm.rank, step + 1, (), ()


async def scatter_shared(
    shm: ShmContext, root: int, blocks: Sequence[memoryview] | None, out: memoryview
) -> None:
    """Fill ``out`` on rank r with ``root``'s ``blocks[r]``; ``blocks`` is ignored elsewhere."""
    if shm.rank == root:
        assert blocks is not None
        if not await publish_blocks(shm, blocks):
            shm.begin_chunks()
            await carry_out(shm, _scattered(shm, blocks))
        copy(out, blocks[root])
        return
    lengths, block = await blocks_of(shm, root)
    shm.expect(root, lengths[shm.rank], len(out))
    if block is not None:
        copy(out, block)
        return
    shm.begin_chunks()
    await carry_out(shm, _received(shm, root, out))
    shm.release_all()  # others may have longer blocks


def _scattered(shm: ShmContext, blocks: Sequence[memoryview]) -> Iterator[Step]:
    rank, width, others = shm.rank, _part_of(shm), others_of(shm)
    for step in range(segments_of(max(len(blocks[other]) for other in others), width)):
        chunk = shm.chunk(rank, step)
        copies = []
        for other in others:
            part = blocks[other][step * width : (step + 1) * width]
            copies.append((chunk[other * width : other * width + len(part)], part))
        yield WRITE, rank, step, copies, ()
        yield RELEASE, rank, 0, (), ()


def _received(shm: ShmContext, root: int, out: memoryview) -> Iterator[Step]:
    width = _part_of(shm)
    mine = shm.rank * width
    for step in range(segments_of(len(out), width)):
        part = out[step * width : (step + 1) * width]
        theirs = shm.chunk(root, step)[mine : mine + len(part)]
        yield READ, root, step, [(part, theirs)], ()
        yield RELEASE, shm.rank, step + 1, (), ()


def _part_of(shm: ShmContext) -> int:
    """Bytes that each rank has of a chunk in a scatter."""
    return shm.chunk_bytes // shm.size // _ALIGN * _ALIGN
