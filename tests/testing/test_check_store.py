"""The conformance check finds stores that break a promise."""

import pytest

from aiodist.errors import StoreTimeoutError
from aiodist.store import MemoryStore
from aiodist.testing.check_store import check_store


class ForgetsEmptyValues(MemoryStore):
    async def set(self, key, value):
        if value:
            await super().set(key, value)
        else:
            await super().set(key, b"0")


class ClaimsAbsentKeys(MemoryStore):
    async def compare_set(self, key, expected, desired):
        if not await self.check([key]):
            expected = b""
        return await super().compare_set(key, expected, desired)


class ChecksAnyKey(MemoryStore):
    async def check(self, keys):
        return any([await super(ChecksAnyKey, self).check([key]) for key in keys])


class DeletesNothing(MemoryStore):
    async def delete_key(self, key):
        return await self.check([key])


class NamesNoKeys(MemoryStore):
    async def wait(self, keys, deadline):
        try:
            await super().wait(keys, deadline)
        except StoreTimeoutError:
            raise StoreTimeoutError("too late") from None


class WaitsForOneKey(MemoryStore):
    async def wait(self, keys, deadline):
        await super().wait(keys[:1], deadline)


class CountsInBinary(MemoryStore):
    async def add(self, key, amount):
        total = await super().add(key, amount)
        await self.set(key, b"%d" % total if total < 10 else b"many")
        return total


class TakesAnyKey(MemoryStore):
    async def add(self, key, amount):
        return await super().add(str(key), amount)


class CannotCloseTwice(MemoryStore):
    closed = False

    async def close(self):
        assert not self.closed, "closed twice"
        self.closed = True


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (ForgetsEmptyValues, "set 0 bytes under 'empty'"),
        (ClaimsAbsentKeys, "absent key, expected value given"),
        (ChecksAnyKey, "must want all keys"),
        (DeletesNothing, "must be False"),
        (NamesNoKeys, r"wait\(\) blames \(\)"),
        (WaitsForOneKey, "with two of them there"),
        (TakesAnyKey, r"add\(\) of key 5 must raise TypeError, and raised nothing"),
        (CannotCloseTwice, "closed twice"),
    ],
)
async def test_broken_store_is_found(broken, message):
    store = broken()

    async def make():
        return store

    with pytest.raises(AssertionError, match=message):
        await check_store(make)


async def test_counter_that_keeps_no_digits_is_found():
    store = CountsInBinary()

    async def make():
        return store

    with pytest.raises(Exception, match=r"no counter|digits"):
        await check_store(make)


async def test_stores_that_are_not_shared_are_found():
    async def make():
        return MemoryStore()

    with pytest.raises(AssertionError, match="share one store"):
        await check_store(make)
