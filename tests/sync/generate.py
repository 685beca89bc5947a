"""Write the blocking API and the methods of `ProcessGroup` from the functions of `aiodist.api`.

``make generated`` runs it. It reads sources and imports nothing of aiodist, so it also works while
a generated file is broken. `tests/sync/test_generated.py` fails where a committed file is not what
this writes.

A blocking function has the parameters of its async namesake, and ``async_op`` after ``group`` where
torch has that. A method has all of them but ``group``. No type of Python says "these parameters and
one more in the middle", so no decorator could keep both signatures visible to editors and mypy.
"""

from __future__ import annotations

import ast
import copy
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import indent

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "aiodist"

HEADER = "Generated from `aiodist.api.{name}` by ``make generated``: edit that instead."

STARTED = ("collectives", "blocks", "p2p", "objects", "multigpu")
"""Modules of `aiodist.api` whose functions start an operation on ``group``."""

BLOCKING = (*STARTED, "groups", "state")
BOUND = ("collectives", "blocks", "persistent", "p2p", "objects", "object_streams", "state")

WITHOUT_ASYNC_OP = {"monitored_barrier"}
"""Collectives without a result that have no ``async_op`` in torch."""

OUTSIDE = {
    "all_gather_new": ("[]", "no tensors"),
    "recv": ("-1", "-1"),
    "recv_object": ("ReceivedObject(None, -1)", "the source -1"),
    "recv_object_list": ("-1", "-1"),
}
"""The result on a rank outside ``group``, as an expression and in words."""

COALESCED = {"recv": "(-1 if source is None else pg.ranks[source])"}
"""The result inside of a coalescing block, which waits later, where it is not that of `OUTSIDE`."""

BLOCKS = "Blocks until this rank's part is done."
STARTS = "Returns as soon as the operation has started, with None on a rank outside the group."
ASYNC_OP = """    async_op: Whether to return as soon as the operation has started.
"""
DONE = """Returns:
    With ``async_op=True`` a `Work`. Else None, when this rank's part is done.
"""

LONGEST_IN_CLASS = 108 - 8
"""Columns of a line in a method: the most that ruff takes, without the indentation."""

_BLOCKING_RECV = "Recv(tensor, source, check_tag(tag), blocks=True)"

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """One module of `aiodist.api`."""

    def __init__(self, name: str) -> None:
        """``name``: as in ``aiodist/api/<name>.py``."""
        self.name = name
        self.body = ast.parse((PACKAGE / "api" / f"{name}.py").read_text()).body

    def functions(self) -> Iterator[Function]:
        """Yield the public functions that run an operation, with the overloads before each."""
        for node in self.body:
            if isinstance(node, Function) and not node.name.startswith("_"):
                returns = annotation(node)
                starts = "Work[" in returns or returns in ("ObjectStream", "PersistentCollective")
                if starts or isinstance(node, ast.AsyncFunctionDef):
                    yield node

    def aliases(self) -> list[str]:
        """Return the assignments that give a function a second name."""
        second = self._second_names().items()
        return [f"{own} = {function}  # torch has both names" for own, function in second]

    def _second_names(self) -> dict[str, str]:
        names = {function.name for function in self.functions()}
        return {
            ast.unparse(node.targets[0]): node.value.id
            for node in self.body
            if isinstance(node, ast.Assign)
            if isinstance(node.value, ast.Name) and node.value.id in names
        }

    def imports(self) -> dict[str, str]:
        """Return an import statement for each name that an annotation or a default may have."""
        found = {}
        for node in self.body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    own = alias.asname or alias.name
                    found[own] = f"from {node.module} import {ast.unparse(alias)}"
            elif isinstance(node, ast.ClassDef):
                found[node.name] = f"from aiodist.api.{self.name} import {node.name}"
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                own = node.targets[0].id
                found[own] = f"from aiodist.api.{self.name} import {own}"
        return {own: text for own, text in found.items() if own not in self._second_names()}


def generated() -> dict[Path, str]:
    """Return the text of each generated file."""
    files = {PACKAGE / "sync" / f"{name}.py": blocking_module(Source(name)) for name in BLOCKING}
    files[PACKAGE / "api" / "group_operations.py"] = group_methods([Source(n) for n in BOUND])
    return {path: formatted(path, text) for path, text in files.items()}


def blocking_module(source: Source) -> str:
    """Return the blocking functions of one module of the async API."""
    imports = source.imports() | {
        "api": f"from aiodist.api import {source.name} as api",
        "Done": "from aiodist.sync.adapter import Done",
        "call": "from aiodist.sync.adapter import call",
        "member_of": "from aiodist.sync.adapter import member_of",
        "portal": "from aiodist.sync.portal import portal",
    }
    header = HEADER.format(name=source.name)
    functions = [blocking(source, node) for node in source.functions()]
    return module(f"The blocking API. {header}", imports, [*functions, *source.aliases()])


