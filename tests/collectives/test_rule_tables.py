"""Measured tables: from figures to rows, to JSON and back; invalid tables are refused."""

from __future__ import annotations

import json

import pytest

from aiodist.collectives.cost_hosts import INTER_HOST_RUNS
from aiodist.collectives.rule_tables import (
    FORMAT,
    TUNABLE,
    Tables,
    decode,
    encode,
    rows_of,
    shared_rows_of,
    with_defaults,
)
from aiodist.collectives.select import (
    HOSTS_RULES,
    MANY,
    RULES,
    SHARED_RULES,
    Choice,
    Rule,
    select,
)
from aiodist.collectives.shm_choice import ALGORITHMS
from aiodist.errors import InvalidUsageError
from aiodist.shm.group_area import LARGEST_SLOT_BYTES

RING, DOUBLING = Choice("ring", 1 << 16), Choice("doubling")
SLOTS, STRIPES, EXCHANGE = Choice("slots"), Choice("stripes"), Choice("exchange")
LEADERS = Choice("leaders")


def test_rows_meet_between_the_sizes() -> None:
    rows = rows_of(3, [(1024, DOUBLING), (4096, DOUBLING), (65536, RING), (1 << 20, RING)])
    assert rows == [Rule(3, 16384, DOUBLING, least=3), Rule(3, MANY, RING, least=3)]
    assert rows_of(3, []) == []


def test_a_table_is_for_the_ranks_it_was_measured_with() -> None:
    rules = with_defaults({"all_reduce": rows_of(3, [(4, RING)])})
    assert select("all_reduce", 3, 4, rules=rules) == RING
    for ranks in (2, 4):
        assert select("all_reduce", ranks, 4, rules=rules) == select("all_reduce", ranks, 4)
    assert select("barrier", 3, 0, rules=rules) == select("barrier", 3, 0)


def test_json_and_back() -> None:
    measured = {"all_reduce": rows_of(3, [(1024, DOUBLING), (4096, RING)])}
    shared = {"all_reduce": shared_rows_of("all_reduce", 2, [(1024, SLOTS), (1 << 20, EXCHANGE)])}
    hosts = {"all_reduce": rows_of(2, [(1024, LEADERS), (1 << 20, Choice("stripes", 1 << 19))])}
    text = encode(measured, shared, hosts, {"cores": 2})
    assert decode(text) == Tables(
        with_defaults(measured, RULES),
        with_defaults(shared, SHARED_RULES),
        with_defaults(hosts, HOSTS_RULES),
    )
    assert decode(text.encode()).messages["broadcast"] == RULES["broadcast"]
    assert decode(text).shared["gather"] == SHARED_RULES["gather"]
    assert decode(text).hosts["barrier"] == HOSTS_RULES["barrier"]
    assert json.loads(text)["machine"] == {"cores": 2}
    assert decode(encode({}, {}, {}, {})) == (RULES, SHARED_RULES, HOSTS_RULES)


def test_slots_reach_no_further_than_they_hold_nor_than_they_were_measured() -> None:
    small = [(1024, SLOTS), (8192, SLOTS)]
    assert shared_rows_of("all_reduce", 4, small) == [Rule(4, 8192, SLOTS, least=4)]
    above = [(LARGEST_SLOT_BYTES, SLOTS), (4 * LARGEST_SLOT_BYTES, STRIPES)]
    rows = shared_rows_of("all_reduce", 4, above)
    assert rows == [Rule(4, LARGEST_SLOT_BYTES, SLOTS, least=4), Rule(4, MANY, STRIPES, least=4)]
    rules = decode(encode({}, {"all_reduce": rows}, {}, {})).shared
    assert select("all_reduce", 4, LARGEST_SLOT_BYTES, rules=rules) == SLOTS
    assert select("all_reduce", 4, LARGEST_SLOT_BYTES + 1, rules=rules) == STRIPES
    assert select("all_reduce", 3, LARGEST_SLOT_BYTES, rules=rules) == STRIPES  # not measured
    assert shared_rows_of("all_reduce", 4, []) == []


