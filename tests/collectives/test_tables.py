"""Measured tables: from figures to rows, to JSON and back, and what is none."""

from __future__ import annotations

import json

import pytest

from aiodist.collectives.select import MANY, RULES, Choice, Rule, select
from aiodist.collectives.tables import FORMAT, decode, encode, rows_of, with_defaults
from aiodist.errors import InvalidUsageError

RING, DOUBLING = Choice("ring", 1 << 16), Choice("doubling")


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
    text = encode(measured, {"cores": 2})
    assert decode(text) == with_defaults(measured)
    assert decode(text.encode())["broadcast"] == RULES["broadcast"]
    assert json.loads(text)["machine"] == {"cores": 2}


def _row(**changed: object) -> str:
    row = {"ranks": 2, "bytes": 4, "algorithm": "ring", "chunk": 4, **changed}
    operation = str(row.pop("operation", "all_reduce"))
    return json.dumps({"format": FORMAT, "rows": {operation: [row]}})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "its format is not"),
        ('{"format": "aiodist table 0"}', "its format is not"),
        (json.dumps({"format": FORMAT, "rows": []}), "has no rows"),
        (_row(algorithm="magic"), "does not exist here"),
        (_row(operation="gather", algorithm="linear"), "does not exist here"),
        (_row(ranks=0), "does not exist here"),
        (_row(bytes="4"), "not in order"),
        (_row(chunk=None), "not in order"),
    ],
)
def test_what_is_no_table(text: str, said: str) -> None:
    with pytest.raises(InvalidUsageError, match=said):
        decode(text)
