"""Call a rank's function in a worker process that lives on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import aiodist.sync as sync
from aiodist.api.available import is_initialized
from aiodist.api.closing import destroy_process_group
from aiodist.launch.rank_function import call_as_rank


def call_and_leave(
    fn: Callable[..., Any], args: Sequence[Any], variables: Mapping[str, str]
) -> Any:
    """Return what ``fn(*args)`` returns; see `call_as_rank`.

    The groups that ``fn`` leaves behind are destroyed, however it ends: the other ranks learn of it
    at once, and the process can carry another rank afterwards.
    """

    def call(*args: Any) -> Any:
        result = fn(*args)
        return _await_and_leave(result) if inspect.iscoroutine(result) else result

    try:
        return call_as_rank(call, args, variables)
    finally:
        if sync.is_initialized():
            sync.destroy_process_group()


async def _await_and_leave(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coroutine
    finally:
        if is_initialized():
            await destroy_process_group()
