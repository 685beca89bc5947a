"""The shell blocks of the pages: what runs in a shell, and what is only read.

The blocks of a page run in order, in one bash and one empty folder. Comments beside a block, which no
reader sees, say more:

- ``<!-- before``, commands, ``-->`` above the block, ``<!-- after``, commands, ``-->`` below it: what
  runs beside it. ``$ROOT`` is the repository. The name ``exp1`` of a job stands for one of its own.
- ``<!-- not here: reason -->`` above the block: it does not run. Its commands are read all the same.
  ``<!-- no shell block runs here: reason -->`` says so of all blocks of a page.
- ``<!-- compared: all but figures -->``, ``<!-- compared: headings -->`` above the block: how the output
  on the page is compared. Headings are lines without a figure. ``<!-- compared: nothing, reason -->``.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.docs.blocks import PAGES, ROOT
from tests.limits import scaled

_BLOCK = re.compile(
    r"(?:^<!-- not here: (?P<reason>[^\n]*?) -->\n+)?"
    r"(?:^<!-- compared: (?P<compared>[^\n]*?) -->\n+)?"
    r"(?:^<!-- before\n(?P<before>(?:(?!^-->).)*)^-->\n+)?"
    r"^```(?P<kind>sh|console)\n(?P<text>.*?)^```$"
    r"(?:\n+^<!-- after\n(?P<after>(?:(?!^-->).)*)^-->$)?",
    re.MULTILINE | re.DOTALL,
)
_PROMPT = "$ "
_FIGURE = re.compile(r"~?\d[\d.,:]*(?: ?(?:[KMG]iB|B|us|ms|s|%)(?![A-Za-z]))?")
_PRELUDE = """\
set -eu
trap 'for job in $(jobs -p); do kill $job || true; done; wait' EXIT
aiodist() { command aiodist "${@/exp1/exp1-$$}"; }
"""


class ShellBlock(NamedTuple):
    """One block, with its commands and what they print on the page."""

    name: str
    commands: list[str]
    prints: list[str]
    before: str
    after: str
    compared: str
    reason: str
    """Why it cannot run here; "" where it can."""


def blocks_of(page: Path) -> Iterator[ShellBlock]:
    """Yield the shell blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    of_page = re.search(r"^<!-- no shell block runs here: (.*) -->$", text, re.MULTILINE)
    found = list(_BLOCK.finditer(text))
    assert len(found) == len(re.findall(r"^```(?:sh|console)$", text, re.MULTILINE)), page
    for number, match in enumerate(found):
        lines = match["text"].splitlines()
        if match["kind"] == "console":
            commands = [line.removeprefix(_PROMPT) for line in lines if line.startswith(_PROMPT)]
            prints = [line for line in lines if not line.startswith(_PROMPT)]
        else:
            commands, prints = lines, []
        yield ShellBlock(
            f"{page.relative_to(ROOT)}-shell-{number}",
            commands,
            prints,
            match["before"] or "",
            match["after"] or "",
            match["compared"] or "all",
            match["reason"] or (of_page[1] if of_page else ""),
        )


SHELL_BLOCKS = {page: list(blocks_of(page)) for page in [*PAGES, ROOT / "CONTRIBUTING.md"]}


def run(blocks: list[ShellBlock], folder: Path, path: str) -> list[list[str]]:
    """Run blocks in one shell; return the lines that each prints. A command that fails is an error."""
    place, script = folder / "work", [_PRELUDE]
    place.mkdir()
    for number, block in enumerate(blocks):
        printed = f">{folder / str(number)} 2>&1"
        script += [block.before, "{", *block.commands, f"}} {printed}", block.after]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIODIST_")}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=place,
        env=kept
        | {"PATH": path, "ROOT": str(ROOT), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=scaled(50),
        check=False,
    )
    outputs = [folder / str(number) for number in range(len(blocks))]
    said = [file.read_text(encoding="utf-8") for file in outputs if file.exists()]
    assert done.returncode == 0, "\n".join([*said, done.stdout, done.stderr])
    return [text.splitlines() for text in said]


def differences(block: ShellBlock, printed: list[str]) -> tuple[list[str], list[str]]:
    """Return two lists that are equal if ``printed`` is what the page shows."""
    shown = block.prints
    if not shown or block.compared.startswith("nothing"):
        return [], []
    if block.compared == "headings":
        headings = [
            _words(line) for line in shown if line.strip(". ") and not re.search(r"\d", line)
        ]
        found = {_words(line) for line in printed}
        return headings, [line for line in headings if line in found]
    if not any(line.startswith("aiodist:") for line in shown):
        printed = [line for line in printed if not line.startswith("aiodist:")]
    if block.compared == "all but figures":
        shown, printed = [*map(_words, shown)], [*map(_words, printed)]
    # One rank's lines keep their order; those of several ranks come as they come.
    return sorted(shown, key=_rank), sorted(printed, key=_rank)


def _words(line: str) -> str:
    line = re.sub(r"\bexp1[-\w]*", "exp1", line)
    line = re.sub(r"\b\d+ on \S+", "# on host", line)
    return " ".join(_FIGURE.sub("#", line).replace("at most #", "#").split())


def _rank(line: str) -> str:
    return line.split()[0] if line.startswith("[") else "~"
