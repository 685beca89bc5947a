"""The JSON file of a run: one result a line, so that a later run makes a readable difference."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_report(
    path: Path, layout: int, head: Mapping[str, Any], entries: Mapping[str, Iterable[Any]]
) -> None:
    """Write ``head``, and each list of ``entries`` with one entry a line. ``layout``: its version."""
    text = json.dumps({"format": layout, **head}, indent=1)[:-2]
    for name, found in entries.items():
        lines = ",\n".join(f"  {json.dumps(entry)}" for entry in found)
        text += f',\n "{name}": [\n{lines}\n ]'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n}}\n", encoding="utf-8")


def read_report(path: Path, layout: int) -> dict[str, Any]:
    """Return what `write_report` has written. Raises ValueError for a file of another layout."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if data.get("format") != layout:
        raise ValueError(f"{path} has format {data.get('format')}, not {layout}; measure again")
    return data