def blocking(source: Source, node: Function) -> str:
    """Return the blocking function for ``node``."""
    returns = result_of(node)
    has_async_op = (
        source.name in ("collectives", "blocks", "multigpu")
        and returns == "None"
        and node.name not in WITHOUT_ASYNC_OP
    )
    starts = node.name in ("isend", "irecv")
    if has_async_op:
        returns = "Done"
    elif starts:
        returns = f"{annotation(node)} | None"
    own = copied(node, returns)
    if has_async_op:
        names = [arg.arg for arg in own.args.args]
        at = names.index("group") + 1
        own.args.args.insert(at, ast.arg("async_op", ast.Name("bool")))
        # Defaults belong to the last parameters, so they are counted from the end.
        own.args.defaults.insert(len(own.args.defaults) - len(names) + at, ast.Constant(False))
    if is_overload(node):
        return definition(own, None, "...")
    when = "async_op" if has_async_op else str(starts)
    outside = OUTSIDE.get(node.name, ("None", ""))[0]
    steps = steps_of(node)
    if steps is None:
        expression = call_of(source, node, when)
    else:
        head, operation, timeout = steps
        expression = f"portal().start({when}, pg, {operation}, {timeout})"
        if node.name == "recv":  # it does nothing else before it has the message
            head = head.replace("Recv(tensor, source, check_tag(tag))", _BLOCKING_RECV)
    if steps is not None:
        leave = "return" if returns == "None" else f"return {outside}"
        body = f'if (pg := member_of(group, "{node.name}")) is None:\n    {leave}\n'
        body += f"{head}\n" if head else ""
        if returns == "None":
            body += expression
        elif node.name in OUTSIDE:
            coalesced = COALESCED.get(node.name, outside)
            body += f"result: {returns} | None = {expression}\n"
            body += f"return {coalesced} if result is None else result"
        elif returns in ("Any", "Tensor"):
            body += f"return {expression}"
        else:
            body += f"result: {returns} = {expression}\nreturn result"
    elif node.name in OUTSIDE:
        raise ValueError(f"{node.name} does not end in `return pg.start(operation, timeout)`")
    elif returns == "None":
        body = expression
    elif returns in ("Any", "Tensor"):  # Tensor is Any for mypy
        body = f"return {expression}"
    else:
        body = f"result: {returns} = {expression}\nreturn result"
    return definition(own, blocking_docstring(node, has_async_op, starts), body)


def blocking_docstring(node: Function, has_async_op: bool, starts: bool) -> str:
    """Return the docstring of the blocking function for ``node``."""
    doc = (ast.get_docstring(node) or "").replace("await ", "")
    text, _, sections = doc.partition("\n\nArgs:\n")
    if has_async_op:
        group = re.search(r"^    group: .*\n(?:     .*\n)*", sections, re.MULTILINE)
        assert group is not None
        sections = sections[: group.end()] + ASYNC_OP + sections[group.end() :]
        args, _, raises = sections.partition("\n\nRaises:\n")
        return f"{text}\n\nArgs:\n{args}\n\n{DONE}\nRaises:\n{raises}\n"
    note = STARTS if starts else BLOCKS
    if node.name == "batch_isend_irecv":
        note = ""  # it has no group, and says itself what it returns
    if node.name in OUTSIDE:
        note += f" Returns {OUTSIDE[node.name][1]} on a rank outside the group."
    parts = [text, note, f"Args:\n{sections}"]
    return "\n\n".join(filter(None, parts)) + "\n"


def steps_of(node: Function) -> tuple[str, str, str] | None:
    """Return what leads to the operation that ``node`` starts, the operation, and its timeout.

    None: ``node`` does more than start one operation.
    """
    body = node.body[1:]  # the docstring
    first, last = ast.unparse(body[0]), body[-1]
    if first != "pg = current_world().group(group)" or not isinstance(last, ast.Return):
        return None
    match last.value:
        case ast.Call(ast.Attribute(ast.Name("pg"), "start"), [operation, timeout]):
            head = "\n".join(map(ast.unparse, body[1:-1]))
            return head, ast.unparse(operation), ast.unparse(timeout)
    return None


def call_of(source: Source, node: Function, when: str) -> str:
    """Return the call that runs the async function; ``when``: the expression for ``async_op``."""
    name = f"api.{node.name}"
    if source.name in STARTED and "group" in names_of(node):
        before, after = split(node)
        places = ast.unparse(ast.Tuple([ast.Name(each) for each in before]))
        values = [when, name, places, "group", "timeout"]
        values += [f"{each}={each}" for each in after if each != "timeout"]
        return f"call({', '.join(values)})"
    values = passed_on(node)
    if isinstance(node, ast.AsyncFunctionDef):
        return f"portal().run({', '.join([name, *values])})"
    blocks = str(annotation(node).startswith("Work["))
    return f"portal().call({', '.join([name, blocks, *values])})"


