import asyncio

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import StoreTimeoutError
from aiodist.store import MemoryStore, exchange, leave, value_exchange
from tests.limits import scaled, until


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def set(self, key, value):
        self.calls += 1
        await super().set(key, value)

    async def get(self, key, deadline):
        self.calls += 1
        return await super().get(key, deadline)

    async def wait(self, keys, deadline):
        self.calls += 1
        await super().wait(keys, deadline)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 100])
async def test_all_ranks_get_all_values_with_linear_work(size):
    store = CountingStore()
    values = [b"\xff" * rank for rank in range(size)]
    results = await asyncio.gather(
        *(exchange(store, r, size, values[r], Deadline(5)) for r in reversed(range(size)))
    )
    assert results == [values] * size
    assert store.calls <= 3 * size + 1


async def test_timeout_names_the_absent_ranks_on_every_rank():
    store = MemoryStore()
    timeouts = {0: 0.02, 2: 30, 4: 30}  # only rank 0's is short: the others learn from it
    results = await asyncio.gather(
        *(exchange(store, r, 5, b"", Deadline(t)) for r, t in timeouts.items()),
        return_exceptions=True,
    )
    for rank, error in zip(timeouts, results, strict=True):
        assert isinstance(error, StoreTimeoutError)
        assert error.ranks == (1, 3)
        assert f"rank {rank}: ranks 1, 3 of 5 did not arrive" in str(error)
        assert "0.02 s" in str(error)


async def test_timeout_without_rank_0_names_it():
    store = MemoryStore()
    with pytest.raises(StoreTimeoutError, match="ranks 0, 2 of 3") as caught:
        await exchange(store, 1, 3, b"", Deadline(0.01))
    assert caught.value.ranks == (0, 2)


async def test_timeout_when_rank_0_arrived_and_does_not_publish():
    store = MemoryStore()
    await store.set("exchange/0", b"")
    with pytest.raises(StoreTimeoutError, match="rank 0 did not hand out") as caught:
        await exchange(store, 1, 2, b"", Deadline(0.01))
    assert caught.value.ranks == ()


async def test_an_exchange_that_cannot_succeed_ends_before_all_have_arrived(monkeypatch):
    monkeypatch.setattr(value_exchange, "_LOOK_SECONDS", 0.01)
    store = MemoryStore()
    asked = []

    def stops(values):
        asked.append(sorted(values))
        return b"3" in values

    ranks = [
        asyncio.create_task(exchange(store, rank, 4, b"4", Deadline(30), stops=stops))
        for rank in (0, 2)
    ]
    await until(lambda: bool(asked))
    assert set(asked[-1]) == {b"4"}
    found = await exchange(store, 3, 3, b"3", Deadline(30), stops=stops)
    assert found == [b"4", b"", b"4", b"3"]
    assert await asyncio.gather(*ranks) == [found] * 2
    assert await exchange(store, 1, 4, b"4", Deadline(30), stops=stops) == found  # a late one, too


async def test_absent_ranks_of_an_exchange_that_could_succeed_are_named_at_the_deadline(
    monkeypatch,
):
    monkeypatch.setattr(value_exchange, "_LOOK_SECONDS", 0.01)
    with pytest.raises(StoreTimeoutError, match="ranks 1, 2 of 3 did not arrive") as caught:
        await exchange(MemoryStore(), 0, 3, b"", Deadline(0.1), stops=lambda values: False)
    assert caught.value.ranks == (1, 2)


async def test_rank_0_has_its_own_value_though_the_store_does_not_say_what_is_there():
    class SilentStore(MemoryStore):
        """Misses all keys at first, as a client does whose server does not answer."""

        waits = 0

        async def wait(self, keys, deadline):
            self.waits += 1
            if self.waits == 1:
                raise StoreTimeoutError("no answer", keys=keys)
            await super().wait(keys, deadline)

    store, asked = SilentStore(), []

    def stops(values):
        asked.append(sorted(values))
        return False

    others = asyncio.create_task(exchange(store, 1, 2, b"1", Deadline(5)))
    assert await exchange(store, 0, 2, b"0", Deadline(5), stops=stops) == [b"0", b"1"]
    assert await others == [b"0", b"1"]
    assert asked == [[b"0"], [b"0", b"1"]]
    with pytest.raises(StoreTimeoutError, match="rank 1 of 2 did not arrive") as caught:
        await exchange(SilentStore(), 0, 2, b"0", Deadline(0.01))
    assert caught.value.ranks == (1,)


async def test_host_leaves_last():
    store = MemoryStore()
    host = asyncio.create_task(leave(store, 0, 3, Deadline(5)))
    assert await leave(store, 2, 3, Deadline(5)) is True
    await asyncio.sleep(0)
    assert not host.done()
    assert await leave(store, 1, 3, Deadline(5)) is True
    assert await host is True
    assert await leave(MemoryStore(), 0, 1, Deadline(5)) is True


async def test_host_waits_only_until_its_deadline():
    store = MemoryStore()
    await leave(store, 1, 3, Deadline(5))
    assert await leave(store, 0, 3, Deadline(0.01)) is False


async def test_a_rank_leaves_a_store_that_does_not_answer_at_its_deadline():
    class Hanging(MemoryStore):
        async def add(self, key, amount):
            await asyncio.get_running_loop().create_future()

    async with asyncio.timeout(scaled(5)):
        with pytest.raises(StoreTimeoutError, match=r"store did not answer within 0\.01 s"):
            await leave(Hanging(), 1, 3, Deadline(0.01))
