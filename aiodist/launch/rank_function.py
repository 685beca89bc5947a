"""Call a function in this process as one rank of a job."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from aiodist.launch.environment import INHERITED_FROM_AN_OUTER_JOB


def call_as_rank(fn: Callable[..., Any], args: Sequence[Any], variables: Mapping[str, str]) -> Any:
    """Return what ``fn(*args)`` returns, with ``variables`` in the environment meanwhile.

    A coroutine function runs under uvloop, or asyncio if uvloop is not installed. Variables that
    describe another launcher's job are absent meanwhile.
    """
    absent = [name for name in INHERITED_FROM_AN_OUTER_JOB if name not in variables]
    before = {name: os.environ.get(name) for name in [*absent, *variables]}
    for name in absent:
        os.environ.pop(name, None)
    os.environ.update(variables)
    try:
        result = fn(*args)
        return _run_coroutine(result) if inspect.iscoroutine(result) else result
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.run(coroutine)
    import uvloop

    return uvloop.run(coroutine)
