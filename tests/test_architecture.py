"""The structure of the package, read from its source: layers, imports, state, size, docstrings.

``docs/design/architecture.md`` says what the layers are for. Each rule is a function from parsed
modules to a list of violations, and is itself tried on small modules that break it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES = 600

LAYERS: tuple[tuple[frozenset[str], ...], ...] = (
    (
        frozenset(
            {
                *("errors", "types", "deadline", "completion", "alignment", "copying"),
                *("turning_timer", "unpicklable"),
            }
        ),
    ),
    (
        frozenset({"wire"}),
        frozenset({"tensors"}),
        frozenset({"credentials"}),
        frozenset({"accept_loop"}),
        frozenset({"worker_thread"}),
        frozenset({"procfs"}),
    ),
    (frozenset({"transport"}), frozenset({"store"}), frozenset({"shm"})),
    (frozenset({"links"}),),
    (frozenset({"liveness"}),),
    (frozenset({"rendezvous"}), frozenset({"p2p"})),
    (frozenset({"collectives"}), frozenset({"observe"})),
    (frozenset({"groups"}), frozenset({"simulate"})),
    (frozenset({"backends"}),),
    (frozenset({"api"}),),
    (frozenset({"tuning"}), frozenset({"service"})),
    (
        frozenset({"sync"}),
        frozenset({"launch", "spawning"}),
        frozenset({"testing"}),
    ),
    (
        frozenset({"torch_backend"}),
        frozenset({"bench"}),
        frozenset({"training"}),
        frozenset({"rank_processes", "notebook", "pytest_plugin"}),
    ),
    (
        frozenset({"horovod"}),
        frozenset({"integrations"}),
        frozenset({"commands", "__main__"}),
    ),
    (frozenset({"", "public"}),),  # the names users see, which nothing below imports
)
"""From the lowest up. Rooms of a layer do not see each other; a room is packages or modules."""

WITHOUT_IO = frozenset(
    {"errors", "types", "deadline", "completion", "alignment", "copying", "wire", "collectives"}
)
IO_MODULES = frozenset({"asyncio", "socket", "select", "selectors", "uvloop", "threading", "ssl"})

AT_TORCH = frozenset({"tensors", "torch_backend", "training", "horovod"})
"""Where torch is known: its memory, its process groups, its models."""

_GROUPS = "it runs torch's own process groups, and is imported where a group asks for one"

TORCH_ELSEWHERE = MappingProxyType[str, str](
    {
        "aiodist.backends.devices.backend": "its tensors are on a device; imported at the first one",
        "aiodist.backends.torch_groups": _GROUPS,
        "aiodist.backends.torch_groups.backend": _GROUPS,
        "aiodist.backends.torch_groups.kinds": _GROUPS,
        "aiodist.backends.torch_groups.messages": _GROUPS,
        "aiodist.backends.torch_groups.reduce_ops": _GROUPS,
        "aiodist.backends.torch_groups.slots": _GROUPS,
        "aiodist.backends.torch_groups.store": _GROUPS,
        "aiodist.bench.peers.gloo": "it measures torch's Gloo",
        "aiodist.bench.measuring_rank": "its tensors are torch's, and it measures torch's Gloo",
        "aiodist.rendezvous.agent": "torch's TCPStore has a protocol of its own",
        "aiodist.spawning": "it is torch.multiprocessing.spawn with the rendezvous made ready",
    }
)
"""Other modules that import torch at run time, and why each has to."""

GLOBAL_STATE = MappingProxyType[str, str]({})
"""Modules that rebind a module-level name with ``global``, and why each has to."""

PARALLEL = MappingProxyType[str, frozenset[str]](
    {
        "functions of an API": frozenset({"aiodist.api", "aiodist.sync", "aiodist.horovod"}),
        "a backend": frozenset(
            {f"aiodist.backends.{n}" for n in ("devices", "mpi", "torch_groups")}
        ),
    }
)
"""Packages in which equal file names stand for the same concept, and for which."""

COMMANDS = "aiodist.commands"
"""A file of this package has the name of its command."""

MUTABLE_CALLS = frozenset(
    {
        "Counter",
        "OrderedDict",
        "WeakKeyDictionary",
        "WeakSet",
        "WeakValueDictionary",
        "bytearray",
        "count",
        "defaultdict",
        "deque",
        "dict",
        "list",
        "set",
    }
)


@dataclass(frozen=True)
class Module:
    """A module of the package, parsed."""

    name: str
    source: str
    is_package: bool = False

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, self.name)


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name, wherever in the file the import stands."""

    target: str
    line: int
    for_types_only: bool


