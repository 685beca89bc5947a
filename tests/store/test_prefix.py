import pytest

from aiodist.deadline import Deadline
from aiodist.errors import StoreTimeoutError
from aiodist.store import MemoryStore, PrefixStore


async def test_two_prefixes_do_not_see_each_other():
    base = MemoryStore()
    one, two = PrefixStore("one", base), PrefixStore("two", base)
    await one.set("k", b"1")
    assert not await two.check(["k"])
    assert await base.get("one/k", Deadline(1)) == b"1"
    assert await two.num_keys() == 1


async def test_closing_the_view_leaves_the_store_open():
    base = MemoryStore()
    await PrefixStore("p", base).close()
    await base.set("k", b"")


async def test_timeouts_name_the_callers_key():
    view = PrefixStore("p", MemoryStore())
    with pytest.raises(StoreTimeoutError) as caught:
        await view.wait(["a", "b"], Deadline(0.01))
    assert caught.value.keys == ("a", "b")


def test_the_timeout_is_that_of_the_whole_store_until_it_is_set():
    whole = MemoryStore()
    part = PrefixStore("inner", PrefixStore("outer", whole))
    whole.timeout = 7.0
    assert part.timeout == 7.0
    part.timeout = 3.0
    assert (part.timeout, whole.timeout) == (3.0, 7.0)
