"""Make a C++ Work for an operation if torch drops the Python half of a Work too early.

A Work that is written in Python has one half in Python and one in C++. When C++ calls a method of a
group, torch before 2.7 keeps only the C++ half of the Work that the method returns. That half is
never told that the operation has ended, so waiting for it hangs. Here C++ gets a Work that is
written entirely in C++.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from torch import version
from torch._C import _distributed_c10d as c10d
from torch.torch_version import TorchVersion

from aiodist.torch_backend import call_forms
from aiodist.torch_backend.torch_work import TorchWork

_KEEPS_BOTH_HALVES = TorchVersion(version.__version__) >= TorchVersion("2.7")

_PACKAGE = __name__.rpartition(".")[0]


def caller_keeps(cls: type) -> bool:
    """Return whether the caller of a method of ``cls`` keeps the Python half of the Work that it gets.

    Python code does, and since torch 2.7 C++ does as well. C++ has no frame. If C++ has called the
    method, then the frame below the method's belongs to Python code that does not name the method.
    """
    if _KEEPS_BOTH_HALVES:
        return True
    method = sys._getframe(1)
    caller = method.f_back
    while caller is not None and caller.f_globals.get("__name__", "").startswith(_PACKAGE):
        # The decorator of a method has one code for all methods, so its frames tell nothing.
        if caller.f_globals["__name__"] != call_forms.__name__:
            method = caller
        caller = caller.f_back
    if caller is None:
        return False  # a thread of C++
    methods = {name: inspect.unwrap(getattr(cls, name)) for name in dir(cls)}
    names = {
        name for name, each in methods.items() if getattr(each, "__code__", None) is method.f_code
    }
    return not names.isdisjoint(caller.f_code.co_names)


def work_of_cpp(work: TorchWork) -> c10d.Work:
    """Return a Work of C++ that ends with ``work``. Its errors are RuntimeErrors of the same text."""
    torch_c: Any = c10d  # its stub does not have this function
    made: c10d.Work = torch_c._create_work_from_future(work.future(ordered=False))
    return made