def load() -> tuple[Module, ...]:
    modules = []
    for path in sorted((ROOT / "aiodist").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(Module(name, path.read_text(encoding="utf-8"), is_package))
    return tuple(modules)


@cache
def imports(module: Module, known: frozenset[str]) -> tuple[Import, ...]:
    """All imports of ``module``, those inside functions and by ``import_module("...")`` too.

    ``from package import name`` counts as ``package.name`` where that is a module in ``known``.
    """
    tree = module.tree
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
        for statement in node.body
        for inner in ast.walk(statement)
    }
    package = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
    found: list[Import] = []
    for node in ast.walk(tree):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner_name = f"{source}.{alias.name}"
                targets.append(inner_name if inner_name in known else source)
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func).rpartition(".")[2]
            if function in {"import_module", "__import__"} and node.args:
                argument = node.args[0]
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    targets = [argument.value]
        line = getattr(node, "lineno", 0)
        found += [Import(target, line, id(node) in guarded) for target in targets]
    return tuple(found)


def area(name: str) -> str:
    """``aiodist.wire.frames`` is in the area ``wire``; the package itself in the area ``""``."""
    return [*name.split("."), ""][1]


def place(name: str) -> tuple[int, int] | None:
    """(layer, room) of a module; None where no layer has it."""
    for layer, rooms in enumerate(LAYERS):
        for room, areas in enumerate(rooms):
            if area(name) in areas:
                return layer, room
    return None


def names(modules: tuple[Module, ...]) -> frozenset[str]:
    return frozenset(module.name for module in modules)


def homeless(modules: tuple[Module, ...]) -> list[str]:
    return [f"{m.name} belongs to no layer" for m in modules if place(m.name) is None]


def upward_imports(modules: tuple[Module, ...]) -> list[str]:
    found = []
    for module in modules:
        here = place(module.name)
        for imported in imports(module, names(modules)):
            if imported.target.split(".")[0] != "aiodist" or here is None:
                continue
            there = place(imported.target)
            if there is None or (there != here and there[0] >= here[0]):
                found.append(f"{module.name}:{imported.line} imports {imported.target}")
    return found


def foreign_imports_of_the_vocabulary(modules: tuple[Module, ...]) -> list[str]:
    allowed = sys.stdlib_module_names | {"aiodist"}
    return [
        f"{module.name}:{imported.line} imports {imported.target}"
        for module in modules
        if (at := place(module.name)) is not None and at[0] == 0
        for imported in imports(module, names(modules))
        if imported.target.split(".")[0] not in allowed
    ]


def io_imports(modules: tuple[Module, ...]) -> list[str]:
    return [
        f"{module.name}:{imported.line} imports {imported.target}"
        for module in modules
        if area(module.name) in WITHOUT_IO
        for imported in imports(module, names(modules))
        if imported.target.split(".")[0] in IO_MODULES
    ]


def torch_imports(modules: tuple[Module, ...]) -> dict[str, str]:
    """Modules outside AT_TORCH that import torch when they run, with a line that does."""
    return {
        module.name: f"{module.name}:{imported.line} imports {imported.target}"
        for module in modules
        if area(module.name) not in AT_TORCH
        for imported in imports(module, names(modules))
        if imported.target.split(".")[0] == "torch" and not imported.for_types_only
    }


