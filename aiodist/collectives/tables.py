"""Measured tables of choices: from the figures of a run to rows, and to JSON and back.

A measured row is for the number of ranks it was measured with and no other; behind the measured
rows of an operation stand those of `select.RULES`, so that every question has an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from aiodist.collectives.cost import COSTS
from aiodist.collectives.select import MANY, RULES, Choice, Rule, Rules
from aiodist.errors import InvalidUsageError

FORMAT = "aiodist table 1"

TUNABLE = ("broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter")
"""Operations that a measured table may speak of: all ranks know what they choose by."""


def rows_of(ranks: int, best: Sequence[tuple[int, Choice]]) -> list[Rule]:
    """Rows for exactly ``ranks`` ranks out of (bytes, what was fastest), by ascending bytes.

    Between two sizes with different choices the bound is their geometric mean.
    """
    rows = []
    for (nbytes, choice), (following, other) in pairwise(best):
        if choice != other:
            rows.append(Rule(ranks, int((nbytes * following) ** 0.5), choice, least=ranks))
    if best:
        rows.append(Rule(ranks, MANY, best[-1][1], least=ranks))
    return rows


def with_defaults(measured: Mapping[str, Sequence[Rule]]) -> Rules:
    """``measured`` before the rows that aiodist brings."""
    return MappingProxyType(
        {name: (*measured.get(name, ()), *rules) for name, rules in RULES.items()}
    )


def encode(measured: Mapping[str, Sequence[Rule]], machine: Mapping[str, Any]) -> str:
    """As JSON text, to be read by people too. ``machine``: what it was measured on."""
    rows = {
        name: [
            {
                "ranks": rule.ranks,
                "bytes": None if rule.nbytes >= MANY else rule.nbytes,
                "algorithm": rule.choice.algorithm,
                "chunk": rule.choice.chunk,
            }
            for rule in rules
        ]
        for name, rules in measured.items()
    }
    return json.dumps({"format": FORMAT, "machine": dict(machine), "rows": rows}, indent=1) + "\n"


def decode(text: str | bytes) -> Rules:
    """The table of `encode`, with the rows that aiodist brings behind it.

    Raises InvalidUsageError for anything else, saying what is wrong.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidUsageError(f"no table of choices: not JSON ({error})") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InvalidUsageError(
            f"no table of choices of this aiodist: its format is not {FORMAT!r}; "
            "make one with aiodist tune"
        )
    rows = found.get("rows")
    if not isinstance(rows, dict):
        raise InvalidUsageError("the table of choices has no rows")
    return with_defaults({name: [_rule(name, row) for row in rows[name]] for name in rows})


def _rule(operation: str, row: Any) -> Rule:
    try:
        ranks, nbytes, chunk = row["ranks"], row["bytes"], row["chunk"]
        algorithm = row["algorithm"]
        right = ranks >= 1 and chunk >= 1 and (nbytes is None or nbytes >= 0)
    except (KeyError, TypeError) as error:
        raise InvalidUsageError(f"a row for {operation} is not in order: {row!r}") from error
    if not right or operation not in TUNABLE or (operation, algorithm) not in COSTS:
        raise InvalidUsageError(
            f"a row for {operation} asks for what does not exist here: {row!r}; make the table anew "
            "with aiodist tune"
        )
    return Rule(ranks, MANY if nbytes is None else nbytes, Choice(algorithm, chunk), least=ranks)
