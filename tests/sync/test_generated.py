"""The blocking API and the methods of a group are what `tests/sync/generate.py` writes, with types."""

from __future__ import annotations

import inspect

import aiodist
import aiodist.sync as dist
from tests.sync.generate import ROOT, generated


def test_the_committed_files_are_what_the_async_functions_make() -> None:
    for path, text in generated().items():
        assert path.read_text() == text, f"{path.relative_to(ROOT)}: run `make generated`"


def test_a_blocking_function_has_the_docstring_of_its_async_one() -> None:
    text, own = inspect.getdoc(dist.all_reduce) or "", inspect.getdoc(aiodist.all_reduce) or ""
    assert [part for part in own.split("\n\n") if part not in text and "group: " not in part] == []
    assert "async_op: " in text
    assert "``async_op=True``" in text
    assert "async_op" not in (inspect.getdoc(dist.monitored_barrier) or "")
    assert "await" not in (inspect.getdoc(dist.recv_object) or "")
