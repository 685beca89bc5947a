"""What a command line on a page names: options of a parser, targets of make, files, extras, addresses.

`problems` reads a line as a shell would and compares it with the sources. It runs nothing.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from aiodist.api.spelling import VARIABLES
from aiodist.commands.command_table import COMMANDS, load
from aiodist.errors import InvalidUsageError
from aiodist.launch.args import Parser, launch_parser

ROOT = Path(__file__).parents[2]
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OPERATORS = frozenset({"|", "&&", ">", "<", ";", "&"})
_OPTION = re.compile(r"--?[A-Za-z][\w-]*")
_STARTERS = frozenset({"srun", "mpiexec", "sbatch"})
"""Programs that start another one, which is read in their place."""

_OTHERS = frozenset({".", "curl", "docker", "kubectl", "openssl", "pre-commit", "sh"})
"""Programs that are not the project's. Of their arguments, files and addresses are read."""


def problems(line: str) -> list[str]:
    """Return what is wrong with a command line of a page."""
    line = re.sub(r"\[--[\w-]+\]", "", line)  # an option that may be left out
    line = re.sub(r"\$\((.*?)\)", r"; \1;", line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words = [*lexer, ";"]
    found: list[str] = []
    while words:
        at = next(place for place, word in enumerate(words) if word in _OPERATORS)
        found += _of_command(words[:at])
        words = words[at + (2 if words[at] in "<>" else 1) :]
    return [f"{line}: {problem}" for problem in found]


def _of_command(words: Sequence[str]) -> Iterator[str]:
    words = list(words)
    if words[:1] == ["export"]:
        del words[0]
    while words and (assignment := _ASSIGNMENT.fullmatch(words[0])):
        name = assignment[1]
        if name.startswith("AIODIST_") and name not in VARIABLES:
            yield f"there is no variable {name}"
        del words[0]
    if not words:
        return
    program, *arguments = words
    program = program.rpartition("/")[2] if program != "." else program
    readers: dict[str, Callable[[list[str]], Iterator[str]]] = {
        "aiodist": _of_aiodist,
        "make": _of_make,
        "pip": _of_pip,
        "python": _of_python,
        "python3": _of_python,
        "torchrun": _of_torchrun,
    }
    if program in readers:
        yield from readers[program](arguments)
    elif program in _STARTERS:
        yield from _of_starter(arguments)
    elif program in _OTHERS:
        yield from _of_other(arguments)
    else:
        yield f"nothing is known of {program}"


def _of_aiodist(arguments: list[str]) -> Iterator[str]:
    command, *options = arguments
    if command == "--version":
        return
    if command not in COMMANDS:
        yield f"there is no command {command}"
        return
    yield from _of_parser(load(command).parser(), options)


def _of_parser(parser: Parser, arguments: list[str]) -> Iterator[str]:
    try:
        args = parser.read(arguments)
    except InvalidUsageError as error:
        yield str(error)
        return
    if "script" in args and not args.module:
        yield from _of_script(args.script, args.script_args)
    elif "program" in args:
        yield from _of_command([args.program, *args.arguments])


def _of_make(arguments: list[str]) -> Iterator[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in arguments:
        name, assigned, _ = word.partition("=")
        if not re.search(rf"^{name} \??=" if assigned else rf"^{name}:", makefile, re.MULTILINE):
            yield f"the Makefile has no {name}"


def _of_pip(arguments: list[str]) -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for word in arguments:
        for extra in re.findall(r"^aiodist\[(.*)\]$", word):
            if extra not in project["optional-dependencies"]:
                yield f"there is no extra {extra}"
    yield from _of_other(arguments)


def _of_python(arguments: list[str]) -> Iterator[str]:
    if arguments[:1] != ["-m"]:
        yield from _of_script(arguments[0], arguments[1:])
        return
    _, module, *rest = arguments
    if module == "aiodist.launch":
        yield from _of_parser(launch_parser(), rest)
        return
    spec = importlib.util.find_spec(module)
    if spec is None:
        yield f"there is no module {module}"
    elif spec.origin and Path(spec.origin).is_relative_to(ROOT):
        folder = Path(spec.origin).parent
        files = folder.glob("*.py") if spec.submodule_search_locations else [Path(spec.origin)]
        if module == "tests.slurm.cluster":
            yield from _of_starter(rest)
        else:
            yield from _of_options(rest, _with_imports([*files]))


def _with_imports(files: list[Path]) -> list[Path]:
    """Add the benchmarks' modules that ``files`` import: one of them may read the options."""
    named = (
        name
        for file in files
        for name in re.findall(
            r"^from benchmarks\.(\w+) import", file.read_text("utf-8"), re.MULTILINE
        )
    )
    return files + [path for name in named if (path := ROOT / "benchmarks" / f"{name}.py").exists()]


def _of_torchrun(arguments: list[str]) -> Iterator[str]:
    spec = importlib.util.find_spec("torch")  # which this does not import
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent / "distributed" / "run.py"
    at = next(place for place, word in enumerate(arguments) if word.endswith(".py"))
    yield from _of_options(arguments[:at], [source])
    yield from _of_script(arguments[at], arguments[at + 1 :])


def _of_starter(arguments: list[str]) -> Iterator[str]:
    for place, word in enumerate(arguments):
        if word.endswith(".sbatch"):
            # Its arguments are those of the program that the file starts.
            text = (ROOT / word).read_text(encoding="utf-8")
            (script,) = re.findall(r"^recipe=.*/(\w+\.py)$", text, re.MULTILINE)
            yield from _of_script(str(Path(word).parent / script), arguments[place + 1 :])
            return
        if word in ("python", "aiodist"):
            yield from _of_command(arguments[place:])
            return
    yield f"no program is named in {' '.join(arguments)}"


def _of_script(path: str, arguments: list[str]) -> Iterator[str]:
    """Compare with a script of the repository; a bare name, such as train.py, is the reader's own."""
    if "/" not in path:
        return
    script = ROOT / path
    if not script.exists():
        yield f"there is no {path}"
        return
    beside = [*(script.parent / "common").glob("*.py"), *script.parent.glob("torch_suite*.py")]
    yield from _of_options(arguments, [script, *beside])


def _of_options(arguments: list[str], sources: Sequence[Path]) -> Iterator[str]:
    text = "".join(source.read_text(encoding="utf-8") for source in sources)
    for word in arguments:
        option = word.partition("=")[0]
        if not _OPTION.fullmatch(option):
            continue
        spellings = {
            option,
            option.replace("_", "-"),
            option.replace("-", "_").replace("__", "--", 1),
        }
        if not any(f'"{spelling}"' in text for spelling in spellings):
            yield f"{sources[0].name} has no option {option}"


def _of_other(arguments: list[str]) -> Iterator[str]:
    for word in arguments:
        if found := re.fullmatch(r"localhost:\d+(/\w+)", word):
            served = [*(ROOT / "examples").glob("*/*.py")]
            if not any(f'"{found[1]}"' in file.read_text(encoding="utf-8") for file in served):
                yield f"no example answers {found[1]}"
        elif re.match(r"examples/|constraints", word) and not (ROOT / word).exists():
            yield f"there is no {word}"
