"""CUDA's current stream, which each thread has for itself. Does not import torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any


def on_callers_stream(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` to be called in another thread on this thread's device and stream.

    Operations that the other thread starts then come after those that this one has submitted. If
    CUDA is not in use yet, the result is ``function`` itself.
    """
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return function
    return partial(_on_stream, cuda, cuda.current_stream(), function)


class Marks:
    """Where streams of one device stood, for one of them to go on after all that was asked by then.

    Of no effect for other devices than CUDA's.
    """

    def __init__(self, device: Any) -> None:
        """``device``: a ``torch.device``."""
        self._device = device
        self._cuda: Any = sys.modules["torch.cuda"] if device.type == "cuda" else None
        self._events: dict[Any, Any] = {}

    def mark(self) -> None:
        """Remember what the current stream has to do by now."""
        if self._cuda is None:
            return
        stream = self._cuda.current_stream(self._device)
        if stream not in self._events:
            self._events[stream] = self._cuda.Event()
        self._events[stream].record(stream)

    def follow(self) -> None:
        """Whatever the current stream is asked from here on comes after all that was marked."""
        if self._cuda is None:
            return
        own = self._cuda.current_stream(self._device)
        for stream, event in self._events.items():
            if stream != own:
                own.wait_event(event)


def _on_stream(
    cuda: Any, stream: Any, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    with cuda.stream(stream):
        return function(*args, **kwargs)
