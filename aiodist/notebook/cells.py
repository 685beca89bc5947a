"""A notebook's cell on a rank: names live on, a top-level ``await`` works, plots become pictures."""

from __future__ import annotations

import ast
import inspect
import io
import linecache
import sys
from types import CodeType
from typing import Any, NamedTuple

from aiodist.sync.portal import portal


class CellResult(NamedTuple):
    """What a rank shows for a cell."""

    text: str
    """The value of the last expression; "" for None and for a cell that ends with a statement."""
    pictures: tuple[bytes, ...]
    """Matplotlib's open figures as PNG files."""


def run_cell(source: str, number: int) -> CellResult:
    """Execute ``source`` in the rank's ``__main__``. ``number``: of the cell, for tracebacks.

    A cell with a top-level ``await`` runs on the loop on which the rank's world lives, so that it uses
    the async API. Any other cell runs in the main thread, where the blocking API works.
    """
    name = f"<cell {number}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    _execute(compile(tree, name, "exec", flags, dont_inherit=True))
    value = None
    if isinstance(last, ast.Expr):
        expression = ast.Expression(last.value)
        value = _execute(compile(expression, name, "eval", flags, dont_inherit=True))
    return CellResult("" if value is None else repr(value), _pictures())


def _execute(code: CodeType) -> Any:
    names = sys.modules["__main__"].__dict__
    if not code.co_flags & inspect.CO_COROUTINE:
        return eval(code, names)

    async def awaited() -> Any:
        return await eval(code, names)

    return portal().run(awaited)


def _pictures() -> tuple[bytes, ...]:
    """Return the open figures and close them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return ()
    pictures = []
    for number in pyplot.get_fignums():
        file = io.BytesIO()
        pyplot.figure(number).savefig(file, format="png", bbox_inches="tight")
        pictures.append(file.getvalue())
    pyplot.close("all")
    return tuple(pictures)
