"""Every program in the README runs under two ranks and prints what stands below it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

README = Path(__file__).parents[2] / "README.md"


class Program(NamedTuple):
    source: str
    prints: str


def programs(text: str) -> list[Program]:
    """The python blocks, each with the text block that follows it before the next one."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    found: list[Program] = []
    for language, content in blocks:
        if language == "python":
            found.append(Program(content, ""))
        elif language == "text":
            found[-1] = Program(found[-1].source, content)
    return found


PROGRAMS = programs(README.read_text(encoding="utf-8"))


def test_the_programs_were_found() -> None:
    assert len(PROGRAMS) == README.read_text(encoding="utf-8").count("```python\n") >= 4


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_prints_the_output_below_it(
    launch: Callable[..., str], tmp_path: Path, program: Program
) -> None:
    script = tmp_path / "script.py"
    script.write_text(program.source)
    lines = [line for line in launch(2, script).splitlines() if line.startswith("[")]
    # One rank's lines keep their order; those of two ranks come as they come.
    assert sorted(lines, key=_rank) == sorted(program.prints.splitlines(), key=_rank)


def _rank(line: str) -> str:
    return line[:3]


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert links
    missing = [link for link in links if not (README.parent / link).exists()]
    assert missing == []
