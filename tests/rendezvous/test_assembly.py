"""The status query at a store that still holds the keys of ranks that are gone."""

from __future__ import annotations

import asyncio

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import StoreTimeoutError
from aiodist.rendezvous import assembly
from aiodist.rendezvous.assembly import assemble
from aiodist.store import MemoryStore, PrefixStore, Store
from tests.limits import scaled


async def query_status(store: Store, size: int, *, start: int = 0) -> list[Store]:
    """All ranks arrive, from rank ``start`` on upwards and then around."""
    order = [(start + place) % size for place in range(size)]
    tasks = {r: asyncio.create_task(assemble(store, r, size, Deadline(20))) for r in order}
    return [await tasks[rank] for rank in range(size)]


async def check_one_part(parts: list[Store]) -> None:
    assert not await parts[0].check(["key"])
    await parts[0].set("key", b"value")
    for part in parts:
        assert await part.check(["key"])


@pytest.mark.parametrize("size", [1, 2, 5])
async def test_all_get_one_part_and_a_new_one_each_time(size: int) -> None:
    store = MemoryStore()
    for start in range(size):
        await check_one_part(await query_status(store, size, start=start))


async def test_ranks_that_died_before_all_were_there_are_forgotten() -> None:
    store = MemoryStore()
    dead = [asyncio.create_task(assemble(store, rank, 4, Deadline(20))) for rank in (0, 1, 3)]
    await asyncio.sleep(0.01)
    for task in dead:
        task.cancel()
    await asyncio.gather(*dead, return_exceptions=True)
    for start in range(4):
        await check_one_part(await query_status(store, 4, start=start))


async def test_a_world_of_another_size_afterwards() -> None:
    store = MemoryStore()
    for size in (4, 2, 3, 1, 4):
        await check_one_part(await query_status(store, size))


async def test_a_rank_that_starts_again_while_the_others_wait() -> None:
    store = MemoryStore()
    waiting = [asyncio.create_task(assemble(store, rank, 3, Deadline(20))) for rank in (0, 1)]
    for _ in range(3):
        again = asyncio.create_task(assemble(store, 1, 3, Deadline(20)))
        await asyncio.sleep(0.002)
        waiting[1].cancel()
        waiting[1] = again
    parts = await asyncio.gather(*waiting, assemble(store, 2, 3, Deadline(20)))
    await check_one_part(list(parts))


async def test_absent_ranks_are_named() -> None:
    results = await asyncio.gather(
        *(assemble(MemoryStore(), 0, 2, Deadline(0.02)) for _ in range(1)),
        return_exceptions=True,
    )
    store = MemoryStore()
    results += await asyncio.gather(
        *(assemble(store, rank, 4, Deadline(0.02)) for rank in (0, 2)), return_exceptions=True
    )
    assert [type(error) for error in results] == [StoreTimeoutError] * 3
    assert [getattr(error, "fields", {}).get("ranks") for error in results] == [
        (1,),
        (1, 3),
        (1, 3),
    ]


async def test_ranks_with_only_an_old_key_have_not_arrived() -> None:
    store = PrefixStore("job", MemoryStore())
    await query_status(store, 3)
    errors = await asyncio.gather(
        *(assemble(store, rank, 3, Deadline(0.05)) for rank in (0, 1)), return_exceptions=True
    )
    for error in errors:
        assert isinstance(error, StoreTimeoutError)
        assert error.fields["ranks"] == (2,)
    with pytest.raises(StoreTimeoutError) as caught:
        await assemble(store, 1, 3, Deadline(0.02))
    assert caught.value.fields["ranks"] == (0,)


async def test_a_store_that_does_not_answer_is_given_up_after_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As that of torchrun's agent, which is stopped."""

    class Hanging(MemoryStore):
        async def add(self, key: str, amount: int) -> int:
            return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(assembly, "_ANSWER_SECONDS", 0.02)
    async with asyncio.timeout(scaled(5)):
        with pytest.raises(StoreTimeoutError, match=r"store did not answer within 0\.02 s"):
            await assemble(Hanging(), 1, 2, Deadline(0.02))
