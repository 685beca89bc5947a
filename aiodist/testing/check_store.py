"""The promises of `aiodist.store.Store` as checks that any implementation can be run through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiodist.deadline import Deadline
from aiodist.errors import StoreTimeoutError
from aiodist.store.base_store import Store

MakeStore = Callable[[], Awaitable[Store]]

_SHORT = 0.05
"""Seconds that a wait which must time out is given."""
_LONG = 30.0
"""Seconds after which a wait that must succeed counts as failed."""


async def check_store(make: MakeStore) -> None:
    """Run all checks of a store on the one that ``make`` opens.

    The checks use keys that begin with ``check/`` and leave some behind. Handles are closed at
    the end.

    Args:
        make: Called several times; returns another handle to the same store each time (the same
            object where the implementation needs no handles).

    Raises:
        AssertionError: A promise is broken. A sentence says which is the first one.
    """
    handles: list[Store] = []

    async def another() -> Store:
        handles.append(await make())
        return handles[-1]

    try:
        one, two = await another(), await another()
        await check_values(one, two)
        await check_compare_set(one, two)
        await check_keys(one, two)
        await check_wrong_keys(one)
        await check_waits(one, two)
        await check_timeouts(one)
        await check_cancelled_wait(one, two)
        await check_counters([one, two, await another(), await another()])
        await check_wills(await another(), one)
        await check_close(await another(), one)
    finally:
        for handle in handles:
            await handle.close()


async def check_values(one: Store, two: Store) -> None:
    """What one handle sets, the other one gets, whatever the bytes and the key."""
    values = {
        "plain": b"value",
        "empty": b"",
        "binary": bytes(range(256)),
        "digits": b"17",
        "large": bytes(range(256)) * (8 * 4096),
        "with/slash and space\n": b"odd key",
        "\u00fc\u6f22\U0001f600": b"unicode key",
        "": b"empty name",
    }
    for name, value in values.items():
        await one.set(f"check/values/{name}", value)
    for name, value in values.items():
        for store in (two, one):
            assert await store.check([f"check/values/{name}"]), (
                f"key {name!r} was set and is not there: do the handles share one store?"
            )
            got = await store.get(f"check/values/{name}", _soon())
            assert isinstance(got, bytes), f"get() returned {type(got).__name__}, not bytes"
            assert got == value, (
                f"set {len(value)} bytes under {name!r}, got {len(got)} other bytes"
            )
    await two.set("check/values/plain", b"other")
    got = await one.get("check/values/plain", _soon())
    assert got == b"other", f"an overwritten key must give its new value, gave {got!r}"


async def check_compare_set(one: Store, two: Store) -> None:
    """All cases of compare_set."""
    key = "check/compare"
    got = await one.compare_set(key, b"expected", b"new")
    assert got == b"expected", f"absent key, expected value given: must return it, gave {got!r}"
    assert not await two.check([key]), "compare_set wrote an absent key that was expected to exist"
    got = await one.compare_set(key, b"", b"first")
    assert got == b"first", f"absent key, empty expected: must write and return, gave {got!r}"
    got = await two.compare_set(key, b"", b"second")
    assert got == b"first", f"present key, empty expected: must return what is there, gave {got!r}"
    got = await two.compare_set(key, b"wrong", b"second")
    assert got == b"first", f"another value is there: must return it, gave {got!r}"
    got = await two.compare_set(key, b"first", b"second")
    assert got == b"second", f"the expected value is there: must write, gave {got!r}"
    got = await one.get(key, _soon())
    assert got == b"second", f"compare_set returned 'second' and the store holds {got!r}"


async def check_keys(one: Store, two: Store) -> None:
    """check, delete_key and num_keys."""
    before = await one.num_keys()
    assert not await one.check(["check/keys/a"]), "check() found a key that was never set"
    await one.set("check/keys/a", b"1")
    assert await two.check(["check/keys/a"]), "check() does not see the other handle's key"
    assert not await two.check(["check/keys/a", "check/keys/b"]), "check() must want all keys"
    await two.set("check/keys/b", b"2")
    assert await one.check(["check/keys/b", "check/keys/a"]), "check() misses one of two keys"
    count = await two.num_keys()
    assert count == before + 2, f"num_keys() went from {before} to {count} by two new keys"
    assert await two.delete_key("check/keys/a") is True, "delete_key() of a key must return True"
    assert await one.delete_key("check/keys/a") is False, "delete_key() of no key: must be False"
    assert not await one.check(["check/keys/a"]), "a deleted key is still there"
    count = await one.num_keys()
    assert count == before + 1, f"num_keys() is {count} after a deletion, not {before + 1}"
    await one.set("check/keys/a", b"again")
    got = await two.get("check/keys/a", _soon())
    assert got == b"again", f"a key set again after its deletion gave {got!r}"


async def check_wrong_keys(store: Store) -> None:
    """A key that is no text raises TypeError, and the store stays usable."""
    before = await store.num_keys()
    for key in (5, b"check/wrong", None):
        wrong: Any = key
        calls: list[tuple[Callable[..., Awaitable[object]], tuple[object, ...]]] = [
            (store.set, (wrong, b"")),
            (store.get, (wrong, Deadline(_SHORT))),
            (store.wait, ([wrong], Deadline(_SHORT))),
            (store.add, (wrong, 1)),
            (store.compare_set, (wrong, b"", b"")),
            (store.check, ([wrong],)),
            (store.delete_key, (wrong,)),
        ]
        for function, arguments in calls:
            text = f"{function.__name__}() of key {key!r} must raise TypeError"
            try:
                await function(*arguments)
            except TypeError:
                continue
            except Exception as error:
                raise AssertionError(f"{text}, raised {error!r}") from error
            raise AssertionError(f"{text}, and raised nothing")
    count = await store.num_keys()
    assert count == before, f"num_keys() went from {before} to {count} by calls that failed"


async def check_waits(one: Store, two: Store) -> None:
    """Waiting gets and waits end when their keys are set, and not before."""
    gets = [asyncio.create_task(s.get("check/waits/a", _soon())) for s in (one, two, one, two)]
    several = asyncio.create_task(
        one.wait(["check/waits/a", "check/waits/b", "check/waits/c"], _soon())
    )
    await asyncio.sleep(0)
    assert not any(task.done() for task in [*gets, several]), "a wait for absent keys ended"
    await two.set("check/waits/c", b"c")
    await two.set("check/waits/a", b"now")
    got = await asyncio.gather(*gets)
    assert got == [b"now"] * 4, f"concurrent waiting gets must all give the value, gave {got!r}"
    assert not several.done(), "wait() for three keys ended with two of them there"
    await one.add("check/waits/b", 1)
    await several
    await two.wait([], _soon())
    claimed = asyncio.create_task(two.get("check/waits/d", _soon()))
    await asyncio.sleep(0)
    await one.compare_set("check/waits/d", b"", b"claimed")
    assert await claimed == b"claimed", "a waiting get must end by compare_set too"


async def check_timeouts(store: Store) -> None:
    """A wait that is not answered raises StoreTimeoutError with the missing keys."""
    await store.set("check/timeouts/there", b"")
    error = await _timeout_of(store.get("check/timeouts/absent", Deadline(_SHORT)), "get()")
    assert tuple(error.keys) == ("check/timeouts/absent",), f"get() blames {error.keys!r}"
    assert "check/timeouts/absent" in str(error), f"the message names no key: {error}"
    wanted = ["check/timeouts/x", "check/timeouts/there", "check/timeouts/y"]
    error = await _timeout_of(store.wait(wanted, Deadline(_SHORT)), "wait()")
    assert set(error.keys) == {wanted[0], wanted[2]}, f"wait() blames {error.keys!r}"
    passed = Deadline(1e-9)
    while not passed.expired():
        pass
    got = await store.get("check/timeouts/there", passed)
    assert got == b"", "a key that is there must be given even when the deadline has passed"
    assert await store.check(["check/timeouts/there"]), "the store is unusable after a timeout"


async def check_cancelled_wait(one: Store, two: Store) -> None:
    """A cancelled wait leaves nothing behind."""
    task = asyncio.create_task(one.get("check/cancelled", Deadline.never()))
    other = asyncio.create_task(one.get("check/cancelled", _soon()))
    await asyncio.sleep(_SHORT / 5)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    else:
        raise AssertionError("a cancelled get() returned a value")
    await two.set("check/cancelled", b"later")
    assert await other == b"later", "cancelling one get() disturbed another one"
    got = await one.get("check/cancelled", _soon())
    assert got == b"later", "the store is unusable after a cancelled get()"


async def check_counters(handles: list[Store]) -> None:
    """add is atomic among handles, and its bytes are decimal digits."""
    key = "check/counters/many"
    calls = [store.add(key, amount) for store in handles for amount in (1, 2, 3, -1)]
    results = await asyncio.gather(*calls)
    total = 5 * len(handles)
    assert len(results) == 4 * len(handles)
    got = await handles[0].add(key, 0)
    assert got == total, f"{len(calls)} concurrent adds make {total}, the counter says {got}"
    ones = await asyncio.gather(
        *(store.add("check/counters/ones", 1) for store in handles for _ in range(5))
    )
    assert sorted(ones) == list(range(1, 5 * len(handles) + 1)), (
        f"adds of 1 must return each number once, gave {sorted(ones)}"
    )
    digits = await handles[-1].get(key, _soon())
    assert digits == b"%d" % total, f"a counter's bytes must be its digits, are {digits!r}"
    await handles[0].set("check/counters/set", b"40")
    got = await handles[-1].add("check/counters/set", 2)
    assert got == 42, f"add() to a key that was set to digits gave {got}"


async def check_wills(one: Store, two: Store) -> None:
    """The will of a handle is written when it ends, where the store can do that. Closes ``one``."""
    keys = ["check/wills/kept", "check/wills/cleared", "check/wills/there"]
    able = [await one.set_will(key, b"the will") for key in keys]
    assert able in ([True] * 3, [False] * 3), "set_will() must either work or not, for all keys"
    assert not await two.check(keys[:1]), "a will is there before its time"
    await one.clear_will(keys[1])
    await one.clear_will("check/wills/never")
    if able[0]:
        await two.set(keys[2], b"other")
        await one.close()
        got = await two.get(keys[0], _soon())
        assert got == b"the will", f"a will of b'the will' came to be {got!r}"
        assert not await two.check(keys[1:2]), "a will that was cleared came to be"
        got = await two.get(keys[2], _soon())
        assert got == b"other", "a will was written over a key that was there"


async def check_close(handle: Store, other: Store) -> None:
    """close can be called twice, and does no harm to other handles."""
    await handle.set("check/close", b"stays")
    await handle.close()
    await handle.close()
    got = await other.get("check/close", _soon())
    assert got == b"stays", "closing one handle took another one's keys"


async def _timeout_of(waiting: Awaitable[object], name: str) -> StoreTimeoutError:
    try:
        await waiting
    except StoreTimeoutError as error:
        return error
    raise AssertionError(f"{name} for keys that are never set did not time out")


def _soon() -> Deadline:
    return Deadline(_LONG)
