import pytest

from aiodist.errors import DistStoreError
from aiodist.store.table import KeyTable


def test_watch_fires_inside_the_set_that_completes_it():
    table, fired = KeyTable(), []
    table.watch(["a", "b"], lambda: fired.append(table.get("b")))
    table.set("a", b"1")
    assert fired == []
    table.set("b", b"2")
    table.set("b", b"3")
    assert fired == [b"2"]


def test_watch_on_present_keys_fires_at_once():
    table, fired = KeyTable(), []
    table.set("a", b"")
    table.watch(["a"], lambda: fired.append(1))
    table.watch([], lambda: fired.append(2))
    assert fired == [1, 2]


def test_watch_waits_again_for_a_key_that_was_deleted_meanwhile():
    table, fired = KeyTable(), []
    watch = table.watch(["a", "b"], lambda: fired.append(1))
    table.set("a", b"")
    table.delete("a")
    table.set("b", b"")
    assert fired == []
    assert watch.missing() == ["a"]
    table.set("a", b"")
    assert fired == [1]


def test_cancelled_watch_is_forgotten():
    table, fired = KeyTable(), []
    watch = table.watch(["a", "b"], lambda: fired.append(1))
    watch.cancel()
    watch.cancel()
    table.set("a", b"")
    table.set("b", b"")
    assert fired == []
    assert table.watches == {}


def test_add_to_a_key_that_is_no_counter():
    table = KeyTable()
    table.set("k", b"\xff" * 100)
    with pytest.raises(DistStoreError, match=r"key 'k' is no counter.*100 bytes"):
        table.add("k", 1)
    assert table.get("k") == b"\xff" * 100


def test_a_counter_stays_where_64_bits_do_not_hold_the_sum():
    table = KeyTable()
    table.set("k", b"%d" % (2**63 - 1))
    with pytest.raises(DistStoreError, match="which 64 bits do not hold"):
        table.add("k", 1)
    assert table.add("k", 0) == 2**63 - 1
