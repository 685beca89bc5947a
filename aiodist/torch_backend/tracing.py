"""Keeping torch.compile out of the code of groups."""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

from torch._C._dynamo import eval_frame

T = TypeVar("T", bound=type)


def untraced(cls: T) -> T:
    """Have torch.compile leave the methods of ``cls``, and all that they call, as they are.

    DDP's reducer, which is written in C++, calls methods of a group while a compiled model runs.
    torch.compile sees these calls as code to compile. torch before 2.7 has no way to exempt them;
    there this does nothing, and ``torch.compile(DistributedDataParallel(...))`` fails.
    """
    exempt = getattr(eval_frame, "set_code_exec_strategy", None)
    if exempt is not None:
        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)  # this frame, and those below it
        for member in vars(cls).values():
            if isinstance(member, FunctionType):
                exempt(member.__code__, strategy)
    return cls
