"""Mistakes in an environment, before any rank reads it."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

from aiodist.api import environment_check, lifecycle
from aiodist.api.environment_check import mistakes_in


def _read_by(module: ModuleType, name: str) -> set[str]:
    """The functions that ``name`` of ``module`` gives the environment, called or by `partial`."""
    (function,) = (
        node
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    )
    found = set()
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and any(
            ast.unparse(argument) in ("environ", "os.environ") for argument in call.args
        ):
            reader = call.args[0] if ast.unparse(call.func) == "partial" else call.func
            found.add(ast.unparse(reader))
    return found


def test_every_setting_that_init_process_group_reads_is_checked() -> None:
    read = _read_by(lifecycle, "init_process_group") - {"misspelt_in"}
    assert {"schemes_from", "liveness_timeout_from"} <= read
    assert read <= _read_by(environment_check, "mistakes_in")


def test_an_environment_without_settings_has_no_mistake() -> None:
    assert mistakes_in({"PATH": "/bin"}) == []


def test_each_mistake_is_told() -> None:
    told = mistakes_in({"AIODIST_STREAMS": "0", "AIODIST_SHM_BYTES": "1", "AIODIST_TABLE": "/no"})
    assert len(told) == 3


def test_a_wrong_transport_is_not_blamed_on_the_settings_that_depend_on_it() -> None:
    (told,) = mistakes_in({"AIODIST_TRANSPORT": "smh", "AIODIST_STREAMS": "2"})
    assert "'smh'" in told
