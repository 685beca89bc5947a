"""The python blocks of the pages: they can be imported, and what they use of aiodist exists."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md"]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    )
]


def test_blocks_were_found() -> None:
    assert len(BLOCKS) >= 12


ELSEWHERE = frozenset({"torchft"})
"""Packages that pages use and `make test-ecosystem` installs in an environment of its own."""


def imported(name: str) -> ModuleType:
    return (
        pytest.importorskip(name)
        if name.split(".")[0] in ELSEWHERE
        else importlib.import_module(name)
    )


@pytest.mark.parametrize("block", BLOCKS)
def test_names_used_in_code_blocks_exist(block: str) -> None:
    tree = ast.parse(block)
    modules = {"dist": importlib.import_module("aiodist")}  # what a block without imports means
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                module = imported(name.name)
                modules[name.asname or name.name] = module
        elif isinstance(node, ast.ImportFrom):
            module = imported(node.module or "")
            assert [each.name for each in node.names if not hasattr(module, each.name)] == []
    used = [
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    missing = [
        f"{module}.{name}"
        for module, name in used
        if module in modules and not hasattr(modules[module], name)
    ]
    assert missing == []
