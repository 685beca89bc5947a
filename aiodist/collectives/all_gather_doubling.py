"""All-gather by recursive doubling, for powers of two.

Steps: in round k a rank exchanges with rank XOR 2^k all the blocks it has so far, an aligned run
of 2^k of them; log2 n rounds. Each block is a message of its own and lands in place.
Bytes per rank: (n-1)/n of the total for equal blocks, in n-1 messages.
Best in the middle: fewer rounds than the ring, no copies as in Bruck's.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.channel import Channel


async def all_gather_doubling(channel: Channel, blocks: Sequence[memoryview]) -> None:
    """Fill every ``blocks[r]`` with rank r's block; this rank's own is in place already.

    All ranks know all lengths, which may differ. The number of ranks must be a power of two.
    """
    rank, size = channel.rank, channel.size
    assert size & (size - 1) == 0, "recursive doubling needs a power of two"
    rounds = []
    for k in range(size.bit_length() - 1):
        partner = rank ^ 1 << k
        start = partner >> k << k
        rounds.append([channel.recv(partner, b) for b in blocks[start : start + (1 << k)]])
    sends = []
    for k, receives in enumerate(rounds):
        start = rank >> k << k
        partner = rank ^ 1 << k
        sends += [channel.send(partner, block) for block in blocks[start : start + (1 << k)]]
        for receive in receives:
            await receive
    for sent in sends:
        await sent
