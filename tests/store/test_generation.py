import asyncio

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import InvalidUsageError, StoreTimeoutError
from aiodist.store import MemoryStore, exchange, join


async def test_two_initialisations_never_mix_keys():
    base = MemoryStore()

    async def rank_main(rank: int) -> list[list[bytes]]:
        seen = []
        for round_ in range(3):
            store = await join(base, rank, 2, Deadline(5))
            value = b"%d/%d" % (round_, rank)
            seen.append(await exchange(store, rank, 2, value, Deadline(5)))
        return seen

    expected = [[b"%d/0" % k, b"%d/1" % k] for k in range(3)]
    assert await asyncio.gather(rank_main(0), rank_main(1)) == [expected, expected]


@pytest.mark.parametrize("rank", [-1, 2, 7])
async def test_rank_outside_the_world(rank):
    store = MemoryStore()
    with pytest.raises(InvalidUsageError, match="world of 2"):
        await join(store, rank, 2, Deadline(1))
    assert await store.num_keys() == 0


async def test_store_that_does_not_answer_in_time():
    class Mute(MemoryStore):
        async def add(self, key, amount):
            await asyncio.get_running_loop().create_future()

    with pytest.raises(StoreTimeoutError, match=r"store did not answer within 0\.01 s"):
        await join(Mute(), 0, 2, Deadline(0.01))
