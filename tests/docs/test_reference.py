"""The reference has a place for each public name, variable and command, and the pictures are current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import aiodist
import aiodist.sync
from aiodist.api.spelling import VARIABLES
from aiodist.commands.command_table import COMMANDS
from docs.pictures import PICTURES, STATIC

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def directives(page: str) -> set[str]:
    """Return the names that a page has a directive of autodoc for."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    return set(re.findall(r"^\.\. auto(?:function|class|exception):: (\w+)$", text, re.MULTILINE))


def test_every_public_name_of_the_async_api_has_a_place() -> None:
    described = directives("async.md") | directives("errors.md")
    assert sorted(set(aiodist.__all__) - described) == []
    assert sorted(described - set(aiodist.__all__)) == []


def test_names_without_a_place_on_the_blocking_page_have_one_elsewhere() -> None:
    text = (REFERENCE / "blocking.md").read_text(encoding="utf-8")
    (names,) = re.findall(r":exclude-members: (.*)", text)
    left_out = set(names.split(", "))
    assert sorted(left_out - set(aiodist.sync.__all__)) == []
    assert sorted(left_out - directives("async.md") - directives("errors.md")) == []


def test_functions_that_the_blocking_api_does_not_have_have_a_row() -> None:
    text = (REFERENCE / "blocking.md").read_text(encoding="utf-8")
    missing = set(aiodist.__all__) - set(aiodist.sync.__all__)
    rows = re.findall(r"^\| \[?`(\w+)`", text, re.MULTILINE)
    assert sorted(rows) == sorted(name for name in missing if name.islower())


def test_every_environment_variable_has_a_row() -> None:
    text = (REFERENCE / "environment.md").read_text(encoding="utf-8")
    named = {name for row in re.findall(r"^\| (.*?) \|", text, re.M) for name in row.split(", ")}
    assert sorted(set(VARIABLES) - named) == []


def test_every_command_has_a_section() -> None:
    text = (REFERENCE / "command-line.md").read_text(encoding="utf-8")
    assert re.findall(r"^## aiodist (\w+)$", text, re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_program_draws(name: str) -> None:
    assert (STATIC / name).read_text(encoding="utf-8") == PICTURES[name]()
