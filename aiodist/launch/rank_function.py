"""Call a function in this process as one rank of a job."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from aiodist.launch.environment import INHERITED_FROM_AN_OUTER_JOB


def call_as_rank(fn: Callable[..., Any], args: Sequence[Any], variables: Mapping[str, str]) -> Any:
    """Return what ``fn(*args)`` returns, with ``variables`` in the environment meanwhile.

    A coroutine function runs under uvloop, or asyncio if uvloop is not installed. Variables that
    describe another launcher's job are absent meanwhile.
    """
    with environment_variables(dict.fromkeys(INHERITED_FROM_AN_OUTER_JOB) | dict(variables)):
        result = fn(*args)
        return _run_coroutine(result) if inspect.iscoroutine(result) else result


@contextmanager
def environment_variables(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set ``variables`` of this process in this context; None stands for one that is absent."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        _set(variables)
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.run(coroutine)
    import uvloop

    return uvloop.run(coroutine)