def test_a_slot_of_an_all_gather_holds_one_block() -> None:
    most = 4 * LARGEST_SLOT_BYTES
    rows = shared_rows_of("all_gather", 4, [(most, SLOTS), (2 * most, Choice("chunks"))])
    assert [rule.nbytes for rule in rows] == [most, MANY]
    rules = decode(encode({}, {"all_gather": rows}, {}, {})).shared
    assert select("all_gather", 4, most, rules=rules) == SLOTS
    with pytest.raises(InvalidUsageError, match="more into slots"):
        decode(_shared(operation="all_gather", ranks=4, bytes=most + 1))


def test_every_operation_that_is_tuned_has_ways_in_memory_and_ours_are_among_them() -> None:
    assert set(ALGORITHMS) == set(TUNABLE)
    for operation, names in ALGORITHMS.items():
        assert {rule.choice.algorithm for rule in SHARED_RULES[operation]} == set(names)


def test_every_operation_that_is_tuned_has_ways_over_hosts_and_ours_are_among_them() -> None:
    for operation in TUNABLE:
        ways = {name for known, name in INTER_HOST_RUNS if known == operation}
        assert {rule.choice.algorithm for rule in HOSTS_RULES[operation]} == ways


def _text(part: str, row: dict[str, object]) -> str:
    operation = str(row.pop("operation", "all_reduce"))
    empty: dict[str, object] = {"rows": {}, "shared_rows": {}, "hosts_rows": {}}
    return json.dumps({"format": FORMAT, **empty, part: {operation: [row]}})


def _row(**changed: object) -> str:
    return _text("rows", {"ranks": 2, "bytes": 4, "algorithm": "ring", "chunk": 4, **changed})


def _shared(**changed: object) -> str:
    return _text("shared_rows", {"ranks": 2, "bytes": 4, "algorithm": "slots", **changed})


def _hosts(**changed: object) -> str:
    row = {"hosts": 2, "bytes": 4, "algorithm": "stripes", "chunk": 4, **changed}
    return _text("hosts_rows", row)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "its format is not"),
        ('{"format": "aiodist table 1"}', "its format is not"),
        (json.dumps({"format": FORMAT, "rows": [], "shared_rows": {}}), "has no 'rows'"),
        (json.dumps({"format": FORMAT, "rows": {"reduce": 1}}), "has no 'rows'"),
        (json.dumps({"format": FORMAT, "rows": {}}), "has no 'shared_rows'"),
        (json.dumps({"format": FORMAT, "rows": {}, "shared_rows": {}}), "has no 'hosts_rows'"),
        (_row(algorithm="magic"), "does not exist here"),
        (_row(operation="gather", algorithm="linear"), "does not exist here"),
        (_row(ranks=0), "does not exist here"),
        (_row(operation="all_gather", algorithm="doubling", ranks=3), "needs a power of two"),
        (_row(operation="reduce_scatter", algorithm="halving", ranks=6), "needs a power of two"),
        (_row(bytes="4"), "not in order"),
        (_row(chunk=None), "not in order"),
        (_row(algorithm=["ring"]), "not in order"),
        (_row(chunk=0), "does not exist here"),
        (_shared(algorithm="ring"), "does not exist here"),
        (_shared(operation="barrier"), "does not exist here"),
        (_shared(operation="broadcast", algorithm="stripes"), "does not exist here"),
        (
            _shared(bytes=LARGEST_SLOT_BYTES + 1),
            f"more into slots than the {LARGEST_SLOT_BYTES} bytes",
        ),
        (_shared(bytes=None), "more into slots"),
        (_shared(ranks=3, algorithm="exchange"), "two ranks and no other"),
        (_shared(ranks="2"), "not in order"),
        (_shared(bytes=-1), "does not exist here"),
        (_hosts(algorithm="ring"), "does not exist over several hosts"),
        (_hosts(operation="barrier", algorithm="leaders"), "does not exist over several hosts"),
        (_hosts(operation="all_gather"), "does not exist over several hosts"),
        (_hosts(hosts="2"), "not in order"),
        (_hosts(chunk=0), "does not exist here"),
    ],
)
def test_a_malformed_table_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidUsageError, match=said):
        decode(text)
