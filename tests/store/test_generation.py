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


class KeepsWills(MemoryStore):
    """A store that keeps wills, and whose counter can be stopped behind the counting."""

    def __init__(self):
        super().__init__()
        self.wills = {}
        self.counted = asyncio.Event()
        self.stops = False

    async def set_will(self, key, value):
        self.wills[key] = value
        return True

    async def clear_will(self, key):
        self.wills.pop(key, None)

    async def add(self, key, amount):
        if amount and self.stops:
            assert self.wills, "a process that dies from here on must have left its will"
            await super().add(key, amount)
            self.counted.set()
            await asyncio.get_running_loop().create_future()
        return await super().add(key, amount)


async def test_a_rank_leaves_its_will_before_it_counts():
    store = KeepsWills()
    part = await join(store, 0, 2, Deadline(5), ("lost", b"gone"))
    assert store.wills == {"gen1/lost": b"gone"}
    assert part.prefix == "gen1"


async def test_a_rank_that_is_cancelled_once_it_has_counted_tells_the_others():
    store = KeepsWills()
    store.stops = True
    joining = asyncio.ensure_future(join(store, 1, 2, Deadline(5), ("lost", b"gone")))
    await store.counted.wait()
    joining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joining
    assert await store.get("gen1/lost", Deadline(5)) == b"gone"
    assert not store.wills


async def test_a_will_follows_when_another_process_counts_as_the_same_rank():
    class Busy(KeepsWills):
        async def set_will(self, key, value):
            if not self.wills:
                await super().add("init/0", 1)
            return await super().set_will(key, value)

    store = Busy()
    part = await join(store, 0, 2, Deadline(5), ("lost", b"gone"))
    assert part.prefix == "gen2"
    assert "gen1/lost" not in store.wills
