"""docs/algorithms.md holds the same tables as the code, and the sources that the files name."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiodist.collectives.cost import COSTS
from aiodist.collectives.cost_hosts import INTER_HOST_RUNS
from aiodist.collectives.select import HOSTS_RULES, MANY, RULES, SHARED_RULES, Rule, Rules

DOCS = Path(__file__).parents[2] / "docs" / "algorithms.md"


def table(head: list[str], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def amount(nbytes: int) -> str:
    if nbytes >= MANY:
        return "any"
    if nbytes >= 1 << 20:
        return f"{nbytes >> 20} MiB"
    return f"{nbytes >> 10} KiB"


def choices(table_of: Rules = RULES) -> str:
    def row(operation: str, rule: Rule) -> tuple[str, ...]:
        ranks = "any" if rule.ranks >= MANY else str(rule.ranks)
        if rule.power_of_two:
            ranks += ", a power of two"
        if rule.locality:
            ranks += f", {rule.locality}"
        name, chunk = rule.choice
        pipelined = name in {"ring", "chain", "scatter_gather"} and operation != "all_gather"
        pipelined = pipelined or (
            table_of is HOSTS_RULES and name in {"stripes", "columns", "chain"}
        )
        pipelined = pipelined and table_of is not SHARED_RULES  # whose chunks have one length
        return (
            operation,
            ranks,
            amount(rule.nbytes),
            f"`{name}`",
            amount(chunk) if pipelined else "",
        )

    rows = [row(operation, rule) for operation, rules in table_of.items() for rule in rules]
    return table(["operation", "ranks up to", "bytes up to", "algorithm", "chunk"], rows)


def shared_choices() -> str:
    return choices(SHARED_RULES)


def hosts_choices() -> str:
    return choices(HOSTS_RULES)


@pytest.mark.parametrize("expected", [choices, shared_choices, hosts_choices])
def test_the_tables_are_those_of_the_code(expected):
    wanted = expected()
    assert wanted in DOCS.read_text(encoding="utf-8"), f"the table should read:\n{wanted}"


@pytest.mark.parametrize(
    ("head", "algorithms"),
    [
        ("| operation | algorithm | rounds | messages | bytes sent |\n", COSTS),
        ("| operation | algorithm | between the hosts runs | sent by |\n", INTER_HOST_RUNS),
    ],
)
def test_the_tables_of_costs_have_a_row_for_each_algorithm(head, algorithms):
    rows = DOCS.read_text(encoding="utf-8").split(head)[1].split("\n\n")[0].splitlines()[1:]
    named = [tuple(cell.strip(" `") for cell in row.split("|")[1:3]) for row in rows]
    assert named == list(algorithms)


def test_every_algorithm_has_a_section():
    text = DOCS.read_text(encoding="utf-8")
    for operation, algorithm in COSTS:
        section = text.split(f"\n## {operation}\n")[1].split("\n## ")[0]
        assert f"**`{algorithm}`**" in section, (operation, algorithm)


@pytest.mark.parametrize(
    ("title", "rules_of"), [("Shared memory", SHARED_RULES), ("Several hosts", HOSTS_RULES)]
)
def test_every_algorithm_of_other_tables_is_explained(title, rules_of):
    section = DOCS.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    for operation, rules in rules_of.items():
        for rule in rules:
            assert f"**{operation} `{rule.choice.algorithm}`**" in section, (operation, rule)
