"""Who has called a method of ours: Python code, or torch's C++."""

from __future__ import annotations

import sys


def called_from_python() -> bool:
    """Whether Python code has called the method in which this is asked; True where unknown.

    C++ has no frame. If it has called, the frame below the method's is of code that called into
    C++, and that does not name the method.
    """
    if not hasattr(sys, "_getframe"):
        return True
    method = sys._getframe(1)
    caller = method.f_back
    return caller is None or method.f_code.co_name in caller.f_code.co_names