def module_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import, also those inside if, try, for and with; no class bodies."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield statement
        for field in ("body", "orelse", "finalbody"):
            yield from module_statements(getattr(statement, field, []))
        for handler in getattr(statement, "handlers", []):
            yield from module_statements(handler.body)


def is_mutable(value: ast.expr) -> bool:
    """Whether an expression makes a container that can change. Looks into tuples."""
    if isinstance(value, ast.Tuple):
        return any(is_mutable(element) for element in value.elts)
    if isinstance(value, ast.Call):
        function = value.func.value if isinstance(value.func, ast.Subscript) else value.func
        return ast.unparse(function).rpartition(".")[2] in MUTABLE_CALLS
    displays = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
    return isinstance(value, displays)


def circles(modules: tuple[Module, ...]) -> set[frozenset[str]]:
    """Sets of modules that import each other in a circle, imports for types included."""
    known = names(modules)
    direct = {
        m.name: {i.target for i in imports(m, known) if i.target in known} - {m.name}
        for m in modules
    }
    reached = {name: set(targets) for name, targets in direct.items()}
    waiting = list(reached)
    while waiting:
        name = waiting.pop()
        further = set().union(*(reached[target] for target in reached[name])) - reached[name]
        if further:
            reached[name] |= further
            waiting += [other for other, targets in direct.items() if name in targets]
    return {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in reached
        if name in reached[name]
    }


def mutable_globals(modules: tuple[Module, ...]) -> list[str]:
    found = []
    for module in modules:
        for statement in module_statements(module.tree.body):
            if isinstance(statement, ast.Assign):
                targets = [ast.unparse(target) for target in statement.targets]
            elif isinstance(statement, ast.AnnAssign):
                targets = [ast.unparse(statement.target)]
            else:
                continue
            value = statement.value
            if value is not None and targets != ["__all__"] and is_mutable(value):
                found.append(f"{module.name}:{statement.lineno} {', '.join(targets)} can change")
    return found


def rebinders(modules: tuple[Module, ...]) -> dict[str, str]:
    """Modules with a ``global`` statement, with the names it rebinds."""
    return {
        module.name: f"{module.name}:{node.lineno} global {', '.join(node.names)}"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Global)
    }


def copies_in_one_go(modules: tuple[Module, ...]) -> list[str]:
    """``into[:] = data`` where that may be large."""
    return [
        f"{module.name}:{node.lineno} {ast.unparse(node)}: use aiodist.copying.copy"
        for module in modules
        if area(module.name) in {"shm", "p2p", "collectives"}
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Subscript) and ast.unparse(target.slice) == ":"
    ]


def same_names(modules: tuple[Module, ...]) -> list[str]:
    """File names that stand in several packages, but for packages of `PARALLEL`."""
    places: dict[str, set[str]] = {}
    for module in modules:
        package, _, name = module.name.rpartition(".")
        if not module.is_package and not name.startswith("__") and package != COMMANDS:
            kind = next((why for why, packages in PARALLEL.items() if package in packages), package)
            places.setdefault(name, set()).add(kind)
    return [f"{name}.py: {sorted(kinds)}" for name, kinds in places.items() if len(kinds) > 1]


def too_long(modules: tuple[Module, ...]) -> list[str]:
    lengths = {module.name: len(module.source.splitlines()) for module in modules}
    return [f"{name} has {lines} lines" for name, lines in lengths.items() if lines > MAX_LINES]


def without_docstring(modules: tuple[Module, ...]) -> list[str]:
    return [
        f"{module.name} has no docstring"
        for module in modules
        if not module.name.rpartition(".")[2].startswith("_") and not ast.get_docstring(module.tree)
    ]


def unlisted(found: dict[str, str], table: MappingProxyType[str, str]) -> list[str]:
    """List what was found but is not in the table of exceptions, and entries that match nothing."""
    return [line for name, line in found.items() if name not in table] + [
        f"{name} is listed as an exception but was not found" for name in table if name not in found
    ]


