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
    """The value of the last expression; "" for None, for a cell that ends with a statement, and for an
    expression with a semicolon behind it, as in IPython."""
    pictures: tuple[bytes, ...]
    """Matplotlib's open figures as PNG files."""


def run_cell(source: str, number: int) -> CellResult:
    """Execute ``source`` in the rank's ``__main__``. ``number``: of the cell, for tracebacks.

    The last expression and the lines above it are two parts. A part with a top-level ``await`` runs on
    the loop on which the rank's world lives, so that it uses the async API. Any other part runs in the
    main thread, where the blocking API works and an interrupt ends it at once.
    """
    name = _name(number)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    _execute(_compiled(tree, name, "exec"))
    value = None
    if isinstance(last, ast.Expr):
        value = _execute(_compiled(ast.Expression(last.value), name, "eval"))
        if _has_semicolon(source, last):
            value = None
    return CellResult("" if value is None else repr(value), _pictures())


def check_cell(source: str, number: int) -> None:
    """Raise SyntaxError if `run_cell` would, with a note on lines that only IPython understands."""
    try:
        _compiled(source, _name(number), "exec")
    except SyntaxError as error:
        if (error.text or "").lstrip().startswith(("%", "!")):
            error.add_note(
                "the ranks run plain Python: % and ! of IPython belong in a cell of their own"
            )
        raise


def _name(number: int) -> str:
    return f"<cell {number}>"


def _compiled(source: str | ast.Module | ast.Expression, name: str, mode: str) -> CodeType:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code: CodeType = compile(source, name, mode, flags, dont_inherit=True)
    return code


def _has_semicolon(source: str, last: ast.Expr) -> bool:
    """Return whether a semicolon follows ``last``, the last statement of ``source``."""
    line = source.encode().splitlines()[(last.end_lineno or 1) - 1]
    return line[last.end_col_offset :].lstrip().startswith(b";")


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
