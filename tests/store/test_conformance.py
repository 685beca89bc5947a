import numpy as np
import pytest

from aiodist.errors import DistStoreError
from aiodist.testing.check_store import check_store


async def test_store_keeps_the_promises_of_the_interface(make_store):
    await check_store(make_store)


@pytest.mark.parametrize("keys", ["zz", b"zz", 3, [1]])
async def test_a_wait_for_what_is_no_list_of_keys_is_refused(make_store, keys):
    store = await make_store()
    with pytest.raises(TypeError, match=r"keys must be a list of str, such as \['a', 'b'\]"):
        await store.wait(keys)
    with pytest.raises(TypeError, match="keys must be a list of str"):
        await store.check(keys)


async def test_a_value_that_is_a_str_is_refused_with_advice(make_store):
    store = await make_store()
    for call in (store.set("k", "text"), store.compare_set("k", b"", "text")):
        with pytest.raises(TypeError, match=r"must be bytes, not str; pass value\.encode\(\)"):
            await call
    with pytest.raises(TypeError, match=r"must be bytes, not int$"):
        await store.set("k", 3)


@pytest.mark.parametrize("amount", ["1", 1.5, None])
async def test_a_counter_counts_by_whole_numbers_only(make_store, amount):
    store = await make_store()
    with pytest.raises(TypeError, match="a counter's amount must be an int, not"):
        await store.add("k", amount)
    assert await store.add("k", np.int64(2)) == 2


@pytest.mark.parametrize("amount", [2**70, -(2**63) - 1])
async def test_an_amount_that_64_bits_do_not_hold_is_an_error_of_the_store(make_store, amount):
    store = await make_store()
    with pytest.raises(DistStoreError, match="which 64 bits do not hold"):
        await store.add("k", amount)
    assert await store.add("k", 2) == 2


async def test_a_key_that_utf_8_cannot_encode_is_an_error_of_the_store(make_store):
    store = await make_store()
    key = "name\udcff"
    for call in (
        store.set(key, b""),
        store.get(key, timeout=0.1),
        store.wait([key], timeout=0.1),
        store.check([key]),
        store.add(key, 1),
        store.compare_set(key, b"", b""),
        store.delete_key(key),
    ):
        with pytest.raises(
            DistStoreError, match=r"key cannot be 'name\\udcff', which UTF-8 cannot"
        ):
            await call
    await store.set("naïve", b"1")
    assert await store.get("naïve") == b"1"