MODULES = load()


def test_the_package_was_found() -> None:
    assert {"aiodist", "aiodist.errors", "aiodist.wire"} <= names(MODULES)


def test_every_module_belongs_to_a_layer() -> None:
    assert homeless(MODULES) == []


def test_imports_go_down_only() -> None:
    assert upward_imports(MODULES) == []


def test_the_vocabulary_needs_only_the_standard_library() -> None:
    assert foreign_imports_of_the_vocabulary(MODULES) == []


def test_frames_and_algorithms_know_no_io() -> None:
    assert io_imports(MODULES) == []


def test_torch_is_imported_where_it_is_known_only() -> None:
    assert unlisted(torch_imports(MODULES), TORCH_ELSEWHERE) == []


def test_no_module_keeps_a_container_that_can_change() -> None:
    assert mutable_globals(MODULES) == []


def test_no_module_rebinds_its_globals() -> None:
    assert unlisted(rebinders(MODULES), GLOBAL_STATE) == []


def test_large_data_is_copied_in_pieces() -> None:
    assert copies_in_one_go(MODULES) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(MODULES) == set()


def test_circles_are_found_also_where_an_import_is_for_types() -> None:
    modules = (
        Module("aiodist.wire.a", "from aiodist.wire.b import B"),
        Module("aiodist.wire.b", "if TYPE_CHECKING:\n    from aiodist.wire.c import C"),
        Module("aiodist.wire.c", "def f():\n    import aiodist.wire.a"),
        Module("aiodist.wire.d", "from aiodist.wire import a"),
    )
    assert circles(modules) == {frozenset({"aiodist.wire.a", "aiodist.wire.b", "aiodist.wire.c"})}


def test_a_file_name_means_one_thing() -> None:
    assert same_names(MODULES) == []


@pytest.mark.parametrize("page", ["architecture.md", "engine.md", "shared-memory.md"])
def test_the_files_that_a_design_page_names_exist(page: str) -> None:
    named = re.findall(r"`([\w/*]+\.py)`", (ROOT / "docs" / "design" / page).read_text("utf-8"))
    package = ROOT / "aiodist"
    assert named
    assert [name for name in named if not any((*ROOT.glob(name), *package.rglob(name)))] == []


def test_equal_names_of_files_are_found() -> None:
    assert len(same_names(modules_of(store__base="", transport__base=""))) == 1
    parallel = modules_of(api__p2p="", sync__p2p="", commands__trace="", observe__trace="")
    assert same_names(parallel) == []


def test_every_file_is_read_at_a_sitting() -> None:
    assert too_long(MODULES) == []


def test_every_public_module_says_what_it_is() -> None:
    assert without_docstring(MODULES) == []


@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("aiodist.public", "torch"),
        ("aiodist.public", "pdb"),
        ("aiodist.public", "aiodist.launch"),
        ("aiodist.public", "aiodist.rank_processes"),
        ("aiodist.commands.run", "numpy"),
        ("aiodist.commands.top", "numpy"),
    ],
)
def test_importing_does_not_bring_in_a_large_package(name: str, without: str) -> None:
    script = f"import sys, {name}; sys.exit({without!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


def modules_of(**sources: str) -> tuple[Module, ...]:
    """Modules from sources: ``wire__frames="..."`` is aiodist.wire.frames."""
    return tuple(
        Module("aiodist." + name.replace("__", "."), source) for name, source in sources.items()
    )


