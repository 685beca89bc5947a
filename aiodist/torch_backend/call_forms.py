"""torch's short form of a call: tensors without lists, values without an options object.

Python code may call ``group.broadcast([tensor], opts)`` or ``group.broadcast(tensor, root)``. torch's own
class overloads each method for both forms. A Python class has one method of a name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch

Method = TypeVar("Method", bound=Callable[..., Any])

_VALUES = ("root", "op", "timeout")


class _Options:
    """What torch's options objects say, under torch's names."""

    def __init__(self, root: int = 0, op: Any = None, timeout: timedelta | None = None) -> None:
        self.rootRank = root
        self.reduceOp = op
        self.timeout = timeout


def also_short(*names: str) -> Callable[[Method], Method]:
    """Return a decorator: a method of lists and options then takes the short form as well.

    ``names``: the parameters of the short form, first the tensors, then some of root, op and timeout.
    """
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=None if name in ("op", "timeout") else inspect.Parameter.empty,
        )
        for name in names
    ]
    short_form = inspect.Signature(parameters)
    tensors = [name for name in names if name not in _VALUES]
    count = len(tensors)

    def decorate(method: Method) -> Method:
        long_names = frozenset(inspect.signature(method).parameters)

        @functools.wraps(method)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            is_short = (
                any(isinstance(arg, torch.Tensor) for arg in args[:count])
                or len(args) > count + 1
                or not kwargs.keys() <= long_names
            )
            if not is_short:
                return method(group, *args, **kwargs)
            if "tensor" in names and "tensors" in kwargs:  # torch takes a list there as well
                kwargs["tensor"] = kwargs.pop("tensors")
            given = short_form.bind(*args, **kwargs).arguments
            values = {name: given[name] for name in names[count:] if name in given}
            lists = [_in_list(given[name], count) for name in tensors]
            return method(group, *lists, _Options(**values))

        return cast(Method, call)

    return decorate


def _in_list(value: Any, count: int) -> Any:
    """Return what the form with lists has for ``value``, one of ``count`` arguments with tensors."""
    if isinstance(value, torch.Tensor):
        return [value]
    if count == 1:
        return value  # torch takes a list there as well
    return [value] if value else []  # a rank other than the root passes an empty list
