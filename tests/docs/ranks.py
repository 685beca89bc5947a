"""Forks ranks that run a block of a page, with what a launcher sets in their environment."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import os
import sys
import types
from inspect import CO_COROUTINE

from tests.forked_ranks import serve


def run(source: str, rank: int, size: int, folder: str) -> list[str]:
    """Run the block as the main module of rank ``rank``; return the lines that it prints."""
    import torch

    port, _, source = source.partition("\n")
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
        AIODIST_SECRET="of a page",
    )
    os.chdir(folder)
    torch.set_num_threads(1)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    code = compile(source, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        if code.co_flags & CO_COROUTINE:
            function = types.FunctionType(code, module.__dict__)
            asyncio.run(_in_a_group(function))
        else:
            exec(code, module.__dict__)
        _leave()
    return printed.getvalue().splitlines()


async def _in_a_group(function: types.FunctionType) -> None:
    """Await a block with a top-level ``await``, as in a notebook whose ranks have met."""
    import aiodist

    async with aiodist.process_group():
        await function()


def _leave() -> None:
    """Leave what the block has left open: a page shows the beginning, and not always the end."""
    import aiodist.sync

    if aiodist.sync.is_initialized():
        aiodist.sync.destroy_process_group()


if __name__ == "__main__":
    # Once, before any fork: every rank would import it again.
    import torch._dynamo
    import torch.distributed  # noqa: F401

    import aiodist.backends.torch_groups.backend
    import aiodist.public
    import aiodist.sync
    import aiodist.tensors.staging
    import aiodist.torch_backend
    import aiodist.training.sync  # noqa: F401

    serve(run)