@pytest.mark.parametrize(
    "source",
    [
        "import aiodist.p2p.endpoint",
        "from aiodist.p2p import endpoint",
        "from aiodist.p2p.endpoint import Endpoint",
        "def f():\n    from aiodist.p2p import endpoint",
        "if TYPE_CHECKING:\n    from aiodist.p2p import endpoint",
        "from ..mesh import endpoint",
        "import importlib\nimportlib.import_module('aiodist.p2p.endpoint')",
        "from aiodist.store import base",
        "import aiodist",
        "from aiodist import all_reduce",
    ],
)
def test_an_upward_or_sideways_import_is_found(source: str) -> None:
    modules = modules_of(transport__tcp=source, mesh__endpoint="", store__base="")
    assert len(upward_imports(modules)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from aiodist.transport import base",
        "from . import base",
        "from aiodist import errors",
        "from aiodist.errors import DistError",
        "import asyncio, numpy",
    ],
)
def test_an_import_downward_or_at_home_is_fine(source: str) -> None:
    assert upward_imports(modules_of(transport__tcp=source, transport__base="", errors="")) == []


def test_modules_of_the_vocabulary_may_import_each_other() -> None:
    modules = modules_of(errors="from aiodist.types import ReduceOp", types="")
    assert upward_imports(modules) == []
    assert foreign_imports_of_the_vocabulary(modules) == []


def test_breaches_of_the_other_import_rules_are_found() -> None:
    assert homeless(modules_of(cellar="")) == ["aiodist.cellar belongs to no layer"]
    assert len(foreign_imports_of_the_vocabulary(modules_of(types="import numpy"))) == 1
    assert len(io_imports(modules_of(wire__frames="def f():\n    import asyncio"))) == 1
    assert len(io_imports(modules_of(collectives__ring="from socket import socket"))) == 1
    assert io_imports(modules_of(transport__tcp="import asyncio")) == []


def test_a_copy_in_one_go_is_found() -> None:
    assert len(copies_in_one_go(modules_of(p2p__link="def f(a, b):\n    a.place[:] = b"))) == 1
    assert copies_in_one_go(modules_of(p2p__link="a[1:] = b; c[0] = d; copy(e, f)")) == []
    assert copies_in_one_go(modules_of(api__state="mine[:] = items")) == []


def test_torch_elsewhere_is_found() -> None:
    lazy = modules_of(p2p__matching="def f():\n    import torch.distributed as d")
    assert list(torch_imports(lazy)) == ["aiodist.p2p.matching"]
    assert torch_imports(modules_of(api__p2p="if TYPE_CHECKING:\n    import torch")) == {}
    assert torch_imports(modules_of(tensors__torch_memory="import torch")) == {}
    table = MappingProxyType({"aiodist.spawning": "because"})
    assert len(unlisted(torch_imports(lazy), table)) == 2


@pytest.mark.parametrize(
    "source",
    [
        "cache = {}",
        "TABLE = {'a': 1}",
        "names: list[str] = []",
        "try:\n    x = 1\nexcept OSError:\n    x = set()",
        "queue = collections.deque()",
        "by_name = defaultdict[str, int](int)",
        "squares = [n * n for n in range(3)]",
        "pair = (1, [])",
        "numbers = itertools.count()",
    ],
)
def test_a_module_level_container_is_found(source: str) -> None:
    assert len(mutable_globals(modules_of(mesh__peers=source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "__all__ = ['a']",
        "NAMES = ('a', 'b')",
        "KINDS = frozenset({1, 2})",
        "TABLE = MappingProxyType({'a': 1})",
        "def f():\n    found = []",
        "class C:\n    __slots__ = ('a',)",
    ],
)
def test_a_constant_is_fine(source: str) -> None:
    assert mutable_globals(modules_of(mesh__peers=source)) == []


def test_rebinding_length_and_silence_are_found() -> None:
    assert len(rebinders(modules_of(group__world="def f():\n    global w\n    w = 1"))) == 1
    assert len(too_long(modules_of(errors="\n" * (MAX_LINES + 1)))) == 1
    assert too_long(modules_of(errors="\n" * MAX_LINES)) == []
    assert len(without_docstring(modules_of(errors="x = 1"))) == 1
    assert without_docstring(modules_of(errors='"""Errors."""', wire___tables="")) == []
