"""The files of the tutorial run on two ranks, and print what the page says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
FILES = re.findall(
    r"^```\{literalinclude\} \.\./(\S+)\n.*?^```$.*?^```console\n\$ [^\n]*\n(.*?)^```$",
    PAGE,
    re.MULTILINE | re.DOTALL,
)


def test_the_files_were_found() -> None:
    assert {path for path, _ in FILES} == {
        str(file.relative_to(ROOT)) for file in (ROOT / "examples" / "tutorial").glob("*.py")
    }


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("path", "prints"), FILES)
def test_a_file_prints_what_the_page_shows(
    launch: Callable[..., str], path: str, prints: str
) -> None:
    lines = [line for line in launch(2, ROOT / path).splitlines() if line.startswith("[")]
    assert sorted(lines, key=_rank) == sorted(prints.splitlines(), key=_rank)


def _rank(line: str) -> str:
    return line[:3]
