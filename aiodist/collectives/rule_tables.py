"""Measured tables of choices: from the figures of a run to rows, and to JSON and back.

A measured row holds for the number of ranks it was measured with, and for no other. The rows of
`select` follow the measured ones, so every question has an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from aiodist.collectives.cost import COSTS
from aiodist.collectives.cost_hosts import INTER_HOST_RUNS
from aiodist.collectives.select import HOSTS_RULES, MANY, RULES, SHARED_RULES, Choice, Rule, Rules
from aiodist.collectives.shm_choice import most_in_slots, why_not
from aiodist.errors import InvalidUsageError
from aiodist.shm.group_area import LARGEST_SLOT_BYTES

FORMAT = "aiodist table 3"

TUNABLE = ("broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter")
"""Operations that a measured table may speak of: all ranks know what they choose by."""

POWERS_OF_TWO = frozenset({("all_gather", "doubling"), ("reduce_scatter", "halving")})
"""Algorithms that are for such numbers of ranks only."""

Measured = Mapping[str, Sequence[Rule]]


class Tables(NamedTuple):
    """What a job chooses by, on all ranks the same."""

    messages: Rules
    shared: Rules
    """For ranks that share memory."""
    hosts: Rules
    """For ranks on several hosts, some of them together; its "ranks" are hosts."""


OURS = Tables(RULES, SHARED_RULES, HOSTS_RULES)


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


def shared_rows_of(operation: str, ranks: int, best: Sequence[tuple[int, Choice]]) -> list[Rule]:
    """The same of ``operation`` for ranks that share memory. No row has more in slots than they hold.

    Where the largest size measured was fastest in slots, what is larger is left to our own rows.
    """
    rows = rows_of(ranks, best)
    if rows and best[-1][1].algorithm == "slots":
        rows[-1] = rows[-1]._replace(nbytes=best[-1][0])
    most = most_in_slots(operation, ranks, LARGEST_SLOT_BYTES)
    return [
        row._replace(nbytes=min(row.nbytes, most)) if row.choice.algorithm == "slots" else row
        for row in rows
    ]


def with_defaults(measured: Measured, defaults: Rules = RULES) -> Rules:
    """``measured`` before the rows that aiodist brings."""
    return MappingProxyType(
        {name: (*measured.get(name, ()), *rules) for name, rules in defaults.items()}
    )


def encode(
    measured: Measured, shared: Measured, hosts: Measured, machine: Mapping[str, Any]
) -> str:
    """As JSON text, to be read by people too. ``machine``: what it was measured on.

    ``measured``: over messages; ``shm``: in shared memory, where chunks have one length;
    ``hosts``: over several hosts.
    """
    found = {
        "format": FORMAT,
        "machine": dict(machine),
        "rows": {
            name: [_facts(rule) | {"chunk": rule.choice.chunk} for rule in rules]
            for name, rules in measured.items()
        },
        "shared_rows": {name: [_facts(rule) for rule in rules] for name, rules in shared.items()},
        "hosts_rows": {
            name: [_facts(rule, "hosts") | {"chunk": rule.choice.chunk} for rule in rules]
            for name, rules in hosts.items()
        },
    }
    return json.dumps(found, indent=1) + "\n"


def _facts(rule: Rule, peers: str = "ranks") -> dict[str, Any]:
    return {
        peers: rule.ranks,
        "bytes": None if rule.nbytes >= MANY else rule.nbytes,
        "algorithm": rule.choice.algorithm,
    }


def decode(text: str | bytes) -> Tables:
    """The tables of `encode`, with the rows that aiodist brings behind them.

    Raises InvalidUsageError for anything else, saying what is wrong.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter for lists in lists, too deep to read
        raise InvalidUsageError(f"no table of choices: not JSON ({error})") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InvalidUsageError(
            f"no table of choices of this aiodist: its format is not {FORMAT!r}; "
            "make one with aiodist tune"
        )
    return Tables(
        with_defaults(_rules(found, "rows", _over_messages), RULES),
        with_defaults(_rules(found, "shared_rows", _in_memory), SHARED_RULES),
        with_defaults(_rules(found, "hosts_rows", _over_hosts), HOSTS_RULES),
    )


def _rules(found: dict[str, Any], part: str, read: Callable[[str, Any], Rule]) -> Measured:
    rows = found.get(part)
    if not isinstance(rows, dict) or not all(isinstance(some, list) for some in rows.values()):
        raise InvalidUsageError(
            f'the table of choices has no {part!r}: an object with a list for each operation; "{{}}" '
            "where nothing was measured"
        )
    return {name: [read(name, row) for row in some] for name, some in rows.items()}


def _over_messages(operation: str, row: Any) -> Rule:
    rule = _rule(operation, row, "ranks", "chunk")
    asked = operation, rule.choice.algorithm
    if operation not in TUNABLE or asked not in COSTS:
        raise _refused(operation, "asks for what does not exist here", row)
    if asked in POWERS_OF_TWO and rule.ranks & (rule.ranks - 1):
        raise _refused(operation, "asks for an algorithm that needs a power of two as ranks", row)
    return rule


def _in_memory(operation: str, row: Any) -> Rule:
    rule = _rule(operation, row, "ranks")
    why = why_not(operation, rule.choice.algorithm, rule.ranks, rule.nbytes, LARGEST_SLOT_BYTES)
    if why:
        raise _refused(operation, why, row)
    return rule


def _over_hosts(operation: str, row: Any) -> Rule:
    rule = _rule(operation, row, "hosts", "chunk")
    if operation not in TUNABLE or (operation, rule.choice.algorithm) not in INTER_HOST_RUNS:
        raise _refused(operation, "asks for what does not exist over several hosts", row)
    return rule


def _rule(operation: str, row: Any, peers: str, *more: str) -> Rule:
    """Return the rule in ``row``. ``peers``: what it counts, "ranks" or "hosts". ``more``: further keys."""
    try:
        ranks, algorithm, nbytes = row[peers], row["algorithm"], row["bytes"]
        chunks = [row[name] for name in more]
    except (KeyError, TypeError) as error:
        raise InvalidUsageError(f"a row for {operation} is not in order: {row!r}") from error
    limit = MANY if nbytes is None else nbytes
    if not isinstance(algorithm, str) or not all(
        isinstance(number, int) for number in (ranks, limit, *chunks)
    ):
        raise InvalidUsageError(f"a row for {operation} is not in order: {row!r}")
    if ranks < 1 or limit < 0 or any(chunk < 1 for chunk in chunks):
        raise _refused(operation, "asks for what does not exist here", row)
    return Rule(ranks, limit, Choice(algorithm, *chunks), least=ranks)


def _refused(operation: str, why: str, row: Any) -> InvalidUsageError:
    return InvalidUsageError(
        f"a row for {operation} {why}: {row!r}; make the table anew with aiodist tune"
    )
