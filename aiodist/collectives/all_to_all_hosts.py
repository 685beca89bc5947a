"""All-to-all over several hosts: inside each host in its own way, between hosts directly.

``direct``: a rank sends each rank of another host its block, in one message. Meanwhile the ranks of a host
exchange theirs, in shared memory where they have it. Receives are posted first, so blocks arrive in
place, and a few messages are sent before the first is waited for. Bytes between hosts: the blocks
for ranks of other hosts, the minimum.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.collectives.multi_host import MultiHostContext
from aiodist.collectives.partition import WINDOW

_AHEAD = 2 * WINDOW
"""How many messages are sent before the first one that arrives."""


async def all_to_all_direct(
    hosts: MultiHostContext, inputs: Sequence[memoryview], outputs: Sequence[memoryview]
) -> None:
    """Send ``inputs[r]`` to each rank r and fill ``outputs[r]`` with what r has for this rank.

    Lengths may differ; ``outputs[r]`` is as long as rank r's input for this rank. Separate memory.
    """
    channel, here = hosts.channel, hosts.topology.hosts[hosts.host]
    rank, size = channel.rank, channel.size
    sources = [peer % size for peer in range(rank - 1, rank - size, -1) if peer % size not in here]
    receives = [channel.recv(source, outputs[source]) for source in sources]
    targets = [peer % size for peer in range(rank + 1, rank + size) if peer % size not in here]
    sends = [channel.send(target, inputs[target]) for target in targets[:_AHEAD]]
    await hosts.intra_host.all_to_all(
        [inputs[peer] for peer in here], [outputs[peer] for peer in here]
    )
    for received, target in zip(receives, targets[_AHEAD:], strict=False):
        await received
        sends.append(channel.send(target, inputs[target]))
    for pending in (*receives, *sends):
        await pending
