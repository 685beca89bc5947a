"""Other arguments that the methods of torch's own class take.

The short form of a call has tensors without lists, and values without an options object. Python code may
call ``group.broadcast([tensor], opts)`` or ``group.broadcast(tensor, root)``. torch's own class overloads
each method for both forms. A Python class has one method of a name.

A tensor may be an ``AsyncCollectiveTensor``: the result of a collective that is still in progress. The
output of a tensor-parallel model is one. torch's own class waits for it in C++.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch

Class = TypeVar("Class", bound=type[Any])
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


def takes_async_tensors(cls: Class) -> Class:
    """Have the methods that ``cls`` itself defines wait for each AsyncCollectiveTensor that they get.

    The calling thread waits: the operation starts in the loop's thread, which must not block.
    """
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and not name.startswith("__"):
            setattr(cls, name, _after_waiting(method))
    return cls


def _after_waiting(method: Method) -> Method:
    @functools.wraps(method)
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        if any(map(_has_async, args)) or any(map(_has_async, kwargs.values())):
            args = tuple(map(_plain, args))
            kwargs = {name: _plain(value) for name, value in kwargs.items()}
        return method(group, *args, **kwargs)

    return cast(Method, call)


def _has_async(value: Any) -> bool:
    kind = type(value)
    if kind is torch.Tensor:  # first, as each call asks for each of its tensors
        return False
    if issubclass(kind, (list, tuple)):
        return any(map(_has_async, value))
    return issubclass(kind, torch.Tensor) and hasattr(kind, "trigger_wait")


def _plain(value: Any) -> Any:
    """Return ``value`` with the plain tensor inside in place of each AsyncCollectiveTensor."""
    if isinstance(value, (list, tuple)):
        return list(map(_plain, value))
    return value.trigger_wait() if _has_async(value) else value