def passed_on(node: Function) -> list[str]:
    """Return the parameters of ``node`` as arguments: by position where it takes them so."""
    named = {arg.arg for arg in node.args.kwonlyargs}
    return [f"{each}={each}" if each in named else each for each in names_of(node)]


def group_methods(sources: list[Source]) -> str:
    """Return the class with the functions that take a ``group`` as methods."""
    imports = {"GroupHandle": "from aiodist.groups.handle import GroupHandle"}
    body = []
    for source in sources:
        imports = {**source.imports(), **imports}
        imports[source.name] = f"from aiodist.api import {source.name}"
        for node in source.functions():
            if "group" in names_of(node):
                body.append(method(source, node))
        body += source.aliases()
    header = HEADER.format(name="*")
    doc = '"""The functions of `aiodist` that take a group as methods: each acts on this group."""'
    lines = [doc, "__slots__ = ()", *body]
    text = "class GroupOperations(GroupHandle):\n" + indent("\n\n".join(lines), "    ")
    return module(f"Operations as methods. {header}", imports, [text])


def method(source: Source, node: Function) -> str:
    """Return ``node`` as a method of a group."""
    own = copied(node, annotation(node))
    names = [arg.arg for arg in own.args.args]
    at = names.index("group")
    del own.args.args[at], own.args.defaults[at - len(names)]
    own.args.args.insert(0, ast.arg("self"))
    if is_overload(node):
        return definition(own, None, "...")
    call = ["self" if each == "group" else each for each in passed_on(node)]
    awaited = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    doc = (ast.get_docstring(node) or "").split("\n\n")[0].replace("``group``", "this group")
    body = f"return {awaited}{source.name}.{node.name}({', '.join(call)})"
    see = f"See `aiodist.{node.name}`."
    fits = len(f'{doc} {see}""""""') <= LONGEST_IN_CLASS
    text = definition(own, f"{doc} {see}" if fits else f"{doc}\n\n{see}\n", body)
    return f"async {text}" if awaited else text


def copied(node: Function, returns: str) -> ast.FunctionDef:
    """Return the signature of ``node`` with another result, and no body."""
    own = ast.parse("def function(): ...").body[0]
    assert isinstance(own, ast.FunctionDef)
    own.name, own.args, own.body = node.name, copy.deepcopy(node.args), []
    own.decorator_list = node.decorator_list
    own.returns = ast.parse(returns, mode="eval").body
    return own


def definition(signature: ast.FunctionDef, doc: str | None, body: str) -> str:
    """Return the text of a function."""
    head = ast.unparse(ast.fix_missing_locations(signature))
    text = body if doc is None else f'"""{doc}"""\n{body}'
    return f"{head}\n{indent(text, '    ')}"


def result_of(node: Function) -> str:
    """Return what awaiting the operation results in: T of ``Work[T]``."""
    returns = annotation(node)
    return returns[len("Work[") : -1] if returns.startswith("Work[") else returns


def annotation(node: Function) -> str:
    """Return the annotation of the result as text."""
    assert node.returns is not None
    return ast.unparse(node.returns)


def names_of(node: Function) -> list[str]:
    """Return the names of the parameters."""
    return [arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)]


def split(node: Function) -> tuple[list[str], list[str]]:
    """Return the names of the parameters before ``group`` and after it."""
    names = names_of(node)
    at = names.index("group") if "group" in names else len(names)
    return names[:at], names[at + 1 :]


def is_overload(node: Function) -> bool:
    """Return whether ``node`` is one of the signatures of an overloaded function."""
    return any(ast.unparse(each) == "overload" for each in node.decorator_list)


def module(doc: str, imports: Mapping[str, str], body: list[str]) -> str:
    """Return the text of a module. Imports that it does not use go when it is formatted."""
    head = [f'"""{doc}"""', "from __future__ import annotations", *imports.values()]
    return "\n".join([*head, "\n\n".join(body), ""])


def formatted(path: Path, text: str) -> str:
    """Return ``text`` as ruff leaves it."""
    name = f"--stdin-filename={path}"
    for command in (
        ["check", "--quiet", "--exit-zero", "--fix", "--select=I,F401", name, "-"],
        ["format", "--quiet", "--config=format.skip-magic-trailing-comma=true", name, "-"],
    ):
        ruff = [sys.executable, "-m", "ruff", *command]
        done = subprocess.run(ruff, input=text, capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise RuntimeError(f"{path.name}: {done.stderr}")
        text = done.stdout
    return text


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text)
