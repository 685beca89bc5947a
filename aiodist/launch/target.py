"""Check what is to be started before anything is: a script, a module or a program."""

from __future__ import annotations

import difflib
import importlib.machinery
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence

from aiodist.errors import InvalidUsageError


def script_program(path: str) -> tuple[str, ...]:
    """Return the command that runs a Python script, or a folder with a ``__main__.py``."""
    if os.path.isdir(path):
        if not os.path.isfile(os.path.join(path, "__main__.py")):
            raise InvalidUsageError(
                f"{path!r} is a directory without a __main__.py: name a script in it"
            )
    elif not os.path.exists(path):
        raise InvalidUsageError(
            f"there is no script {path!r}{_program(path) or _similar_file(path)}"
        )
    elif not os.access(path, os.R_OK):
        raise InvalidUsageError(f"the script {path!r} may not be read by this user")
    return (sys.executable, path)


def module_program(name: str, pythonpath: str = "") -> tuple[str, ...]:
    """Return the command that runs the module ``name``, as ``python -m`` does.

    Parent packages are searched but not imported: their import may be slow or have side effects.
    ``pythonpath``: the ranks' PYTHONPATH where it is not the launcher's.
    """
    if name.endswith(".py") or "/" in name:
        raise InvalidUsageError(
            f"-m takes a module's name with dots and without .py, not {name!r}; "
            "leave -m out to run a file"
        )
    # An installed package comes before a folder here that has no __init__.py.
    path = ["", *filter(None, pythonpath.split(os.pathsep)), *sys.path]
    places: Sequence[str] | None = None
    spec: importlib.machinery.ModuleSpec | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        spec = _find(".".join(parts[:depth]), places, path)
        if spec is None:
            missing = ".".join(parts[:depth])
            raise InvalidUsageError(
                f"there is no module named {missing!r} here or among the installed ones"
            )
        places = spec.submodule_search_locations
        if places is None and depth < len(parts):
            raise InvalidUsageError(f"{spec.name!r} is a module, not a package: no {name!r} in it")
    if places is not None and _find(f"{name}.__main__", places, path) is None:
        raise InvalidUsageError(
            f"{name!r} is a package without a __main__ module: name a module in it"
        )
    return (sys.executable, "-m", name)


def plain_program(name: str, path: str | None = None) -> tuple[str, ...]:
    """Return the command of ``--no_python``: any executable file, or a name on PATH.

    ``path``: the ranks' PATH where it is not the launcher's.
    """
    found = shutil.which(name, path=path) or shutil.which(os.path.join(os.curdir, name))
    if found is None:
        if os.path.isfile(name):
            raise InvalidUsageError(
                f"{name!r} cannot be executed: make it so with chmod +x, or name its interpreter "
                "before it"
            )
        raise InvalidUsageError(f"there is no program {name!r}, in this place or on PATH")
    return (found,)


def _find(
    name: str, places: Sequence[str] | None, path: Sequence[str]
) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of a module in ``places``, or of a top-level one in ``path``."""
    if places is None:
        here = importlib.machinery.PathFinder.find_spec(name, path)
        if here is not None:
            return here
        try:
            return importlib.util.find_spec(name)
        except ValueError:  # of an empty name, or a module without a spec
            return None
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, places)
        except (KeyError, ModuleNotFoundError):  # the latter from Python 3.15 on
            # A namespace package in a package: importlib looks for the parent among the imported.
            spec = finder.find_spec(name.rpartition(".")[2], places)
        if spec is not None:
            return spec
    return None


def _program(name: str) -> str:
    """Return advice if ``name`` is a program on PATH, such as python, and no script; "" otherwise."""
    if os.path.dirname(name) or shutil.which(name) is None:
        return ""
    return (
        f"; {name!r} is a program on PATH, which starts with --no_python before it. "
        "A Python script needs no 'python' before its name"
    )


def _similar_file(path: str) -> str:
    folder, name = os.path.split(path)
    try:
        neighbours = sorted(os.listdir(folder or "."))
    except OSError:
        return f" (there is no folder {folder!r})"
    candidates = [n for n in neighbours if n.endswith(".py")]
    close = difflib.get_close_matches(name, candidates, n=1)
    return f": did you mean {os.path.join(folder, close[0])!r}?" if close else ""
