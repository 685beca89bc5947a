"""CUDA's current stream, which each thread has for itself. Does not import torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any


def on_callers_stream(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, to be called in another thread as if in this one: on its device and stream.

    So operations that the other thread starts come after what this one has asked the device to do.
    Where nobody has used CUDA yet it is ``function`` itself.
    """
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return function
    return partial(_on_stream, cuda, cuda.current_stream(), function)


def _on_stream(
    cuda: Any, stream: Any, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    with cuda.stream(stream):
        return function(*args, **kwargs)
