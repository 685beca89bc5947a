"""The links of the README lead somewhere. Its programs run in ``test_blocks.py``."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert links
    missing = [link for link in links if not (README.parent / link).exists()]
    assert missing == []
