"""The Python blocks of the pages, and the files they show, as programs that ranks can run.

A block runs by itself on two ranks. Comments beside it, which no reader sees, say otherwise:

- ``<!-- before``, code, ``-->``: names that the block takes as given. It stands above the block.
- ``<!-- after``, code, ``-->``: what uses the block, such as a call of its function. It stands below.
- ``<!-- ranks: 3 -->`` above the block: for another number of ranks. ``<!-- ranks: 3, and 1 dies -->``:
  rank 1 is killed on the way.
- ``<!-- not here: reason -->`` above the block: for what needs a program or a package that is not
  installed.
- A block of text below the block, or below its ``after``, is what the ranks print, with the prefixes of
  ``aiodist run``. Below a file, it is the output of the command that starts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md"]

_BLOCK = re.compile(
    r"(?:^<!-- (?:ranks: (?P<ranks>\d+)(?:, and (?P<dies>\d+) dies)?"
    r"|not here: (?P<reason>[^\n]*?)) -->\n+)?"
    r"(?:^<!-- before\n(?P<before>(?:(?!^-->).)*)^-->\n+)?"
    r"^```python\n(?P<code>.*?)^```$"
    r"(?:\n+^<!-- after\n(?P<after>(?:(?!^-->).)*)^-->$)?"
    r"(?:\n+(?:^(?!```|#)[^\n]*\n)*?\n?^```text\n(?P<prints>(?:\[\d+\] [^\n]*\n)+)^```$)?",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(
    r"^```\{literalinclude\} (?P<path>\S+\.py)\n[^`]*```$"
    r"[^`]*^```console\n\$ aiodist run -n (?P<ranks>\d+) [^\n]*\n(?P<prints>[^`]*)^```$",
    re.MULTILINE,
)


class Block(NamedTuple):
    """One block, ready to run."""

    name: str
    source: str
    ranks: int
    dies: int
    """The rank that is killed on the way; -1 where none is."""
    prints: list[str]
    reason: str
    """Why it cannot run here; "" where it can."""


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = list(_BLOCK.finditer(text))
    assert len(found) == len(re.findall(r"^```python\n", text, re.MULTILINE)), page
    for number, match in enumerate(found):
        parts = (match["before"], match["code"], match["after"])
        yield Block(
            f"{page.relative_to(ROOT)}-{number}",
            "\n".join(part for part in parts if part),
            int(match["ranks"] or 2),
            int(match["dies"] or -1),
            (match["prints"] or "").splitlines(),
            match["reason"] or "",
        )
    files = list(_FILE.finditer(text))
    assert len(files) == text.count("```{literalinclude}"), page
    for match in files:
        source = (page.parent / match["path"]).read_text(encoding="utf-8")
        prints = match["prints"].splitlines()
        yield Block(match["path"], source, int(match["ranks"]), -1, prints, "")


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
