"""The docstring of each public function lists its parameters, all of them and no other."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

MODULES = (
    "aiodist.public",
    "aiodist.sync",
    "aiodist.horovod",
    "aiodist.training",
    "aiodist.training.sync",
    "aiodist.testing",
    "aiodist.notebook",
    "aiodist.torch_backend",
    "aiodist.launch",
)
INTEGRATIONS = {
    "aiodist.integrations.ray": ("run",),
    "aiodist.integrations.dask": ("run", "submit"),
}

MADE_BY_AIODIST = frozenset(
    {
        "ProcessGroup",
        "Service",
        "Work",
    }
)
"""Classes whose constructor is not for programs."""

OF_PYTHON = frozenset({"close", "send", "throw"})
"""Methods of `Work` by which Python awaits it."""


def documented(docstring: str | None) -> list[str]:
    """Return the parameters that a docstring lists."""
    _, _, rest = inspect.cleandoc(docstring or "").partition("\nArgs:\n")
    section, *_ = re.split(r"^(?=\S)", rest, maxsplit=1, flags=re.MULTILINE)
    return re.findall(r"^    \*{0,2}(\w+): ", section, re.MULTILINE)


def parameters(function: Callable[..., Any]) -> list[str]:
    names = [each for each in inspect.signature(function).parameters if not each.startswith("_")]
    is_method = "." in function.__qualname__
    return names[1:] if is_method and names[:1] in (["self"], ["cls"]) else names


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the constructor of a class, if programs call it, and the public methods it defines."""
    constructor = inspect.unwrap(cls.__init__)  # type: ignore[misc]
    is_ours = getattr(constructor, "__module__", "").startswith("aiodist.")
    is_plain = dataclasses.is_dataclass(cls) or issubclass(cls, BaseException)
    if is_ours and not is_plain and cls.__name__ not in MADE_BY_AIODIST:
        yield "__init__", constructor
    for name, member in vars(cls).items():
        function = inspect.unwrap(getattr(member, "__func__", member))
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        is_pythons = cls.__name__ == "Work" and name in OF_PYTHON
        overrides = any(name in vars(base) for base in cls.__mro__[1:])
        if not is_pythons and not (overrides and not function.__doc__):
            yield name, function


def functions() -> Iterator[tuple[str, Any]]:
    """Yield each public function and method, with its name."""
    seen = set()
    for path in MODULES:
        module = importlib.import_module(path)
        for name in getattr(module, "__all__", ["load_ipython_extension"]):
            found = getattr(module, name)
            here = f"{path}.{name}"
            pairs = [(here, found)]
            if inspect.isclass(found):
                pairs = [(f"{here}.{method}", function) for method, function in methods(found)]
            for place, function in pairs:
                if callable(function) and function not in seen:
                    seen.add(function)
                    yield place, function


def test_a_docstring_lists_the_parameters() -> None:
    found = list(functions())
    assert len(found) > 200
    wrong = {
        name: (documented(function.__doc__), parameters(function))
        for name, function in found
        if documented(function.__doc__) != parameters(function)
    }
    assert wrong == {}


def test_a_docstring_of_an_integration_lists_the_parameters() -> None:
    for path, names in INTEGRATIONS.items():  # their packages are large, and may be missing
        tree = ast.parse((ROOT / f"{path.replace('.', '/')}.py").read_text(encoding="utf-8"))
        nodes = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        for name in names:
            args = nodes[name].args
            several = [args.vararg] if args.vararg else []
            own = [each.arg for each in (*args.args, *several, *args.kwonlyargs)]
            assert documented(ast.get_docstring(nodes[name])) == own
